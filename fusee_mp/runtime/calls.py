# Calls on one shard: what clients and handles may ask of the runtime that holds it.
#
# Rule 1: an answer leaves only when every record it rests on is durable, also a refusal that rests on a record.
# Rule 2: a call that changes something has a request ID; repeated, it changes nothing and gets the answer of the first.
#         That holds from the moment it comes: while the first is under way, its repeats wait for the same answer.
# Rule 3: what is asked of one ID is done in the order in which it came, also while the ID is being looked up or its run loaded.
# Rule 4: every call is answered, once. When the shard leaves, what is still open is answered with the reason.
from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from fusee_mp.core import records as r
from fusee_mp.core.call_checks import fault
from fusee_mp.core.calls import (
    Call,
    CancelCall,
    CompleteCall,
    DeleteCall,
    Mutation,
    Outcome,
    PauseCall,
    QueryCall,
    ResetCall,
    ResultCall,
    ResumeCall,
    SignalCall,
    StartCall,
    Started,
    StartedCall,
    StartWithUpdateCall,
    TerminateCall,
    UpdateCall,
)
from fusee_mp.core.journal import Journal
from fusee_mp.core.time_calls import GatherCall, ScheduleCall, SchedulesCall, SetScheduleCall
from fusee_mp.errors import AlreadyExists, FuseeError, PayloadError, StorageFull, UnknownWorkflow
from fusee_mp.runtime.entries import Entry, is_open, lsn_of, missing, number_of, status_of, too_late
from fusee_mp.runtime.handler_calls import HandlerCalls
from fusee_mp.runtime.home import Found
from fusee_mp.runtime.run import BEHAVIOUR, Run
from fusee_mp.runtime.run_calls import RunCalls
from fusee_mp.runtime.steps import UNSET
from fusee_mp.runtime.timed_calls import TimedCalls, is_timed
from fusee_mp.store.results import Request

if TYPE_CHECKING:
    from fusee_mp.runtime.shard_runtime import ShardRuntime

# reply(value, None) or reply(None, error); called once, on the loop.
Reply: TypeAlias = Callable[[Any, "FuseeError | None"], None]


class Calls:
    """Carries out calls on one shard."""

    def __init__(self, shard: ShardRuntime) -> None:
        self._shard = shard
        self._asking: dict[str, list[Reply]] = {}  # requests that are not answered yet
        # Requests whose records the store may not have yet, with the answer; older ones are asked of the keeper.
        self._recent: dict[str, tuple[int, Any, FuseeError | None]] = {}
        self._waiting: dict[Reply, str] = {}  # who waits for a run of this ID to start or to end
        self._results: dict[str, list[Reply]] = {}
        self._starts: dict[str, list[Reply]] = {}
        self._closed: FuseeError | None = None
        self.handlers = HandlerCalls(shard, self)
        self._of_runs = RunCalls(shard, self)
        self.timed = TimedCalls(shard, self)
        self._does: dict[type, Callable[[Any], None]] = {
            StartCall: self._start, SignalCall: self._signal, CancelCall: self._cancel, TerminateCall: self._terminate,
            UpdateCall: self.handlers.update, StartWithUpdateCall: self.handlers.start_with_update,
            ResetCall: self._of_runs.reset, DeleteCall: self._of_runs.delete, PauseCall: self._of_runs.pause,
            ResumeCall: self._of_runs.resume, CompleteCall: self._of_runs.complete,
            **self.timed.does,
        }

    def do(self, call: Call, reply: Reply) -> None:
        """Carry out a call; `reply` hears of it once. From a plain callback of the loop."""
        self._shard.metrics.calls += 1
        if self._closed is not None:
            reply(None, self._closed)
        elif (wrong := fault(call, self._shard.payloads.bytes_max)) is not None:
            reply(None, wrong)
        elif isinstance(call, QueryCall):
            self._waiting[reply] = call.id
            self.handlers.query(call, reply)
        elif isinstance(call, (ResultCall, StartedCall)):
            self._waiting[reply] = call.id
            self._shard.with_id(call.id, lambda entry: self._look(call, reply, entry))
        elif isinstance(call, (ScheduleCall, SchedulesCall)):
            self._waiting[reply] = call.id if isinstance(call, ScheduleCall) else ""
            self._shard.hold(self._shard.lsn, self.tell, reply, *self.timed.look(call))
        elif (asking := self._asking.get(call.request)) is not None:
            asking.append(reply)
        elif (known := self._recent.get(call.request)) is not None:
            self._asking[call.request] = [reply]
            self._shard.hold(known[0], self._release, call.request, *known[1:])
        else:
            self._asking[call.request] = [reply]
            self._begin(call)

    def _begin(self, call: Mutation) -> None:
        if call.repeat and is_timed(call):
            self.timed.again(call)
        elif call.repeat:
            self._shard.ask_keeper("request", (call.request,), lambda row, error: self._answered_before(call, row, error))
        else:
            self._does[type(call)](call)

    def _answered_before(self, call: Mutation, row: Request | None, error: FuseeError | None) -> None:
        if error is not None:
            self._release(call.request, None, error)
        elif row is not None and isinstance(call, (UpdateCall, StartWithUpdateCall)):
            self.handlers.repeated(call, row.run)
        elif row is not None:
            self._release(call.request, Started(row.run, True) if isinstance(call, StartCall) else None, None)
        else:
            self._does[type(call)](call)

    def done(self, call: Mutation, lsn: int, answer: Any, error: FuseeError | None = None) -> None:
        """A mutation is recorded at `lsn`: answer when that is durable, and remember until the store has it."""
        request = call.request
        self._recent[request] = (lsn, answer, error)
        self._shard.when_applied(lsn, lambda: self._recent.pop(request, None))
        self._shard.hold(lsn, self._release, request, answer, error)

    def refuse(self, call: Mutation, lsn: int, error: FuseeError) -> None:
        """The call changed nothing, which rests on what is recorded up to `lsn`."""
        self._shard.hold(lsn, self._release, call.request, None, error)

    def repeated(self, call: Mutation, answer: Any, error: FuseeError | None = None) -> None:
        """The store has the answer to an earlier call with this request ID, or could not be asked."""
        self._release(call.request, answer, error)

    def begin(self, call: Mutation) -> None:
        """Carry the call out: nothing came with its request ID before."""
        self._does[type(call)](call)

    def _release(self, request: str, answer: Any, error: FuseeError | None) -> None:
        for reply in self._asking.pop(request, ()):
            reply(answer, error)

    # Starting.

    def _start(self, call: StartCall) -> None:
        refusal = self.start_refusal(call)
        if refusal is not None:
            self.refuse(call, 0, refusal)
        else:
            self._shard.with_id(call.id, lambda entry: self._start_beside(call, entry))

    def start_refusal(self, call: StartCall | StartWithUpdateCall | SetScheduleCall | GatherCall) -> FuseeError | None:
        """Why nothing of this type is started here now."""
        shard = self._shard
        if shard.registry.get(call.type) is None and not shard.registry.is_elsewhere(call.type):
            return UnknownWorkflow(
                f'workflow "{call.type}" is not registered here. Registered: {shard.registry.all_names()}.'
                " Add it to the workflows of the engine, or to the module of a worker", workflow=call.type,
            )
        return self.full(call.id, call.type)

    def full(self, id: str, type: str) -> FuseeError | None:
        """Why nothing new is taken now."""
        refusal = self._shard.home.refusal
        return StorageFull(f'workflow "{type}" is not started: {refusal}', id=id) if refusal else None

    def _start_beside(self, call: StartCall, entry: Entry) -> None:
        if isinstance(entry, FuseeError):
            self.refuse(call, 0, entry)
        elif entry is None:
            self._start_new(call)
        elif is_open(entry):
            self._start_while_open(call, entry)
        elif call.on_finished == "allow" or call.on_finished == "allow_if_failed" and status_of(entry) != "ok":
            self._start_new(call)
        elif call.on_finished == "use_existing":
            self.done(call, lsn_of(entry), Started(number_of(entry), False))
        else:
            self._taken(call, entry)

    def _start_while_open(self, call: StartCall, entry: Run | Found) -> None:
        if call.on_running == "use_existing":
            self.done(call, lsn_of(entry), Started(number_of(entry), False))
        elif call.on_running == "fail":
            self._taken(call, entry)
        elif isinstance(entry, Run):
            entry.finish("terminated", b"", "a new run of the same ID was started with on_running=\"terminate\"")
            self._start_new(call)
        else:
            self._shard.with_run(call.id, lambda run: self._start_beside(call, run))

    def _taken(self, call: StartCall, entry: Run | Found) -> None:
        number, status = number_of(entry), status_of(entry)
        self.refuse(call, lsn_of(entry), AlreadyExists(
            f'workflow ID "{call.id}" is taken by run {number} ({status}). Use another ID, or choose by the start\'s on-running or'
            " on-finished policy what becomes of that run", id=call.id, run=number, status=status,
        ))

    def _start_new(self, call: StartCall) -> None:
        now = self._shard.clock()
        deadline = None if call.deadline_ms is None else now + call.deadline_ms
        run = self.new_run(r.Start(
            0, now, call.id, call.type, call.input, call.request, deadline=deadline, attributes=call.attributes,
        ))
        self.done(call, run.gate, Started(run.number, True))

    def new_run(self, start: r.Start, awake: bool = True) -> Run:
        """Record a start, give the run its number, and let its code begin in the next turn, or, not `awake`, when it is woken."""
        shard = self._shard
        registered = shard.registry.get(start.type)
        start.run, shard.next_run = shard.next_run, shard.next_run + 1
        start.behaviour, start.seed = BEHAVIOUR, int(shard.draw() * (1 << 62))
        start.version = registered.version if registered else 0
        if start.update is not None:
            start.update.run = start.run
        gate = shard.append(shard.encode(start))
        run = Run(shard, Journal(start), registered, gate)
        if start.update is not None:
            run.fresh.append((start.update, UNSET))
        shard.metrics.starts += 1
        shard.enter(run, awake)
        for waiting in self._starts.pop(start.id, ()):
            shard.hold(gate, self.tell, waiting, None)
        return run

    # What is asked of a run.

    def _signal(self, call: SignalCall) -> None:
        def deliver(run: Run) -> None:
            refusal = run.signals.refusal(call.name, call.payload)
            if refusal is not None:
                message = f'signal "{call.name}" to "{call.id}": {refusal.message}'
                self.refuse(call, run.gate, PayloadError(message, **refusal.fields))
                return
            signal = r.Signal(run.number, run.tick(), call.name, call.payload, call.request)
            run.record_outcome(signal)
            self._shard.hold(run.gate, self._signalled, call, run, signal, run.gate)

        self.with_open_run(call, deliver)

    def _signalled(self, call: SignalCall, run: Run, signal: r.Signal, lsn: int) -> None:
        """The signal is durable, and its run had its turn: either the code has it, or it had come to its end before."""
        self.done(call, lsn, None, too_late(run) if run.has_missed(signal) else None)

    def _cancel(self, call: CancelCall) -> None:
        def deliver(run: Run) -> None:
            run.cancel_arrived(call.reason, call.request)
            self.done(call, run.gate, None)

        self.with_open_run(call, deliver)

    def _terminate(self, call: TerminateCall) -> None:
        def deliver(run: Run) -> None:
            run.finish("terminated", b"", call.reason, call.request)
            self.done(call, run.gate, None)

        self.with_open_run(call, deliver)

    def with_open_run(self, call: SignalCall | CancelCall | TerminateCall | PauseCall | ResumeCall, deliver: Callable[[Run], None]) -> None:
        """Load the newest run of the ID and hand it over, or refuse the call because there is none open."""
        def entered(entry: Entry) -> None:
            if isinstance(entry, FuseeError):
                self.refuse(call, 0, entry)
            elif entry is None:
                self.refuse(call, 0, missing(call.id))
            elif isinstance(entry, Run) and not entry.is_over:
                deliver(entry)
            else:
                self.refuse(call, lsn_of(entry), too_late(entry))

        self._shard.with_run(call.id, entered)

    # Waiting for a run.

    def _look(self, call: ResultCall | StartedCall, reply: Reply, entry: Entry) -> None:
        if reply not in self._waiting:
            return
        if isinstance(entry, FuseeError):
            self.tell(reply, None, entry)
        elif isinstance(call, StartedCall):
            if entry is None:
                self._starts.setdefault(call.id, []).append(reply)
            else:
                self._shard.hold(lsn_of(entry), self.tell, reply, None)
        elif entry is None:
            self.tell(reply, None, missing(call.id))
        elif is_open(entry):
            self._results.setdefault(call.id, []).append(reply)
        elif isinstance(entry, Run):
            self._shard.hold(entry.gate, self.tell, reply, entry.outcome)
        else:
            self.tell(reply, Outcome(entry.status, entry.payload, entry.reason, entry.type))

    def tell(self, reply: Reply, answer: Any, error: FuseeError | None = None) -> None:
        if self._waiting.pop(reply, None) is not None:
            reply(answer, error)

    def ended(self, run: Run) -> None:
        """A run has its end on record: answer those who wait for it."""
        for reply in () if run.hands_on else self._results.pop(run.id, ()):
            self._shard.hold(run.gate, self.tell, reply, run.outcome)
        self.handlers.ended(run)

    def forget(self, reply: Reply) -> None:
        """Nobody waits for this answer any more."""
        id = self._waiting.pop(reply, None)
        if id is None:
            return
        for table in (self._results, self._starts):
            replies = table.get(id)
            if replies and reply in replies:
                replies.remove(reply)
                if not replies:
                    del table[id]

    def close(self, error: FuseeError) -> None:
        """The shard is leaving: who waits is told, and asks again where it goes."""
        self._closed = error
        asking, waiting = self._asking, self._waiting
        self._asking, self._waiting, self._results, self._starts = {}, {}, {}, {}
        self.handlers.close()
        for reply in [reply for replies in asking.values() for reply in replies] + list(waiting):
            reply(None, error)
