# One run in memory: its code, its journal, and the turn in which both move.
#
# A turn feeds one outcome and lets the code go on until it can make no further progress; then the next, recorded ones first.
# Rule 1: an outcome is recorded before it is fed, and fed in the order in which it was recorded.
# Rule 2: the steps that the code asks for begin after the turn, through the gate: the last record of this run.
# Rule 3: a run that cannot go on (its code is missing, asks for something else than its journal holds, or does not yield) is set
#         aside with its reason. Its code is dropped; what arrives for it is still recorded.
# Rule 4: dropped code is sealed before its coroutines are closed, here and not by the garbage collector: every operation that
#         clean-up code tries raises Sealed and has no effect.
from __future__ import annotations

import asyncio
import logging
import sys
from asyncio import events
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextvars import Context
from typing import TYPE_CHECKING, Any, Final

from fusee_mp.core import records as r
from fusee_mp.core.journal import Asked, Journal
from fusee_mp.errors import FuseeError, NonDeterminismError, UnknownWorkflow
from fusee_mp.payload.failure import encode_failure
from fusee_mp.runtime import children as children_of
from fusee_mp.runtime import pausing
from fusee_mp.runtime.closing import close_task, close_tasks
from fusee_mp.runtime.continuing import continue_as_new, wish_in
from fusee_mp.runtime.handlers import SLICE, Handlers, outcomes_of
from fusee_mp.runtime.lines import code_line, waiting_line
from fusee_mp.runtime.loop import CLOSED, Blocked, Interrupted, RunLoop, RunTask, Sealed, TimerHandle
from fusee_mp.runtime.offspring import Offspring
from fusee_mp.runtime.signals import Signals
from fusee_mp.runtime.steps import UNSET, Options, StepCall

if TYPE_CHECKING:
    from fusee_mp.core.calls import Outcome
    from fusee_mp.payload.converter import Codec
    from fusee_mp.runtime.registry import Registered, RunContext
    from fusee_mp.runtime.shard_runtime import ShardRuntime

LOG: Final = logging.getLogger("fusee_mp.workflow")
COMPLAINTS_MAX: Final = 8
SWEEP_TASKS: Final = 64
BEHAVIOUR: Final = f"cpython-{sys.version_info.major}.{sys.version_info.minor}"


class Run:
    """A run and its code. `number` is unique within the shard; `gate` is the LSN of its last record."""

    __slots__ = (
        "shard", "number", "id", "journal", "loop", "context", "registered", "main", "tasks", "fresh", "gate", "steps", "signals",
        "cancel_asked", "is_over", "sealed", "broken", "quarantined", "quiet", "touched_ms", "weight",
        "complaints", "left_memory", "outcome", "said_quarantined", "offspring", "hands_on", "is_frozen", "attributes", "conditions",
        "handlers", "is_parked", "sweep_at", "is_paused", "pause_reason", "held_steps", "completions",
    )

    def __init__(self, shard: ShardRuntime, journal: Journal[Any], registered: Registered | None, gate: int) -> None:
        start = journal.start
        self.shard = shard
        self.number = start.run
        self.id = start.id
        self.journal = journal
        self.registered = registered
        self.loop = RunLoop(self)  # type: ignore[abstract]  # typeshed only: what is missing raises
        self.context: RunContext | None = None
        self.main: RunTask | None = None
        self.tasks: list[RunTask] = []  # those that main did not itself await may be left when it ends
        self.sweep_at = SWEEP_TASKS
        self.fresh: deque[tuple[r.Outcome, Any]] = deque()
        self.gate = gate
        self.steps: list[StepCall] = []  # asked in this turn
        self.is_paused = False
        self.pause_reason = ""
        self.held_steps: list[StepCall] = []  # to begin when it is resumed
        self.completions: dict[str, tuple[str, int]] = {}  # whose token is good: by operation the name, and which attempt's
        self.conditions: list[tuple[Callable[[], bool], asyncio.Future[bool]]] = []
        self.signals = Signals()
        self.handlers: Handlers | None = None
        self.cancel_asked = False
        self.is_over = False
        self.sealed = False
        self.broken: FuseeError | None = None
        self.quarantined: FuseeError | None = None
        self.quiet = False  # a record says so, and none came after it
        self.is_parked = False  # that record also says parked
        self.left_memory = False
        self.outcome: Outcome | None = None
        self.said_quarantined = ""
        self.offspring: Offspring | None = None  # made with its first child
        self.attributes: list[bytes] = []  # what it merged into those of its start
        self.is_frozen = False  # its code is gone, and what arrives waits for a reset or its return
        self.hands_on = False  # it ends, and another run of its ID goes on in its place
        self.touched_ms = 0
        self.weight = 0  # in bytes, estimated, while it is quiet and there is a budget
        self.complaints: list[str] = []

    # Records.

    def tick(self) -> int:
        """The time of the next record: now, and never before the last one."""
        now, journal = self.shard.clock(), self.journal
        if now <= journal.latest:
            return journal.latest
        journal.latest = now
        return now

    def record(self, record: r.RunRecord) -> None:
        """Append a record of this run; its next effect waits for it."""
        self.journal.size += 1
        self.quiet = False
        shard = self.shard
        self.gate = shard.append(shard.encode(record))

    def record_outcome(self, outcome: r.Outcome, value: Any = UNSET) -> None:
        """Append an outcome and feed it in its turn."""
        self.record(outcome)
        self.fresh.append((outcome, value))
        self.shard.wake(self)

    def cancel_arrived(self, reason: str, request: str = "", source: r.Source | None = None) -> None:
        """Append a request to cancel, and feed it in its turn. The code's clean-up needs its steps, so it ends a pause."""
        self.record_outcome(r.CancelRequested(self.number, self.tick(), reason, request, source))
        if self.is_paused:
            pausing.lift(self)

    # The turn.

    def pump(self) -> None:
        """Feed what there is, one outcome at a time; then let the asked steps begin. Only the shard calls this."""
        if self.is_over or self.is_frozen:
            return
        if self.quarantined is not None:
            self.shard.residence.leave(self)  # what arrived is recorded; the code is tried again when the run is next loaded
            return
        try:
            if self.broken is None:  # else its journal cannot be opened here
                self._turns()
        except Blocked as e:
            self.broken = FuseeError(f'workflow "{self.journal.start.type}" does not yield: {e}')
        except NonDeterminismError as e:
            self.broken = self.journal.placed(e, waiting_line(self.main))
        except Exception as e:  # a fault of ours, or a record that its kind does not explain: this run alone is concerned
            LOG.exception('run %s of workflow ID "%s" is set aside', self.number, self.id)
            self.broken = FuseeError(f"its turn failed with {type(e).__name__}: {e}")
        if self.is_over:
            return
        if self.broken is not None:
            self.shard.quarantine(self, self.broken)
            return
        if self.said_quarantined:
            self.said_quarantined = ""
            self.record(r.Unquarantined(self.number, self.tick()))
            if self.is_paused:  # as it was, behind the quarantine
                pausing.pause(self, self.pause_reason)
        if self.steps:
            self._begin_steps()
        if self.handlers is not None and self.handlers.is_disturbed and self.is_quiet:
            self.shard.residence.park(self)

    def _turns(self) -> None:
        shard, loop = self.shard, self.loop
        shard.turn, shard.turns, loop.ready = self, shard.turns + 1, shard.ready
        try:
            if self.main is not None or self._begin():
                self._feed_all()
                if self.handlers is not None and self.handlers.asking:
                    self.handlers.answer()
        except Interrupted:
            pass
        finally:
            shard.turn, loop.ready = None, CLOSED
            blocked, shard.blocked = shard.blocked, ""
        if blocked:
            raise Blocked(blocked)

    def _begin(self) -> bool:
        """Make the main task, in the first turn: what is ready to run belongs to one run at a time. False when it cannot begin."""
        start = self.journal.start
        if self.registered is None:
            registry = self.shard.registry
            is_elsewhere = registry.is_elsewhere(start.type)
            advice = "another worker has it, and the run waits for that one" if is_elsewhere else "run a worker that has it"
            self.broken = UnknownWorkflow(
                f'workflow "{start.type}" of run "{start.id}" is not registered here (registered: {registry.names()}); {advice}',
                workflow=start.type, id=start.id)
            return False
        context = self.context = self.registered.context(self)
        try:
            body = self.registered.call(context, start.input)
        except Exception as e:  # the workflow's annotation does not accept the input
            if self.journal.size > 1:  # it did once
                raise self.journal.unfit(e) from e
            self.finish("failed", encode_failure(e))
            return False
        outer = events._get_running_loop()
        events._set_running_loop(self.loop)
        try:
            self.main = self.loop.create_task(body, context=Context())
        finally:
            events._set_running_loop(outer)
        if start.carried:
            self._feed_carried(start.carried)
        return True

    def _feed_carried(self, count: int) -> None:
        """What the run before had accepted and not taken is there when the code begins, so it cannot end without having had it."""
        for _ in range(count):
            outcome = self.journal.next() if self.journal.replaying else None
            if outcome is None:
                if not self.fresh:
                    return
                outcome, _ = self.fresh.popleft()
            self._feed(outcome, UNSET)

    def _feed_all(self) -> None:
        journal, fresh, main = self.journal, self.fresh, self.main
        assert main is not None
        if self.handlers is not None:
            self.handlers.left = SLICE
        if self.loop.ready:
            self._drain()
        while self.broken is None and not (main.done() and self._settled(main)):
            outcome = journal.next() if journal.replaying else None
            if outcome is not None:
                self._feed(outcome, UNSET)
            else:
                if journal.replaying:
                    journal.live()
                if fresh:
                    outcome, value = fresh.popleft()
                elif self.handlers is None or (outcome := self.handlers.accept()) is None:
                    return
                else:
                    value = UNSET
                self._feed(outcome, value)
            self._drain()

    def _drain(self) -> None:
        """Let the code go on, and again for each condition of `wait_until` that has come to hold."""
        self.loop.drain()
        if self.shard.blocked:
            raise Interrupted
        while self.conditions:
            if not any([_came_to_hold(condition, future) for condition, future in self.conditions]):
                return
            self.loop.drain()

    def _feed(self, outcome: r.Outcome, value: Any) -> None:
        self.shard.turns += 1  # so that the watch over blocked turns lets a long journal replay
        if isinstance(outcome, (r.StepDone, r.Fired, r.ChildDone, r.Completed)):
            waiter = self._take_child(outcome) if isinstance(outcome, r.ChildDone) else self.journal.take(outcome)
            if waiter is not None:
                waiter.deliver(outcome, value)
        else:
            self.journal.pass_time(outcome)
            if isinstance(outcome, r.Signal):
                self.signals.arrived(outcome.name, outcome.payload)
            elif isinstance(outcome, r.Update):
                self.with_handlers().feed(outcome)
            else:
                self._cancel(outcome.reason)

    def _settled(self, main: RunTask) -> bool:
        """Main has ended: True when everything else has too, and the run's end is recorded."""
        if self.journal.unfed_updates or self._waits_for_handlers(main):
            return False
        while self.tasks:
            self.tasks = [task for task in self.tasks if not task.done()]
            if not self._cancel_left():
                break
        if self.tasks:
            return False  # their clean-up waits for something
        self._end(main)
        return True

    def _waits_for_handlers(self, main: RunTask) -> bool:
        """Accepted updates are waited for, unless the run was cancelled: then they end as the other tasks that are left."""
        return self.handlers is not None and self.handlers.running > 0 and not self.cancel_asked and not main.cancelled()

    def _cancel_left(self) -> bool:
        """Main has ended: cancel what it left behind, in the order it was made. True when that may have ended some.

        Clean-up may make tasks of its own (a TaskGroup, wait_for), so those made meanwhile have their turn when it is done.
        """
        if any(task.left for task in self.tasks):
            return False
        for task in self.tasks:
            task.left = True
            if not task.cancelling():
                task.cancel("the workflow's main function has ended")
        self.loop.drain()
        return True

    def _begin_steps(self) -> None:
        calls, self.steps = self.steps, []
        shard, gate, still_open = self.shard, self.gate, self.journal.open
        for call in calls:
            if still_open.get(call.op) is not call:
                continue
            if call.retry_at and call.retry_at > shard.clock():
                shard.timers.add(call.retry_at, call)
            else:
                shard.hold(gate, call.begin)

    # How it ends.

    def _end(self, main: RunTask) -> None:
        if self.journal.replaying:
            self.journal.end()
        if main.cancelled():
            self.finish("cancelled", b"", self._cancel_reason(main))
            return
        error = main.exception()
        if isinstance(error, (Sealed, Interrupted)):
            return  # it is being set aside
        if error is not None and (wish := wish_in(error)) is not None:
            continue_as_new(self, wish)
            return
        if error is not None:
            self.finish("failed", encode_failure(error))
            return
        assert self.registered is not None
        try:
            payload = self.registered.encode_result(main.result(), self.shard.payloads.bytes_max)
        except Exception as e:
            self.finish("failed", encode_failure(e))
        else:
            self.finish("ok", payload)

    def _cancel_reason(self, main: RunTask) -> str:
        try:
            main.result()
        except asyncio.CancelledError as e:
            return str(e.args[0]) if e.args else ""
        return ""

    def finish(self, status: r.FinalStatus, payload: bytes, reason: str = "", request: str = "", source: r.Source | None = None) -> None:
        """Record the end. The parent hears of it, and the children that are still open feel their close policy."""
        self.is_over = True
        self.shard.finish(self, status, payload, reason, request, source)

    def say_complaints(self) -> None:
        for complaint in self.complaints:
            LOG.warning('workflow "%s", ID "%s", run %s: %s', self.journal.start.type, self.id, self.number, complaint)

    def remember(self, records: Sequence[r.Record]) -> None:
        """What a recovered journal says beyond what is replayed."""
        for record in records:
            if isinstance(record, r.Quarantined):
                self.said_quarantined = record.message
            elif isinstance(record, r.Unquarantined):
                self.said_quarantined = ""
            elif isinstance(record, r.Attributes):
                self.attributes.append(record.values)
            elif isinstance(record, r.Awaiting):
                self.completions[record.op] = (record.name, record.attempt)
            elif isinstance(record, r.Completed):
                self.completions.pop(record.op, None)
            elif isinstance(record, (r.Paused, r.Resumed, r.CancelRequested)):
                self.is_paused = isinstance(record, r.Paused)
                self.pause_reason = record.reason if isinstance(record, r.Paused) else ""
        updates = outcomes_of(records)
        if updates:
            self.with_handlers().outcomes = updates
        self.remember_children(records)

    def remember_children(self, records: Iterable[r.Record]) -> None:
        """Replay needs these too: whose child a child is that the code asks for."""
        for record in records:
            if isinstance(record, (r.Child, r.ChildDone, r.Inherited)):
                self.with_offspring().remember(record)

    def with_handlers(self) -> Handlers:
        """Its queries and updates, which most runs do not have."""
        if self.handlers is None:
            self.handlers = Handlers(self)
        return self.handlers

    def with_offspring(self) -> Offspring:
        """Its children, which most runs do not have."""
        if self.offspring is None:
            self.offspring = Offspring(self.number)
        return self.offspring

    def operation_of(self, parent: r.Parent) -> str | None:
        """Which of its operations waits for the child with this parent; None when the child is not its own."""
        if parent.run == self.number:
            return parent.op
        return None if self.offspring is None else self.offspring.operation_of(parent)

    def _take_child(self, outcome: r.ChildDone) -> Any:
        """The waiter for a child's outcome."""
        op = self.with_offspring().fed(outcome)
        if op == outcome.op:
            return self.journal.take(outcome)
        self.journal.pass_time(outcome)
        return None if op is None else self.journal.open.pop(op, None)

    def close_children(self) -> None:
        """The run ends: what its open children feel of it."""
        if self.offspring is not None and not self.hands_on:
            for kin in list(self.offspring.open()):
                if kin.close != "abandon":
                    children_of.send_to_child(self, "", kin.close, kin)

    def drop(self) -> None:
        """Take the code out of memory without an effect. On the loop's thread, never inside a turn of another run."""
        self.sealed = True
        for waiter in list(self.journal.open.values()):
            if isinstance(waiter, StepCall):
                waiter.stop_body()
            elif isinstance(waiter, TimerHandle):
                waiter.forget(self)
        close_tasks(self.loop, self.tasks if self.main is None else [self.main, *self.tasks])
        # Break the cycles here, so that the collector never meets a coroutine of ours.
        self.journal.open.clear()
        self.tasks, self.main, self.steps, self.conditions, self.signals = [], None, [], [], Signals()
        self.held_steps = []
        if self.context is not None:
            self.context.forget()
            self.context = None
        if self.handlers is not None:
            self.handlers.forget()

    def freeze(self) -> None:
        """Take the code away; the run stays, and records what arrives."""
        if not self.is_frozen:
            self.is_frozen = True
            self.drop()

    # What the loop and the context ask for.

    def check_open(self) -> None:
        if self.sealed:
            raise Sealed

    def ask(self, op: str, kind: str, name: str) -> Asked | None:
        """Journal.ask, with the line that asked when it is a mismatch. A mismatch ends the code at once."""
        self.check_open()
        try:
            return self.journal.ask(op, kind, name)
        except NonDeterminismError as e:
            self.sealed = True
            self.broken = self.journal.placed(e, code_line(sys._getframe(1)) or waiting_line(self.main))
            raise Sealed from None

    def ask_step(
        self, name: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], options: Options, codec: Codec
    ) -> StepCall:
        """A step is asked for: its body begins after the turn."""
        op = self.loop.next_op()
        self.ask(op, "step", name)
        call = StepCall(self, op, name, fn, args, kwargs, options, codec)
        if self.journal.replaying:
            call.restore()
        self.journal.open[op] = call
        self.steps.append(call)
        return call

    def patched(self, name: str) -> bool:
        """Whether the code goes the new way at this change of itself."""
        self.check_open()
        told = self.journal.patched(name)
        if told is None:
            self.record(r.Patched(self.number, self.tick(), name))
        return told is not False

    def abandon_step(self, call: StepCall) -> None:
        """The code no longer waits for this step."""
        if self.sealed or not call.is_open:
            return
        known = self.journal.knows(call.op)
        self.journal.close(call.op)
        call.stop_body()
        if not known:
            self.record(r.StepDone(self.number, self.tick(), call.op, call.name, call.attempt, "cancelled", b""))

    def ask_timer(self, handle: TimerHandle, name: str) -> None:
        op = self.loop.next_op()
        found = self.ask(op, "timer", name)
        handle.op = op
        if isinstance(found, r.Timer):
            handle.due_ms = found.due
        else:
            self.record(r.Timer(self.number, self.tick(), op, name, handle.due_ms))
        self.journal.open[op] = handle
        self.shard.timers.add(handle.due_ms, handle)

    def fire(self, handle: TimerHandle) -> None:
        """A timer's time has come."""
        if self.journal.open.get(handle.op) is handle and self.quarantined is None:
            self.record_outcome(r.Fired(self.number, max(self.tick(), handle.due_ms), handle.op))

    def task_made(self, task: RunTask) -> None:
        if self.sealed:
            close_task(task)
            raise Sealed
        if self.main is not None:
            self.tasks.append(task)
            if len(self.tasks) >= self.sweep_at:
                self.tasks = [task for task in self.tasks if not task.done()]
                self.sweep_at = max(SWEEP_TASKS, 2 * len(self.tasks))  # so that a sweep costs each task a bounded part

    def woken_from_outside(self, why: str) -> None:
        """Perhaps from another thread."""
        if not self.sealed:
            self.broken = FuseeError(f'workflow "{self.journal.start.type}": {why}', id=self.id)
            self.shard.loop.call_soon_threadsafe(self.shard.wake, self)

    def complain(self, context: dict[str, Any]) -> None:
        """What asyncio reports of this run's code: kept for the log, said once when the run ends."""
        if not self.sealed and len(self.complaints) < COMPLAINTS_MAX:
            error = context.get("exception")
            self.complaints.append(f"{context.get('message')}{f': {error!r}' if error is not None else ''}")

    def _cancel(self, reason: str) -> None:
        if self.cancel_asked or self.main is None:
            return
        self.cancel_asked = True
        main = self.main
        if main.cancel(reason):
            self.loop.drain()
            # So that a timeout or a TaskGroup in clean-up code does not take this old request for one of its own.
            main.uncancel()

    # What it waits for.

    def has_missed(self, outcome: r.Outcome) -> bool:
        """It ended before it was fed this arrival."""
        return self.is_over and not self.hands_on and any(waiting is outcome for waiting, _ in self.fresh)

    @property
    def next_due(self) -> int | None:
        """When the first of its timers is due, or its deadline."""
        dues = [w.due_ms for w in self.journal.open.values() if isinstance(w, TimerHandle)]
        if self.journal.start.deadline is not None:
            dues.append(self.journal.start.deadline)
        return min(dues) if dues else None

    @property
    def running(self) -> list[StepCall]:
        """Its steps whose bodies run now."""
        return [w for w in self.journal.open.values() if isinstance(w, StepCall) and w.body is not None]

    @property
    def is_quiet(self) -> bool:
        """It waits only for timers, signals and children: nothing runs for it."""
        if self.is_over or self.is_frozen or self.fresh or self.steps or self.quarantined is not None:
            return False
        if self.handlers is not None and self.handlers.is_asked:
            return False
        return not any(isinstance(w, StepCall) and w.is_active for w in self.journal.open.values())


def _came_to_hold(condition: Callable[[], bool], future: asyncio.Future[bool]) -> bool:
    if future.done():
        return False
    try:
        if not condition():
            return False
        future.set_result(True)
    except Exception as e:
        future.set_exception(e)
    return True
