"""What rings save: TCP on the loopback, the Unix socket without rings and with them, one after the other on one server.

Sequential steps of a worker in this process: latency, and processor time of this process and of the shard process a step. No bound:
read the three against one another.
"""
from __future__ import annotations

import time
from unittest import mock

import uvloop

from benches.sequential import STEPS, WARM_UP, began, chain, gaps_us
from benches.tree import Tree, folder, quantile, server
from fusee_mp import Unavailable, Worker
from fusee_mp.sdk import same_host

ROUNDS = 3


async def measure(name: str, address: str, tree: Tree) -> None:
    async with Worker.connect(address, workflows=[chain], name=name) as worker:
        await worker.engine.execute(chain, None, WARM_UP)
        began.clear()
        before, used = tree.cpu_s(), time.process_time()
        await worker.engine.execute(chain, None, STEPS)
        after, used = tree.cpu_s(), time.process_time() - used
    times = gaps_us()
    each = {kind: round((after[kind] - before[kind]) / STEPS * 1e6) for kind in after}
    print(f"{name:14} p50 {quantile(times, 0.5):4.0f} us  p90 {quantile(times, 0.9):4.0f}  p99 {quantile(times, 0.99):5.0f};"
          f" CPU us a step: worker {used / STEPS * 1e6:.0f}, {each}")


def main() -> None:
    with folder() as place:
        path = place / "s"
        with server(place / "data", 1, "--unix", str(path)) as tree:
            for _ in range(ROUNDS):
                uvloop.run(measure("TCP", tree.address, tree))
                with mock.patch.object(same_host, "Offer", side_effect=Unavailable("left out here")):
                    uvloop.run(measure("Unix, frames", f"unix:{path}", tree))
                uvloop.run(measure("Unix, rings", f"unix:{path}", tree))


if __name__ == "__main__":
    main()
