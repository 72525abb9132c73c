"""A process that appends as fast as it can and prints each durable LSN, until it is killed; "attended" appends one
record at a time. Run by the tests."""
from __future__ import annotations

import asyncio
import os
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2]))

from log_sim import record

from fusee_mp import bounds
from fusee_mp.log import Log, LogOptions, join_records

OPTIONS = {
    "segment_bytes": 256 * 1024, "starter_bytes": 64 * 1024, "append_bytes_max": 64 * 1024, "batch_bytes_max": 128 * 1024,
    "reserve_bytes": 0,
}


async def main(directory: str, mode: str, proven_lsn: str) -> None:
    loop, alone = asyncio.get_running_loop(), mode == "attended"
    if alone:
        bounds.LOG_INLINE_AFTER_FLUSHES, mode = 1, "auto"
    log = Log.open(Path(directory), LogOptions(flush=mode, **OPTIONS), proven_lsn=int(proven_lsn), loop=loop)  # type: ignore[arg-type]
    turn = asyncio.Event()
    os.write(1, f"helper {log._flusher.helper_pid}\n".encode())

    def durable(lsn: int) -> None:
        os.write(1, f"durable {lsn}\n".encode())
        os.write(1, f"checkpointed {max(0, lsn - 3000)}\n".encode())  # First, as a store would have it on disk first.
        log.checkpointed(lsn - 3000)
        turn.set()

    log.on_durable = durable
    log.on_failed = lambda error: os._exit(3)
    while True:
        for _ in range(1 if alone else random.randrange(1, 30)):
            count = 1 if alone else random.randrange(1, 5)
            log.append(join_records([record(log.last_lsn + 1 + at) for at in range(count)]), count, 1)
        if alone or random.random() < 0.8:
            turn.clear()
            await turn.wait()
        else:
            await asyncio.sleep(0)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
