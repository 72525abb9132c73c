"""The host of a shard that keeps nothing on disk, for engines in memory."""
from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from fusee_mp.core import records as r
from fusee_mp.errors import Unavailable
from fusee_mp.keeper.memory import MemoryKeeper
from fusee_mp.shardproc.host import ignore
from fusee_mp.shardproc.limits import LimitTable


class MemoryHost:
    """A shard that keeps nothing on disk: appended is durable at once."""

    def __init__(self) -> None:
        self.on_durable: Callable[[int], None] = ignore
        self.on_applied: Callable[[int], None] = ignore
        self.on_failed: Callable[[str], None] = ignore
        self.epoch = 0
        self.durable_lsn = 0
        self.refusal = ""
        self.limits = LimitTable(None)
        self._telling = False
        self._keeper = MemoryKeeper()
        self._keeper.on_applied = lambda lsn: self.on_applied(lsn)
        self._loop = asyncio.get_running_loop()

    @property
    def applied_lsn(self) -> int:
        return self._keeper.applied_lsn

    async def grant(self, worker: str, at_ms: int) -> int:
        self.epoch += 1
        return self.append(r.frame(r.encode(r.Grant(at_ms, self.epoch, worker))), 1)

    def append(self, records: bytes, count: int) -> int:
        self._keeper.publish_records(self.durable_lsn + 1, records)
        self.durable_lsn += count
        if not self._telling:
            self._telling = True
            self._loop.call_soon(self._tell)
        return self.durable_lsn

    def _tell(self) -> None:
        self._telling = False
        self.on_durable(self.durable_lsn)

    async def read(self, method: str, args: Sequence[Any], min_lsn: int = 0, timeout: float = 10.0) -> Any:
        return await self._keeper.read(method, args, min_lsn=min_lsn, timeout=timeout)

    async def read_bytes(self, method: str, args: bytes, min_lsn: int = 0, timeout: float = 10.0) -> bytes:
        raise Unavailable("an engine in memory serves nobody else")

    async def close(self) -> None:
        await self._keeper.close(checkpoint=False)
