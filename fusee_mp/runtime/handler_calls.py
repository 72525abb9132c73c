# Queries and updates, as they are asked of a shard.
#
# Rule 1: an update's ID counts within its run, for as long as the run is kept: whoever comes with it again gets the outcome of the
#         first, while its handler runs, after a crash, and after the run's end. Runs that continue as new hand the IDs on.
# Rule 2: an update that the run accepted is answered: with what its handler came to, or with how the run ended before that.
# Rule 3: a query is asked of the code. Where that has left memory it is loaded, or replayed apart when the run has ended.
from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from fusee_mp.core import records as r
from fusee_mp.core.calls import Outcome, QueryCall, StartWithUpdateCall, UpdateCall
from fusee_mp.errors import FuseeError, Rejected
from fusee_mp.runtime.entries import Entry, lsn_of, missing, too_late
from fusee_mp.runtime.handlers import Handlers, Updating, answered_before, outcomes_of
from fusee_mp.runtime.home import Found
from fusee_mp.runtime.run import Run

if TYPE_CHECKING:
    from fusee_mp.runtime.calls import Calls, Reply
    from fusee_mp.runtime.shard_runtime import ShardRuntime
    from fusee_mp.store.results import Journal


class HandlerCalls:
    """Carries out queries and updates on one shard."""

    def __init__(self, shard: ShardRuntime, calls: Calls) -> None:
        self._shard = shard
        self._calls = calls
        self._waiting: dict[int, dict[str, list[Updating]]] = {}  # for accepted updates, by run and the update's ID
        self._for_others: list[Callable[[], object]] = []  # for whoever has the code, who answers them; each asks again

    # Updates.

    def update(self, call: UpdateCall) -> None:
        self._shard.with_run(call.id, lambda entry: self._update(call, entry))

    def _update(self, call: Updating, entry: Entry) -> None:
        if isinstance(entry, FuseeError):
            self._calls.refuse(call, 0, entry)
        elif entry is None:
            self._calls.refuse(call, 0, missing(call.id))
        elif isinstance(entry, Run) and not entry.is_over:
            self._ask(call, entry)
        else:
            self._find(call, entry, lambda: self._calls.refuse(call, lsn_of(entry), too_late(entry)))

    def start_with_update(self, call: StartWithUpdateCall) -> None:
        self._shard.with_run(call.id, lambda entry: self._start_with_update(call, entry))

    def _start_with_update(self, call: StartWithUpdateCall, entry: Entry) -> None:
        if entry is None:
            self._start(call)
        elif isinstance(entry, FuseeError) or isinstance(entry, Run) and not entry.is_over:
            self._update(call, entry)
        else:
            self._find(call, entry, lambda: self._shard.with_run(call.id, lambda entry: self._start_unless_open(call, entry)))

    def _start_unless_open(self, call: StartWithUpdateCall, entry: Entry) -> None:
        if isinstance(entry, FuseeError) or isinstance(entry, Run) and not entry.is_over:
            self._update(call, entry)
        else:
            self._start(call)

    def _start(self, call: StartWithUpdateCall) -> None:
        refusal = self._calls.start_refusal(call)
        if refusal is not None:
            self._calls.refuse(call, 0, refusal)
            return
        now = self._shard.clock()
        update = r.Update(0, now, call.name, call.update, call.payload, call.request)
        self.attach(call, self._calls.new_run(r.Start(0, now, call.id, call.type, call.input, call.request, update=update)))

    def _ask(self, call: Updating, run: Run) -> None:
        """The run is open and in memory: let its code decide in its next turn."""
        handlers = run.with_handlers()
        if call.update in handlers.outcomes:
            self.attach(call, run)
        elif (number := answered_before(run.journal.start, call.update)) is not None:
            self._earlier(call, number, run.gate)
        elif run.quarantined is not None:
            self._refuse_aside(call, run, run.quarantined)
        else:
            handlers.waiting.append(call)
            self._shard.wake(run)

    def attach(self, call: Updating, run: Run) -> None:
        """The run has accepted this update, now or before: answer with what it comes to."""
        outcome = run.with_handlers().outcomes.get(call.update)
        if outcome is None:
            outcome = run.outcome  # it ended without waiting: terminated, or past its deadline
        if outcome is not None:
            self._calls.done(call, run.gate, outcome)
        else:
            self._waiting.setdefault(run.number, {}).setdefault(call.update, []).append(call)

    def handled(self, run: Run, update: str, outcome: Outcome) -> None:
        """A handler's end is recorded."""
        waiting = self._waiting.get(run.number)
        if waiting is None:
            return
        for call in waiting.pop(update, ()):
            self._calls.done(call, run.gate, outcome)
        if not waiting:
            del self._waiting[run.number]

    def repeated(self, call: Updating, number: int) -> None:
        """The call's request is on record in this run, which may not be the newest of its ID."""
        def entered(entry: Entry) -> None:
            if isinstance(entry, Run) and entry.number == number:
                self.attach(call, entry)
            else:
                self._read(call, number, lambda: self._calls.refuse(call, 0, missing(call.id)))

        self._shard.with_run(call.id, entered)

    def _find(self, call: Updating, entry: Run | Found, otherwise: Callable[[], object]) -> None:
        """The run has ended: answer if it had accepted this update."""
        if isinstance(entry, Found):
            # An ID made for this call alone is known only where the call was sent before.
            otherwise() if call.update == call.request and not call.repeat else self._read(call, entry.run, otherwise)
        elif entry.handlers is not None and call.update in entry.handlers.outcomes:
            self.attach(call, entry)
        elif (number := answered_before(entry.journal.start, call.update)) is not None:
            self._earlier(call, number, entry.gate)
        else:
            otherwise()

    def _earlier(self, call: Updating, number: int, lsn: int) -> None:
        """A run that went on in this one has carried it out: never again, also where its journal is gone."""
        said = (f'update "{call.update}" of workflow "{call.id}" was carried out by run {number}, which continued as new and whose journal'
                " is not kept: what it came to is not known any more")
        self._read(call, number, lambda: self._calls.refuse(call, 0, Rejected(said, id=call.id, update=call.update)), lsn)

    def _read(self, call: Updating, number: int, otherwise: Callable[[], object], lsn: int = 0) -> None:
        def read(journal: Journal | None, error: FuseeError | None) -> None:
            shown = self._shard.payloads.shown
            records = [] if journal is None else [shown(r.decode(data)) for data in r.unframe(journal.data)]
            outcomes = outcomes_of(records)
            if error is not None:
                self._calls.refuse(call, 0, error)
            elif call.update in outcomes:
                self._calls.done(call, 0, outcomes[call.update] or _end_of(records))
            elif records and (earlier := answered_before(_start_of(records), call.update)) is not None:
                self._earlier(call, earlier, lsn)
            else:
                otherwise()

        self._shard.ask_keeper("fetch", (number,), read, lsn)

    # Queries.

    def query(self, call: QueryCall, reply: Reply) -> None:
        self._shard.with_run(call.id, lambda entry: self._query(call, reply, entry))

    def _query(self, call: QueryCall, reply: Reply, entry: Entry) -> None:
        tell = self._calls.tell
        if isinstance(entry, FuseeError):
            tell(reply, None, entry)
        elif entry is None:
            tell(reply, None, missing(call.id))
        elif isinstance(entry, Found) or entry.is_over:
            number = entry.run if isinstance(entry, Found) else entry.number
            self._shard.ask_keeper("fetch", (number,), lambda journal, error: self._replay(call, reply, journal, error), lsn_of(entry))
        elif entry.quarantined is not None:
            self._tell_aside(call, reply, entry, entry.quarantined)
        else:
            entry.with_handlers().asking.append((call, reply))
            self._shard.wake(entry)

    def answered(self, run: Run, reply: Reply, answer: Outcome | None, error: FuseeError | None) -> None:
        """What the code says, resting on all that it has been told."""
        self._shard.hold(run.gate, self._calls.tell, reply, answer, error)

    def _replay(self, call: QueryCall, reply: Reply, journal: Journal | None, error: FuseeError | None) -> None:
        """The run has ended: its code says what it would have said at the end."""
        if error is None and journal is None:
            error = missing(call.id)
        if error is not None or journal is None:
            self._calls.tell(reply, None, error)
            return
        if not journal.data:
            said = (f'workflow "{call.id}" has ended, and the journals of ended runs are not kept here (keep_history), so its code'
                    " cannot be asked")
            self._calls.tell(reply, None, Rejected(said, id=call.id))
            return
        from fusee_mp.runtime.revival import revived  # which is built on the shard's runtime, and that on this

        try:
            with revived(self._shard, journal.data) as run:
                self._calls.tell(reply, *run.with_handlers().query(call))
        except FuseeError as e:
            self._calls.tell(reply, None, e)

    # What becomes of a run.

    def ended(self, run: Run) -> None:
        """The run's end is recorded: nobody waits for it any more."""
        assert run.outcome is not None
        for waiting in self._waiting.pop(run.number, {}).values():
            for accepted in waiting:
                if run.hands_on:  # the run that goes on has accepted it too, or is asked
                    self._shard.hold(run.gate, self.update, accepted)
                else:
                    self._calls.done(accepted, run.gate, run.outcome)
        for call, reply in self._taken_back(run.handlers):
            if isinstance(call, QueryCall):
                self._shard.hold(run.gate, self.query, call, reply)
            elif isinstance(call, StartWithUpdateCall):
                self._shard.hold(run.gate, self.start_with_update, call)
            elif run.hands_on:
                self._shard.hold(run.gate, self.update, call)
            else:  # not accepted, or the same that was
                self._find(call, run, partial(self._calls.refuse, call, run.gate, too_late(run)))

    def set_aside(self, run: Run, error: FuseeError) -> None:
        """The run is quarantined. Updates that it accepted wait on for code that fits."""
        for call, reply in self._taken_back(run.handlers):
            if isinstance(call, QueryCall):
                self._tell_aside(call, reply, run, error)
            else:
                self._refuse_aside(call, run, error)

    def _refuse_aside(self, call: Updating, run: Run, error: FuseeError) -> None:
        if self._shard.is_for_others(run):
            again = partial(self.update, call) if isinstance(call, UpdateCall) else partial(self.start_with_update, call)
            self._for_others.append(again)
        else:
            self._calls.refuse(call, run.gate, _quarantined(run, error))

    def _tell_aside(self, call: QueryCall, reply: Reply, run: Run, error: FuseeError) -> None:
        if self._shard.is_for_others(run):
            self._for_others.append(partial(self.query, call, reply))
        else:
            self._shard.hold(run.gate, self._calls.tell, reply, None, _quarantined(run, error))

    def others_changed(self) -> None:
        """Other processes have other code now: what waited for one of them may have nobody to wait for."""
        waiting, self._for_others = self._for_others, []
        for again in waiting:
            again()

    def _taken_back(self, handlers: Handlers | None) -> list[tuple[Updating | QueryCall, Any]]:
        if handlers is None:
            return []
        taken: list[tuple[Updating | QueryCall, Any]] = [(call, None) for call in handlers.waiting]
        taken += handlers.asking
        handlers.waiting.clear()
        handlers.asking.clear()
        return taken

    def close(self) -> None:
        """The shard is leaving; those who wait are told by `Calls`."""
        self._waiting.clear()
        self._for_others.clear()


def _start_of(records: list[r.Record]) -> r.Start:
    start = records[0]
    assert isinstance(start, r.Start)
    return start


def _end_of(records: list[r.Record]) -> Outcome:
    """How a run ended that left an update without an outcome."""
    start, done = records[0], next((record for record in records if isinstance(record, r.Done)), None)
    kind = start.type if isinstance(start, r.Start) else ""
    return Outcome("terminated", b"", "", kind) if done is None else Outcome(done.status, done.payload, done.reason, kind)


def _quarantined(run: Run, error: FuseeError) -> Rejected:
    return Rejected(
        f'workflow "{run.id}" is quarantined, so its code cannot be asked until a worker\'s code fits it, or it is reset: {error.message}',
        id=run.id, status="quarantined", reason=error.code,
    )
