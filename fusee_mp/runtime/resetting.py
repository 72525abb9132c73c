# Resetting: a run ends, or has ended, and another one of its ID goes on from a point of its journal.
#
# Rule 1: the journal is read from the store, whole. An open run is frozen for that: its code is dropped, what arrives is recorded and
#         waits. When the reset cannot be, it is let go on from its journal.
# Rule 2: the old run's end and the new run's whole journal are recorded together: a crash leaves all of it or nothing.
# Rule 3: a refusal that the journal alone decides (an unknown step) comes before the run is touched.
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec import structs

from fusee_mp.bounds import TOGETHER_BYTES_MAX
from fusee_mp.core import records as r
from fusee_mp.core.calls import ResetCall
from fusee_mp.core.reset import Plan, moved, plan
from fusee_mp.errors import Busy, FuseeError, Rejected
from fusee_mp.runtime.children import send_to_child
from fusee_mp.runtime.entries import Entry, lsn_of, missing, number_of
from fusee_mp.runtime.run import Run
from fusee_mp.runtime.steps import StepCall

if TYPE_CHECKING:
    from fusee_mp.runtime.calls import Calls
    from fusee_mp.runtime.home import Found
    from fusee_mp.runtime.shard_runtime import ShardRuntime
    from fusee_mp.store.results import Journal

# Each takes a few ms; only something that arrives in every one of them makes another necessary.
LOOKS_MAX: Final = 100


class Reset:
    """One reset under way."""

    def __init__(self, shard: ShardRuntime, calls: Calls, call: ResetCall) -> None:
        self._shard = shard
        self._calls = calls
        self._call = call
        self._entry: Run | Found | None = None
        self._running: list[tuple[str, str]] = []
        self._looks = 0

    def begin(self) -> None:
        self._shard.with_run(self._call.id, self._found)

    def _found(self, entry: Entry) -> None:
        if entry is None:
            self._refuse(missing(self._call.id))
        elif isinstance(entry, FuseeError):
            self._refuse(entry)
        else:
            self._entry = entry
            self._look(entry)

    def _look(self, entry: Run | Found) -> None:
        self._looks += 1
        if self._looks > LOOKS_MAX:
            self._refuse(Busy(f'workflow "{self._call.id}" is too busy to be reset: try again, or pause it first', id=self._call.id))
            return
        self._shard.ask_keeper("fetch", (number_of(entry),), self._fetched, lsn_of(entry))

    def _fetched(self, journal: Journal | None, error: FuseeError | None) -> None:
        entry, shard = self._entry, self._shard
        assert entry is not None
        newest = shard.by_id.get(self._call.id)
        if error is not None:
            self._refuse(error)
        elif journal is None or newest is not None and newest is not entry or isinstance(entry, Run) and entry.left_memory:
            self._looks += 1
            self.begin()  # another run has come, this one was deleted, or it left memory
        else:
            try:
                self._decide(entry, journal)
            except FuseeError as e:
                self._refuse(e)

    def _decide(self, entry: Run | Found, journal: Journal) -> None:
        """Raises Rejected when there is no such step, or too much to keep."""
        if not journal.data:
            raise Rejected(
                f'workflow "{entry.id}" cannot be reset: the journals of ended runs are not kept here (keep_history)', id=entry.id)
        is_open = isinstance(entry, Run) and not entry.is_over
        if isinstance(entry, Run) and is_open and not entry.is_frozen:
            self._running = [(op, waiter.name) for op, waiter in entry.journal.open.items() if isinstance(waiter, StepCall)]
        records: list[Any] = [self._shard.payloads.opened(r.decode(data)) for data in r.unframe(journal.data)]
        planned = plan(records, self._call.step, self._call.occurrence, self._running)
        _check_size(entry.id, planned)
        if isinstance(entry, Run) and is_open:
            entry.freeze()
            if journal.lsn != entry.gate:
                self._look(entry)  # something was recorded meanwhile
                return
        self._carry_out(entry, planned, is_open)

    def _carry_out(self, entry: Run | Found, planned: Plan, is_open: bool) -> None:
        shard = self._shard
        with shard.together():
            if is_open and isinstance(entry, Run):
                self._end(entry, planned)
            number, shard.next_run = shard.next_run, shard.next_run + 1
            again = None if is_open else planned.unanswered
            start = planned.kept[0]
            assert isinstance(start, r.Start)
            records = [self._start(start, number, is_open), *self._moved(planned, number, again or set())]
            encoded = [shard.encode(record) for record in records]
            for data in encoded:
                shard.append(data)
        shard.metrics.starts += 1
        run = shard.residence.revive(shard.lsn, b"".join(map(r.frame, encoded)))
        for record in records:
            if isinstance(record, r.Child) and record.no:
                shard.mail.post(run.id, record.to, record.no, shard.encode(record), run.gate)
        self._calls.done(self._call, run.gate, None)

    def _end(self, run: Run, planned: Plan) -> None:
        """The old run hands on what the kept part has; other children feel its end."""
        kept = planned.children
        for kin in [] if run.offspring is None else list(run.offspring.open()):
            if kin.close != "abandon" and (kin.by, kin.op) not in kept:
                send_to_child(run, "", kin.close, kin)
        run.hands_on = True
        run.finish("reset", b"", f'it was reset to step "{self._call.step}"')

    def _start(self, start: r.Start, number: int, is_open: bool) -> r.Start:
        """The parent of a run that has ended has its answer; the time that a deadline leaves begins anew."""
        deadline = None if start.deadline is None else start.deadline - start.at + self._shard.clock()
        update = None if start.update is None else structs.replace(start.update, run=number)
        return structs.replace(
            start, run=number, request=self._call.request, source=None, origin=start.run, deadline=deadline, update=update,
            parent=start.parent if is_open else None,
        )

    def _moved(self, planned: Plan, number: int, again: set[str]) -> list[r.RunRecord]:
        """again: the children whose shards are asked, since their outcome found no parent: are they still there?"""
        records = [moved(record, number) for record in (*planned.kept[1:], *planned.again)]
        for record in records:
            if isinstance(record, r.Child) and record.op in again:
                record.to, record.no = self._shard.mail.address(record.id)
        latest = max((record.at for record in planned.kept), default=0)
        for record in records[len(planned.kept) - 1:]:
            record.at = latest = max(latest, record.at)
        return records

    def _refuse(self, error: FuseeError) -> None:
        entry = self._entry
        if isinstance(entry, Run):
            thaw(entry)
        self._calls.refuse(self._call, 0 if entry is None else lsn_of(entry), error)


def thaw(run: Run) -> None:
    """A frozen run leaves memory once the store has all of it, and comes back as its journal says."""
    shard = run.shard
    if not run.is_frozen or run.is_over or run.left_memory:
        return
    if run.gate > shard.applied_lsn:
        shard.when_applied(run.gate, lambda: thaw(run))
        return
    run.left_memory = True
    shard.forget(run)
    shard.with_run(run.id, _nothing)


def _nothing(_: Any) -> None:
    """Loading it was all."""


def _check_size(id: str, planned: Plan) -> None:
    size = sum(len(r.encode(record)) + 256 for record in (*planned.kept, *planned.again))
    if size > TOGETHER_BYTES_MAX:
        raise Rejected(
            f'workflow "{id}" cannot be reset there: what is kept comes to {size:,} bytes, of which {TOGETHER_BYTES_MAX:,} can be copied.'
            " Reset it to an earlier step, or start it anew", id=id,
        )
