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
import sys
from asyncio import events
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import Context
from typing import TYPE_CHECKING, Any, Final

from fusee_mp.core import records as r
from fusee_mp.core.journal import Journal
from fusee_mp.errors import FuseeError, NonDeterminismError, UnknownWorkflow
from fusee_mp.payload.failure import encode_failure
from fusee_mp.runtime import children as children_of
from fusee_mp.runtime.loop import Blocked, RunLoop, RunTask, Sealed, TimerHandle, code_line
from fusee_mp.runtime.steps import UNSET, Options, StepCall

if TYPE_CHECKING:
    from fusee_mp.payload.converter import Codec
    from fusee_mp.core.calls import Outcome
    from fusee_mp.runtime.registry import Registered, RunContext
    from fusee_mp.runtime.shard_runtime import ShardRuntime

BEHAVIOUR: Final = f"cpython-{sys.version_info.major}.{sys.version_info.minor}"


class Run:
    """A run and its code. `number` is unique within the shard; `gate` is the LSN of its last record."""

    __slots__ = (
        "shard", "number", "id", "journal", "loop", "context", "registered", "main", "tasks", "fresh", "gate", "steps", "signals",
        "signal_waiters", "cancel_asked", "is_over", "sealed", "broken", "quarantined", "quiet", "touched_ms",
        "complaints", "parked_lsn", "left_memory", "outcome", "said_quarantined", "_open_children", "conditions",
    )

    def __init__(self, shard: ShardRuntime, journal: Journal[Any], registered: Registered | None, gate: int) -> None:
        start = journal.start
        self.shard = shard
        self.number = start.run
        self.id = start.id
        self.journal = journal
        self.registered = registered
        self.loop = RunLoop(self, shard.ready)  # type: ignore[abstract]  # typeshed only: what is missing raises
        self.context: RunContext | None = None
        self.main: RunTask | None = None
        self.tasks: list[RunTask] = []  # those that main did not itself await may be left when it ends
        self.fresh: deque[tuple[r.Outcome, Any]] = deque()
        self.gate = gate
        self.steps: list[StepCall] = []  # asked in this turn
        self.conditions: list[tuple[Callable[[], bool], asyncio.Future[bool]]] = []
        self.signals: dict[str, deque[bytes]] | None = None
        self.signal_waiters: dict[str, deque[asyncio.Future[bytes]]] | None = None
        self.cancel_asked = False
        self.is_over = False
        self.sealed = False
        self.broken: FuseeError | None = None
        self.quarantined: FuseeError | None = None
        self.quiet = False
        self.parked_lsn = 0
        self.left_memory = False
        self.outcome: Outcome | None = None
        self.said_quarantined = ""
        self._open_children: dict[str, tuple[str, r.ClosePolicy]] | None = None
        self.touched_ms = 0
        self.complaints: list[str] = []

    # Records.

    def tick(self) -> int:
        """The time of the next record: now, and never before the last one."""
        now = self.shard.clock()
        last = self.journal.now
        return now if now > last else last

    def record(self, record: r.RunRecord) -> None:
        """Append a record of this run; its next effect waits for it."""
        self.journal.size += 1
        self.quiet = False
        self.gate = self.shard.append(r.encode(record))

    def record_outcome(self, outcome: r.Outcome, value: Any = UNSET) -> None:
        """Append an outcome and feed it in its turn."""
        self.record(outcome)
        self.fresh.append((outcome, value))
        self.shard.wake(self)

    # The turn.

    def _begin(self) -> None:
        """Make the main task, at the start of the first turn: what is ready to run belongs to one run at a time.

        Without code the run is set aside.
        """
        if self.registered is None:
            start = self.journal.start
            self.broken = UnknownWorkflow(
                f'workflow "{start.type}" of run "{start.id}" is not registered here (registered: {self.shard.registry.names()});'
                " run a worker that has it", workflow=start.type, id=start.id,
            )
            self.sealed = True
            return
        try:
            self.context = self.registered.context(self)
            body = self.registered.call(self.context, self.journal.start.input)
        except Exception as e:  # an input that the workflow's annotation does not accept
            self.finish("failed", encode_failure(e))
            return
        previous = events._get_running_loop()
        events._set_running_loop(None)
        events._set_running_loop(self.loop)
        try:
            self.main = self.loop.create_task(body, context=Context())
        finally:
            events._set_running_loop(previous)

    def pump(self) -> None:
        """Feed what there is, one outcome at a time; then let the asked steps begin. Only the shard calls this."""
        if self.is_over or self.quarantined is not None:
            return
        try:
            if self.main is None:
                self._begin()
            if not self.sealed and not self.is_over:
                self._turns()
        except Blocked as e:
            self.broken = FuseeError(f'workflow "{self.journal.start.type}" does not yield: {e}')
        except NonDeterminismError as e:
            self.broken = e
        if self.broken is not None:
            self.shard.quarantine(self, self.broken)
        else:
            if self.said_quarantined and not self.is_over and not self.journal.replaying:
                self.said_quarantined = ""
                self.record(r.Unquarantined(self.number, self.tick()))
            if not self.is_over:
                self._begin_steps()

    def _turns(self) -> None:
        journal, fresh = self.journal, self.fresh
        shard = self.shard
        shard.turn, shard.turns = self, shard.turns + 1
        try:
            if self.loop.ready:
                self._drain()
            main = self.main
            while self.broken is None and main is not None and not (main.done() and self._settled(main)):
                outcome = journal.next() if journal.replaying else None
                if outcome is not None:
                    self._feed(outcome, UNSET)
                else:
                    if journal.replaying:
                        journal.live()
                    if not fresh:
                        return
                    outcome, value = fresh.popleft()
                    self._feed(outcome, value)
                self._drain()
        finally:
            shard.turn = None

    def _drain(self) -> None:
        """Let the code go on, and again for each condition of `wait_until` that has come to hold."""
        shard = self.shard
        self.loop.drain()
        if shard.blocked:
            blocked, shard.blocked = shard.blocked, ""
            raise Blocked(blocked)
        while self.conditions:
            if not any([_came_to_hold(condition, future) for condition, future in self.conditions]):
                return
            self.loop.drain()

    def _feed(self, outcome: r.Outcome, value: Any) -> None:
        if isinstance(outcome, (r.StepDone, r.Fired, r.ChildDone)):
            waiter = self.journal.take(outcome)
            if isinstance(outcome, r.ChildDone):
                self.child_ended(outcome.op)
            if waiter is not None:
                waiter.deliver(outcome, value)
        else:
            self.journal.pass_time(outcome)
            if isinstance(outcome, r.Signal):
                self._signalled(outcome.name, outcome.payload)
            else:
                self._cancel(outcome.reason)

    def _settled(self, main: RunTask) -> bool:
        """Main has ended: True when everything else has too, and the run's end is recorded."""
        while self.tasks:
            self.tasks = [task for task in self.tasks if not task.done()]
            if not self._cancel_left():
                break
        if self.tasks:
            return False  # their clean-up waits for something
        self._end(main)
        return True

    def _cancel_left(self) -> bool:
        """Main has ended: cancel what it left behind, in the order it was made. True when that may have ended some."""
        left = [task for task in self.tasks if not task.left]
        for task in left:
            task.left = True
            if not task.cancelling():
                task.cancel("the workflow's main function has ended")
        if left:
            self.loop.drain()
        return bool(left)

    def _begin_steps(self) -> None:
        if self.steps and not self.journal.replaying:
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
        if main.cancelled():
            self.finish("cancelled", b"", self._cancel_reason(main))
            return
        error = main.exception()
        if isinstance(error, Sealed):
            return
        if error is not None:
            self.finish("failed", encode_failure(error))
            return
        assert self.registered is not None
        try:
            payload = self.registered.encode_result(main.result())
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

    def remember(self, records: Iterable[r.Record]) -> None:
        """What a recovered journal says beyond what is replayed."""
        for record in records:
            if isinstance(record, r.Quarantined):
                self.said_quarantined = record.message
            elif isinstance(record, r.Unquarantined):
                self.said_quarantined = ""
            elif isinstance(record, r.Child):
                self.child_asked(record.op, record.id, record.close)
            elif isinstance(record, r.ChildDone):
                self.child_ended(record.op)

    def child_asked(self, op: str, id: str, close: r.ClosePolicy) -> None:
        if self._open_children is None:
            self._open_children = {}
        self._open_children[op] = (id, close)

    def child_ended(self, op: str) -> None:
        if self._open_children is not None:
            self._open_children.pop(op, None)

    def close_children(self) -> None:
        """The run ends: what its open children feel of it."""
        children, self._open_children = self._open_children or {}, None
        for op, (id, close) in children.items():
            if close != "abandon":
                children_of.send(self, "", close, id, child=op)

    def drop(self) -> None:
        """Take the code out of memory without an effect. On the loop's thread, never inside a turn of this run."""
        if self.loop is None:
            return
        self.sealed = True
        for waiter in list(self.journal.open.values()):
            if isinstance(waiter, StepCall):
                waiter.stop_body()
        tasks = self.tasks if self.main is None else [self.main, *self.tasks]
        previous = events._get_running_loop()
        events._set_running_loop(None)
        events._set_running_loop(self.loop)
        try:
            for task in tasks:
                _close(task)
        finally:
            events._set_running_loop(previous)
            self.shard.ready.clear()
        # Break the cycles here, so that the collector never meets a coroutine of ours.
        self.journal.open.clear()
        self.tasks, self.main, self.steps = [], None, []
        self.signal_waiters = None
        if self.context is not None:
            self.context.forget()
            self.context = None

    # What the loop and the context ask for.

    def check_open(self) -> None:
        if self.sealed:
            raise Sealed

    def ask(self, op: str, kind: str, name: str) -> r.Timer | r.Child | r.Send | r.Attributes | None:
        """Journal.ask, with the line that asked when it is a mismatch. A mismatch ends the code at once."""
        self.check_open()
        try:
            return self.journal.ask(op, kind, name)
        except NonDeterminismError:
            self.sealed = True
            try:
                self.journal.ask(op, kind, name, code_line(sys._getframe(1)).strip(" ()"))
            except NonDeterminismError as e:
                self.broken = e
            raise Sealed from None

    def ask_step(self, name: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], options: Options, codec: Codec) -> StepCall:
        """A step is asked for: its body begins after the turn."""
        op = self.loop.next_op()
        self.ask(op, "step", name)
        call = StepCall(self, op, name, fn, args, kwargs, options, codec)
        last = self.journal.attempt(op)
        if last is not None:
            call.attempt, call.retry_at = last.attempt, last.retry_at
        self.journal.open[op] = call
        self.steps.append(call)
        return call

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
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            task.get_coro().close()  # type: ignore[union-attr]
            raise Sealed
        if self.main is not None:
            self.tasks.append(task)
            if len(self.tasks) >= 64 and not len(self.tasks) & 63:
                self.tasks = [task for task in self.tasks if not task.done()]

    def complain(self, context: dict[str, Any]) -> None:
        """What asyncio reports of this run's code: kept for the log, said once when the run ends."""
        if not self.sealed and len(self.complaints) < 8:
            self.complaints.append(str(context.get("message")))

    # Arrivals.

    def _signalled(self, name: str, payload: bytes) -> None:
        waiters = self.signal_waiters.get(name) if self.signal_waiters else None
        while waiters:
            waiter = waiters.popleft()
            if not waiter.done():
                waiter.set_result(payload)
                return
        self.buffer(name).append(payload)

    def buffer(self, name: str) -> deque[bytes]:
        """The signals of this name that arrived and were not taken."""
        if self.signals is None:
            self.signals = {}
        return self.signals.setdefault(name, deque())

    def signal_waiter(self, name: str) -> asyncio.Future[bytes]:
        if self.signal_waiters is None:
            self.signal_waiters = {}
        future: asyncio.Future[bytes] = asyncio.Future(loop=self.loop)
        self.signal_waiters.setdefault(name, deque()).append(future)
        return future

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

    @property
    def next_due(self) -> int | None:
        """When the first of its timers is due."""
        dues = [w.due_ms for w in self.journal.open.values() if isinstance(w, TimerHandle)]
        return min(dues) if dues else None

    @property
    def bodies(self) -> int:
        """Its step bodies that run now."""
        return sum(isinstance(w, StepCall) and w.body is not None for w in self.journal.open.values())

    @property
    def is_quiet(self) -> bool:
        """It waits only for timers, signals and children: nothing runs for it."""
        if self.is_over or self.fresh or self.steps or self.quarantined is not None:
            return False
        return not any(isinstance(w, StepCall) for w in self.journal.open.values())


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


def _close(task: RunTask) -> None:
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    if task.done():
        return
    body = task.get_coro()
    for _ in range(8):  # code that answers the closing with another await is asked again, then left
        try:
            body.close()  # type: ignore[union-attr]
        except RuntimeError:
            continue
        except BaseException:
            pass
        return
