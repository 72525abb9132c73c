# The code of a run that has ended, once more, so that it can be asked.
#
# It replays its journal on a shard runtime of its own that nothing gets out of: what it records goes nowhere, no effect leaves the
# gate, and an end leaves the code as it stands. The run itself, its record and whoever waits for it are not touched.
from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from fusee_mp.core import records as r
from fusee_mp.core.calls import Outcome
from fusee_mp.errors import Unavailable
from fusee_mp.runtime.limits import NoLimits
from fusee_mp.runtime.residence import recover
from fusee_mp.runtime.run import Run
from fusee_mp.runtime.shard_runtime import ShardRuntime


class _Nowhere:
    """A home that keeps nothing and lets nothing out."""

    refusal = ""
    limits = NoLimits()

    def append(self, records: bytes, count: int) -> None:
        """It is on record already, or was never to be."""

    def lacks(self, workflow: str) -> None:
        pass

    def may_act(self) -> bool:
        return False

    def give_up(self, reason: str) -> None:
        """There is nothing to let go of."""

    def relay(self, to: int, messages: Sequence[tuple[int, bytes]]) -> None:
        """Nobody is there."""

    def relay_ack(self, sender: int, through: int) -> None:
        """Nobody is there."""

    async def read(self, method: str, args: tuple[Any, ...], min_lsn: int = 0) -> Any:
        raise Unavailable("a run that has ended has no store of its own")


class _Afterlife(ShardRuntime):
    """A shard of one run, that stands still."""

    def __init__(self, shard: ShardRuntime, at: int) -> None:
        super().__init__(
            shard.shard, shard.shards, shard.registry, _Nowhere(), clock=lambda: at, draw=lambda: 0.5, crew=shard.crew, park_after_ms=None,
        )
        self._working = True  # so nothing ever makes it work

    def finish(
        self, run: Run, status: r.FinalStatus, payload: bytes, reason: str, request: str, source: r.Source | None
    ) -> None:
        run.outcome = Outcome(status, payload, reason, run.journal.start.type)


@contextmanager
def revived(shard: ShardRuntime, data: bytes) -> Iterator[Run]:
    """The run that has this journal, as its code stood at the end. Raises the FuseeError for which it cannot be replayed."""
    records, journal, error = recover(data, shard.payloads)
    if error is not None:
        raise error
    after = _Afterlife(shard, journal.latest)
    run = Run(after, journal, shard.registry.get(journal.start.type), len(records))
    run.remember_children(records)
    crew, shards = shard.crew, shard.crew.shards
    crew.shards = [*shards, after]  # so that a turn without an end is interrupted here too
    try:
        run.pump()
        if run.quarantined is not None:
            raise run.quarantined
        journal.replaying = False
        yield run
    finally:
        crew.shards = shards
        run.drop()
        after.close()
