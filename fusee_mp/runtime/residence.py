# Which runs are in memory.
#
# A run that waits only for timers, signals and children is quiet; a record says so, so that a takeover need not load it. Quiet for
# `park_after`, it is parked: its code is dropped, and a later arrival or timer loads it again.
# Rule 1: a run, its ID and its timers leave memory only when the keeper has applied its last record.
# Rule 2: a run that left is found by reading the store, never by remembering it.
# Rule 3: timers due within `horizon` stay here when their run leaves; later ones are read from the store before they are due.
from __future__ import annotations

import logging
import sys
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Any, Final

from fusee_mp.core import records as r
from fusee_mp.core.journal import Journal
from fusee_mp.errors import FuseeError, StorageError
from fusee_mp.payload.sealing import Payloads
from fusee_mp.runtime.home import Found
from fusee_mp.runtime.run import Run
from fusee_mp.runtime.weight import RUN_BYTES, Budget, weight

if TYPE_CHECKING:
    from fusee_mp.runtime.shard_runtime import ShardRuntime
    from fusee_mp.store.results import Journal as StoredJournal

LOG: Final = logging.getLogger("fusee_mp.shard")
PAGE_MS: Final = 60_000
PAGE_RUNS: Final = 256
RUN_MAX: Final = (1 << 63) - 1
DEAD_TIMERS_MAX: Final = 4_096
CROWD: Final = 64


class ParkedTimer:
    """A timer of a run that is not in memory: when it is due, the run is loaded."""

    __slots__ = ("shard", "id", "at_ms")

    def __init__(self, shard: ShardRuntime, id: str, at_ms: int) -> None:
        self.shard = shard
        self.id = id
        self.at_ms = at_ms

    @property
    def is_open(self) -> bool:
        return True

    def due(self) -> None:
        # Loading asks for its timers again, and those that are due fire at once.
        self.shard.with_run(self.id, lambda _: None)


class Deadline:
    """The time by which a run must have ended."""

    __slots__ = ("shard", "number")

    def __init__(self, shard: ShardRuntime, number: int) -> None:
        self.shard = shard
        self.number = number  # not the run itself, which most often ends long before

    @property
    def is_open(self) -> bool:
        run = self.shard.by_number.get(self.number)
        return run is not None and not run.is_over

    def due(self) -> None:
        if self.is_open:
            self.shard.by_number[self.number].finish("timed_out", b"", "its deadline has passed")


class Residence:
    """Marks runs quiet, parks them, and lets finished ones go."""

    def __init__(self, shard: ShardRuntime, park_after_ms: int | None, budget: Budget) -> None:
        self._shard = shard
        self._budget = budget
        self._idle_bytes = 0
        self._is_hurrying = False
        self.crowd = sys.maxsize if budget.bytes_max is None else CROWD  # so many had a turn: look at them now
        budget.add(self)
        self.park_after_ms = park_after_ms
        self.touched: dict[int, Run] = {}  # had a turn since the last look
        self._idle: OrderedDict[int, Run] = OrderedDict()  # quiet, the longest first
        self._leaving: deque[tuple[int, Run]] = deque()
        self.horizon_ms = 0

    @property
    def needs_tending(self) -> bool:
        return bool(self.touched) or bool(self._idle) and self.park_after_ms is not None

    def tend(self) -> None:
        """A look at the runs that had a turn, and at those that have been quiet for long."""
        now = self._shard.clock()
        touched, self.touched = self.touched, {}
        for number, run in touched.items():
            self._not_idle(number)
            if run.is_quiet and not run.left_memory:
                if not run.quiet:
                    self._mark(run, parked=False)
                run.touched_ms = now
                self._idle[number] = run
                if self._budget.bytes_max is not None:
                    run.weight = weight(run)
                    self._idle_bytes += run.weight
        self._budget.enforce()
        if self.park_after_ms is not None:
            self._park_idle(now - self.park_after_ms)
        self._sweep()

    def _mark(self, run: Run, parked: bool) -> None:
        run.gate = self._shard.append(r.encode(r.Quiet(run.number, run.tick(), run.next_due, parked)))
        run.quiet, run.is_parked = True, parked

    def _park_idle(self, before_ms: int) -> None:
        while self._idle:
            run = next(iter(self._idle.values()))
            if run.touched_ms > before_ms:
                return
            self.park_longest()

    def _not_idle(self, number: int) -> None:
        run = self._idle.pop(number, None)
        if run is not None:
            self._idle_bytes -= run.weight

    @property
    def loaded_bytes(self) -> int:
        """What its runs take, estimated."""
        return self._idle_bytes + RUN_BYTES * (len(self._shard.by_number) - len(self._idle))

    @property
    def quiet_since(self) -> int | None:
        """Since when the run is quiet that has been so for longest."""
        return next(iter(self._idle.values())).touched_ms if self._idle else None

    def park_longest(self) -> int:
        """Park the run that has been quiet for longest; what it took, estimated."""
        run = next(iter(self._idle.values()))
        self._not_idle(run.number)
        if run.quiet and run.is_quiet:
            self.park(run)
            self._shard.work_soon()
        return max(run.weight, RUN_BYTES)

    def hurry(self) -> None:
        """Parked runs leave memory once the keeper has applied their records: let it do so now."""
        if not self._is_hurrying:
            self._is_hurrying = True
            self._shard.ask_keeper("by_run", (0,), self._hurried, self._shard.lsn)

    def _hurried(self, _: object, __: object) -> None:
        self._is_hurrying = False

    def close(self) -> None:
        """The shard leaves this process."""
        self._budget.remove(self)

    def park(self, run: Run) -> None:
        """A quiet run leaves memory; its next arrival loads it again."""
        if not run.quiet or not run.is_parked:
            self._mark(run, parked=True)
        self.leave(run)

    def leave(self, run: Run) -> None:
        """The run may leave memory once the keeper has applied its last record, if it has no other by then."""
        if run.gate <= self._shard.applied_lsn and not run.left_memory:
            self._let_go(run)
        else:
            self._leaving.append((run.gate, run))

    def applied(self, lsn: int) -> None:
        while self._leaving and self._leaving[0][0] <= lsn:
            gate, run = self._leaving.popleft()
            if run.gate == gate and not run.left_memory and not (run.handlers is not None and run.handlers.is_asked):
                self._let_go(run)

    def _let_go(self, run: Run) -> None:
        shard = self._shard
        if not run.is_over:
            shard.metrics.parked += run.quarantined is None
            due = run.next_due
            if due is not None and due <= self.horizon_ms:
                shard.timers.add(due, ParkedTimer(shard, run.id, due))
        run.drop()
        run.left_memory = True
        self._budget.freed(run.weight)
        shard.forget(run)
        shard.dead_timers += 1

    def _sweep(self) -> None:
        """Timers that were given up stay where they are until they are many."""
        shard = self._shard
        if shard.dead_timers > DEAD_TIMERS_MAX and shard.dead_timers * 2 > len(shard.timers):
            shard.timers.keep(lambda timer: timer.is_open)
            shard.dead_timers = 0

    # Back into memory.

    async def load(self, found: Found) -> Run | None:
        """Read the run's journal and let its code replay it in the next turn. None when the run is gone meanwhile."""
        journal = await self._shard.home.read("fetch", (found.run,))
        return None if journal is None else self.revive(journal.lsn, journal.data, found.status)

    def revive(self, last_lsn: int, data: bytes, status: str = "") -> Run:
        shard = self._shard
        shard.metrics.loads += 1
        records, journal, error = recover(data, shard.payloads)
        run = Run(shard, journal, shard.registry.get(journal.start.type), last_lsn)
        run.broken = error
        run.remember(records)
        if shard.payloads.apart is not None:
            shard.payloads.apart.keep(journal.start.run, map(r.decode, r.unframe(data)))
        # Until it has another record, which clears this, the store says what there is to say.
        run.quiet, run.is_parked = status in ("suspended", "parked"), status == "parked"
        shard.enter(run)
        return run

    async def take_over(self) -> None:
        """Load the runs that have something to do, and read the timers that are due soon. Nothing else."""
        after = 0
        while rows := await self._shard.home.read("open_runs", (after, PAGE_RUNS)):
            for row in rows:
                after = row.run
                if row.run not in self._shard.by_number:
                    self._revive_or_leave(row)
            self._shard.work_soon()
        await self.read_timers()

    def _revive_or_leave(self, row: StoredJournal) -> None:
        """A journal that cannot be read concerns its own run alone; who asks for that run is told."""
        try:
            self.revive(row.lsn, row.data)
        except FuseeError as e:
            LOG.error('run %s of workflow ID "%s" is not taken over: %s', row.run, row.id, e)

    async def read_timers(self) -> None:
        """Extend the horizon by a page. When the store does not answer, the horizon stays."""
        shard = self._shard
        first, self.horizon_ms = self.horizon_ms, shard.clock() + PAGE_MS
        after: tuple[int, int] = (first, RUN_MAX)
        try:
            while rows := await shard.home.read("due", (self.horizon_ms, PAGE_RUNS, after)):
                for row in rows:
                    after = (row.due, row.run)
                    if row.run not in shard.by_number:
                        shard.timers.add(row.due, ParkedTimer(shard, row.id, row.due))
        except FuseeError:
            self.horizon_ms = first
            raise
        shard.work_soon()


def recover(data: bytes, payloads: Payloads) -> tuple[list[r.Record], Journal[Any], FuseeError | None]:
    """The records of a stored journal, the journal that hands them over, and why they cannot be handed over: payloads that cannot be
    opened here. Raises StorageError when it cannot be read."""
    error: FuseeError | None = None
    try:
        records = [r.decode(record) for record in r.unframe(data)]
        try:
            records = [payloads.opened(record) for record in records]
        except FuseeError as e:
            error = e
        return records, Journal.recover(records), error  # type: ignore[arg-type]
    except ValueError as e:
        raise StorageError(f"the store holds a journal that cannot be read: {e}. Restore it from a backup, or export what is left") from e
