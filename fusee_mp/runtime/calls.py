# Calls on one shard: what clients and handles may ask of the runtime that holds it.
#
# Rule 1: an answer leaves only when every record it rests on is durable, also a refusal that rests on a record.
# Rule 2: a call that changes something has a request ID; repeated, it changes nothing and gets the answer of the first.
# Rule 3: what is asked of one ID is done in the order in which it came, also while the ID is being looked up or its run loaded.
from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from fusee_mp.core import records as r
from fusee_mp.core.calls import Call, CancelCall, Mutation, Outcome, ResultCall, SignalCall, StartCall, Started, StartedCall, TerminateCall
from fusee_mp.core.journal import Journal
from fusee_mp.errors import AlreadyExists, FuseeError, NotFound, Rejected, StorageFull, UnknownWorkflow
from fusee_mp.runtime.home import Found
from fusee_mp.runtime.run import BEHAVIOUR, Run

if TYPE_CHECKING:
    from fusee_mp.runtime.shard_runtime import ShardRuntime

Entry: TypeAlias = "Run | Found | FuseeError | None"
# reply(value, None) or reply(None, error); called once, on the loop.
Reply: TypeAlias = Callable[[Any, "FuseeError | None"], None]


class Calls:
    """Carries out calls on one shard."""

    def __init__(self, shard: ShardRuntime) -> None:
        self._shard = shard
        # Requests whose records the store may not have yet, with the answer; older ones are asked of the keeper.
        self._recent: dict[str, tuple[int, Any]] = {}
        self._results: dict[str, list[Reply]] = {}
        self._starts: dict[str, list[Reply]] = {}
        self._does: dict[type, Callable[[Any, Reply], None]] = {
            StartCall: self._start, SignalCall: self._signal, CancelCall: self._cancel, TerminateCall: self._terminate,
            ResultCall: self._result, StartedCall: self._started,
        }

    def do(self, call: Call, reply: Reply) -> None:
        """Carry out a call; `reply` hears of it once. From a plain callback of the loop."""
        self._shard.metrics.calls += 1
        do = self._does[type(call)]
        if isinstance(call, (ResultCall, StartedCall)):
            do(call, reply)
        elif (known := self._recent.get(call.request)) is not None:
            self._shard.hold(known[0], reply, known[1], None)
        elif call.repeat:
            self._shard.ask_keeper("request", (call.request,), lambda row, error: self._answered_before(call, reply, row, error))
        else:
            do(call, reply)

    def _answered_before(self, call: Mutation, reply: Reply, row: Any, error: FuseeError | None) -> None:
        if error is not None:
            reply(None, error)
        elif row is None and call.request not in self._recent:
            self._does[type(call)](call, reply)
        elif row is None:
            lsn, answer = self._recent[call.request]
            self._shard.hold(lsn, reply, answer, None)
        else:
            reply(Started(row[0], True) if isinstance(call, StartCall) else None, None)

    def _done(self, request: str, lsn: int, answer: Any, reply: Reply) -> None:
        """A mutation is recorded at `lsn`: answer when that is durable, and remember until the store has it."""
        if request:
            self._recent[request] = (lsn, answer)
            self._shard.when_applied(lsn, lambda: self._recent.pop(request, None))
        self._shard.hold(lsn, reply, answer, None)

    # Starting.

    def _start(self, call: StartCall, reply: Reply) -> None:
        shard = self._shard
        if shard.registry.get(call.type) is None:
            reply(None, UnknownWorkflow(
                f'workflow "{call.type}" is not registered here. Registered: {shard.registry.names()}.'
                " Give it to the engine's or the worker's workflows=[..]", workflow=call.type,
            ))
        elif refusal := shard.home.refusal:
            reply(None, StorageFull(f'workflow "{call.type}" is not started: {refusal}', id=call.id))
        else:
            shard.with_id(call.id, lambda entry: self._start_beside(call, reply, entry))

    def _start_beside(self, call: StartCall, reply: Reply, entry: Entry) -> None:
        if isinstance(entry, FuseeError):
            reply(None, entry)
        elif entry is None:
            self._start_new(call, reply)
        elif _is_open(entry):
            self._start_while_open(call, reply, entry)
        elif call.on_finished == "allow" or call.on_finished == "allow_if_failed" and _status(entry) != "ok":
            self._start_new(call, reply)
        elif call.on_finished == "use_existing":
            self._done(call.request, self._lsn(entry), Started(_number(entry), False), reply)
        else:
            self._taken(call, reply, entry)

    def _start_while_open(self, call: StartCall, reply: Reply, entry: Run | Found) -> None:
        if call.on_running == "use_existing":
            self._done(call.request, self._lsn(entry), Started(_number(entry), False), reply)
        elif call.on_running == "fail":
            self._taken(call, reply, entry)
        elif isinstance(entry, Run):
            entry.finish("terminated", b"", "a new run of the same ID was started with on_running=\"terminate\"")
            self._start_new(call, reply)
        else:
            self._shard.with_run(call.id, lambda run: self._start_beside(call, reply, run))

    def _taken(self, call: StartCall, reply: Reply, entry: Run | Found) -> None:
        error = AlreadyExists(
            f'workflow ID "{call.id}" is taken by run {_number(entry)} ({_status(entry)}).'
            ' Use another ID, or say on_running= / on_finished= what to do with that run', id=call.id, run=_number(entry), status=_status(entry),
        )
        self._shard.hold(self._lsn(entry), reply, None, error)

    def _start_new(self, call: StartCall, reply: Reply) -> None:
        now = self._shard.clock()
        deadline = None if call.deadline_ms is None else now + call.deadline_ms
        run = self.new_run(r.Start(
            0, now, call.id, call.type, call.input, call.request, deadline=deadline, attributes=call.attributes,
        ))
        self._done(call.request, run.gate, Started(run.number, True), reply)

    def new_run(self, start: r.Start) -> Run:
        """Record a start, give the run its number, and let its code begin in the next turn."""
        shard = self._shard
        registered = shard.registry.get(start.type)
        start.run, shard.next_run = shard.next_run, shard.next_run + 1
        start.behaviour, start.seed = BEHAVIOUR, int(shard.draw() * (1 << 62))
        start.version = registered.version if registered else 0
        gate = shard.append(r.encode(start))
        run = Run(shard, Journal(start), registered, gate)
        shard.metrics.starts += 1
        shard.enter(run)
        for waiting in self._starts.pop(start.id, ()):
            shard.hold(gate, waiting, None, None)
        return run

    # What is asked of a run.

    def _signal(self, call: SignalCall, reply: Reply) -> None:
        def deliver(run: Run) -> None:
            run.record_outcome(r.Signal(run.number, run.tick(), call.name, call.payload, call.request))
            self._done(call.request, run.gate, None, reply)

        self._with_open_run(call.id, reply, deliver)

    def _cancel(self, call: CancelCall, reply: Reply) -> None:
        def deliver(run: Run) -> None:
            run.record_outcome(r.CancelRequested(run.number, run.tick(), call.reason, call.request))
            self._done(call.request, run.gate, None, reply)

        self._with_open_run(call.id, reply, deliver)

    def _terminate(self, call: TerminateCall, reply: Reply) -> None:
        def deliver(run: Run) -> None:
            run.finish("terminated", b"", call.reason, call.request)
            self._done(call.request, run.gate, None, reply)

        self._with_open_run(call.id, reply, deliver)

    def _with_open_run(self, id: str, reply: Reply, deliver: Callable[[Run], None]) -> None:
        def entered(entry: Entry) -> None:
            if isinstance(entry, FuseeError):
                reply(None, entry)
            elif entry is None:
                reply(None, _missing(id))
            elif isinstance(entry, Run) and not entry.is_over:
                deliver(entry)
            else:
                error = Rejected(f'workflow "{id}" has ended as {_status(entry)}: nothing can be sent to it', id=id, status=_status(entry))
                self._shard.hold(self._lsn(entry), reply, None, error)

        self._shard.with_run(id, entered)

    def _result(self, call: ResultCall, reply: Reply) -> None:
        def entered(entry: Entry) -> None:
            if isinstance(entry, FuseeError):
                reply(None, entry)
            elif entry is None:
                reply(None, _missing(call.id))
            elif _is_open(entry):
                self._results.setdefault(call.id, []).append(reply)
            elif isinstance(entry, Run):
                self._shard.hold(entry.gate, reply, entry.outcome, None)
            else:
                reply(Outcome(entry.status, entry.payload, entry.reason, entry.type), None)

        self._shard.with_id(call.id, entered)

    def _started(self, call: StartedCall, reply: Reply) -> None:
        def entered(entry: Entry) -> None:
            if isinstance(entry, FuseeError):
                reply(None, entry)
            elif entry is None:
                self._starts.setdefault(call.id, []).append(reply)
            else:
                self._shard.hold(self._lsn(entry), reply, None, None)

        self._shard.with_id(call.id, entered)

    def ended(self, run: Run) -> None:
        """A run has its end on record: answer those who wait for it."""
        for reply in self._results.pop(run.id, ()):
            self._shard.hold(run.gate, reply, run.outcome, None)

    def forget(self, reply: Reply) -> None:
        """Nobody waits for this answer any more."""
        for table in (self._results, self._starts):
            for id, replies in list(table.items()):
                if reply in replies:
                    replies.remove(reply)
                    if not replies:
                        del table[id]

    def fail_all(self, error: FuseeError) -> None:
        """The shard is leaving: those who wait are told, and ask again where it goes."""
        waiting = [reply for table in (self._results, self._starts) for replies in table.values() for reply in replies]
        self._results.clear()
        self._starts.clear()
        for reply in waiting:
            reply(None, error)

    def _lsn(self, entry: Run | Found) -> int:
        return entry.gate if isinstance(entry, Run) else 0


def _missing(id: str) -> NotFound:
    return NotFound(f'no run has the workflow ID "{id}": it was never started, or its retention has ended', id=id)


def _is_open(entry: Run | Found) -> bool:
    return not entry.is_over if isinstance(entry, Run) else entry.is_open


def _number(entry: Run | Found) -> int:
    return entry.number if isinstance(entry, Run) else entry.run


def _status(entry: Run | Found) -> str:
    if isinstance(entry, Found):
        return entry.status
    return entry.outcome.status if entry.outcome is not None else "running"
