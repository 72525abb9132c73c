# How long ended runs are kept.
#
# The record Deleted decides, so the store forgets a run when the log says so, on every replica and after every restore. Who writes it:
# a call, or this sweep, which asks the store for runs that ended long enough ago.
# Rule 1: a workflow's own retention comes before the shard's. Runs of a workflow that this process does not have are left to one that has.
# Rule 2: each stretch of time is looked at once for each retention there is: a page ends where the next begins. What ended before the
#         sweep began is in the log by then, so the store has it when it answers for that LSN. A clock that goes back begins anew.
from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fusee_mp.core import records as r
from fusee_mp.errors import FuseeError

if TYPE_CHECKING:
    from fusee_mp.runtime.shard_runtime import ShardRuntime

LOG: Final = logging.getLogger("fusee_mp.shard")
PAGE: Final = 256
FIRST: Final = (-(1 << 62), 0)
PAUSE_FIRST_S: Final = 0.05
PAUSE_MOST_S: Final = 60.0


@dataclass(frozen=True)
class Keeping:
    """retention_ms: of ended runs; None keeps them. history: their journals are kept as long. archive: then these go to the archive."""

    retention_ms: int | None = None
    history: bool = True
    archive: bool = False


KEEP_ALL: Final = Keeping()


class Retention:
    """The sweep of one shard. It ends with the shard's tasks."""

    def __init__(self, shard: ShardRuntime, keeping: Keeping) -> None:
        self._shard = shard
        self._keeping = keeping
        spans = {keeping.retention_ms, *(self._span_of(name) for name in shard.registry)}
        self._after = {span: FIRST for span in spans if span is not None}
        self._last_ms = 0

    def _span_of(self, type: str) -> int | None:
        """How long runs of this workflow are kept; None: for ever, or as long as this process is not asked."""
        found = self._shard.registry.get(type)
        if found is None:
            return None
        return self._keeping.retention_ms if found.retention_ms is None else found.retention_ms

    def begin(self) -> None:
        if self._after:
            self._shard.spawn(self._sweep_for_ever())

    async def _sweep_for_ever(self) -> None:
        pause = min(max(min(self._after) / 2000, PAUSE_FIRST_S), PAUSE_MOST_S)
        while True:
            try:
                await self.sweep()
            except FuseeError as e:
                LOG.warning("shard %s: runs whose retention has ended stay a little longer: %s", self._shard.shard, e)
            await asyncio.sleep(pause)

    async def sweep(self) -> None:
        """Delete what is due now."""
        now, lsn = self._shard.clock(), self._shard.lsn
        if now < self._last_ms:
            self._after = dict.fromkeys(self._after, FIRST)
        self._last_ms = now
        for span in self._after:
            while rows := await self._shard.home.read("expired", (now - span, PAGE, self._after[span]), lsn):
                for row in rows:
                    if self._span_of(row.type) == span:
                        self.delete(row.run)
                self._after[span] = (rows[-1].due, rows[-1].run)
                self._shard.work_soon()

    def delete(self, run: int, request: str = "") -> int:
        """Record that an ended run is gone, and return the record's LSN."""
        shard, apart = self._shard, self._shard.payloads.apart
        archive = self._keeping.archive
        if apart is not None and archive:
            apart.archive(run)
        lsn = shard.append(r.encode(r.Deleted(run, shard.clock(), request, archive)))
        if apart is not None and not archive:
            shard.when_applied(lsn, lambda: apart.forget(run))
        return lsn
