"""An idle server of 2 shards: CPU and resident memory of the whole tree. Bound: 0 % CPU, under 150 MiB."""
from __future__ import annotations

import sys
import time

from benches.tree import folder, kind_of, server

SECONDS = 20


def main() -> int:
    with folder() as place, server(place / "data", 2) as tree:
        time.sleep(3)
        before = sum(tree.cpu_s().values())
        time.sleep(SECONDS)
        cpu = (sum(tree.cpu_s().values()) - before) / SECONDS * 100
        total_rss = total_pss = 0.0
        for member in tree.members():
            memory = member.memory_full_info()
            rss, pss = memory.rss / 2**20, memory.pss / 2**20
            total_rss, total_pss = total_rss + rss, total_pss + pss
            print(f"{kind_of(member):10} rss {rss:6.1f} MiB  pss {pss:6.1f} MiB")
        print(f"tree: {cpu:.2f} % CPU; resident {total_rss:.0f} MiB with shared pages counted once for each process,"
              f" {total_pss:.0f} MiB as shared")
    return 0 if cpu < 0.5 and total_pss < 150 else 1


if __name__ == "__main__":
    sys.exit(main())
