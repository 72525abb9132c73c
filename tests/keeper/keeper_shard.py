"""A shard of real files for the tests of the keeper: a log, and a keeper that follows it."""
from __future__ import annotations

import asyncio
import functools
import os
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fusee_mp.bounds import KIB, MIB
from fusee_mp.core import records as r
from fusee_mp.keeper.owner import Keeper
from fusee_mp.log import Log, LogOptions, join_records

sys.path.insert(0, str(Path(__file__).parents[1] / "store"))

OPTIONS = LogOptions(segment_bytes=1 * MIB, batch_bytes_max=256 * KIB, append_bytes_max=128 * KIB, flush="inline", starter_bytes=64 * KIB)
WAIT_S = 30.0


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test, bounded, and with nothing of it left behind."""

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        asyncio.run(asyncio.wait_for(test(**fixtures), 120))

    return run


async def until(condition: Callable[[], Any]) -> None:
    """Wait until the condition holds."""
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.002)


class Shard:
    """A log that publishes to a keeper."""

    def __init__(self, log: Log, keeper: Keeper) -> None:
        self.log, self.keeper = log, keeper
        log.on_durable = lambda lsn: keeper.publish(log.durable_position)

    async def append(self, *records: r.Record) -> int:
        """Append, and return the last LSN once it is durable."""
        lsn = self.log.append(join_records(list(map(r.encode, records))), len(records), 1)
        await until(lambda: self.log.durable_lsn >= lsn)
        return lsn


@asynccontextmanager
async def open_shard(directory: Path, **options: Any) -> AsyncIterator[Shard]:
    """A keeper, and then the log that it proves."""
    keeper = await Keeper.start(directory, **options)
    try:
        log = Log.open(directory / "log", OPTIONS, proven_lsn=keeper.applied_lsn, loop=asyncio.get_running_loop())
        keeper.publish(log.durable_position)
        try:
            yield Shard(log, keeper)
        finally:
            await log.close()
    finally:
        await keeper.close(checkpoint=False)
        assert not exists(keeper.pid)


def exists(pid: int) -> bool:
    """Be it as a zombie: its owner has not reaped it."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
