# The event loop that workflow code sees: plain asyncio, with an order that replay repeats.
#
# Rule 1: callbacks run in the order in which they were scheduled; there is no selector and no other source of events.
# Rule 2: time stands still between outcomes: `time()` is the time of the last record handed over.
# Rule 3: tasks and futures are hashed by their creation number, so a set of them has one order (asyncio's TaskGroup aborts its
#         children through a set). The numbers of each run begin at a multiple of its own, recorded seed: asyncio keeps all tasks of
#         a process in one set, where equal hashes would cost a search.
# Rule 4: a task's path names it: the n-th child of its parent, from the root. An operation is a path and a count.
# Rule 5: what cannot be repeated (threads, sockets, processes) is refused at the call, and so is scheduling from outside of a turn.
from __future__ import annotations

import asyncio
import sys
from asyncio import events
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any, Final, NoReturn

from fusee_mp.runtime.lines import waiting_line

if TYPE_CHECKING:
    from fusee_mp.runtime.run import Run

TURN_CALLBACKS_MAX: Final = 100_000
_SEED_MASK: Final = (1 << 50) - 1


class Sealed(BaseException):
    """Thrown into code that must not go on: its run was dropped, or asked for what its journal does not hold."""


class Blocked(Exception):
    """A turn did not come to an end."""


class Interrupted(BaseException):
    """Raised by the watch in code whose turn takes too long."""


class Refused(RuntimeError):
    """Workflow code asked for something that replay cannot repeat."""


class RunTask(asyncio.Task[Any]):
    """A task of workflow code; `path` and `count` give its operations their identity."""

    number: int
    path: str
    context: Context
    left = False  # main ended before it, and it was cancelled for that
    count: list[int]  # operations asked, child tasks made; shared with the caller that is blocked on this task

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other


class RunFuture(asyncio.Future[Any]):
    number: int

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other


class Handle:
    """A scheduled callback; what `call_soon` returns."""

    __slots__ = ("_callback", "_args", "_context", "_cancelled")

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...], context: Context) -> None:
        self._callback = callback
        self._args = args
        self._context = context
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True

    def cancelled(self) -> bool:
        return self._cancelled


def _nothing() -> None:
    """What a timer does that was forgotten."""


_EMPTY: Final = Context()


class TimerHandle(Handle):
    """A durable timer; its callback is scheduled when the record that it fired is fed."""

    __slots__ = ("op", "due_ms", "_run")

    def __init__(self, run: Run, due_ms: int, callback: Callable[..., object], args: tuple[Any, ...], context: Context) -> None:
        super().__init__(callback, args, context)
        self._run: Run | None = run
        self.due_ms = due_ms
        self.op = ""

    def when(self) -> float:
        return self.due_ms / 1000

    def cancel(self) -> None:
        self._cancelled = True
        run = self._run
        if run is not None:
            run.journal.close(self.op)
            self.forget(run)

    def forget(self, run: Run) -> None:
        """It will not fire. It stays among the shard's timers until they are swept, so it holds on to nothing."""
        self._run, self._callback, self._args, self._context = None, _nothing, (), _EMPTY
        run.shard.dead_timers += 1

    @property
    def is_open(self) -> bool:
        return self._run is not None and self._run.journal.open.get(self.op) is self

    def due(self) -> None:
        if self._run is not None:
            self._run.fire(self)

    def deliver(self, _record: object, _value: object) -> None:
        run, self._run = self._run, None
        assert run is not None
        run.loop.ready.append(self)


class _Closed(deque[Handle]):
    """What a run's loop has as its queue while nothing may be scheduled; `why` says what is wrong with doing so."""

    def __init__(self, why: str) -> None:
        super().__init__()
        self.why = why

    def append(self, handle: Handle) -> NoReturn:
        raise Refused(self.why)


class _Looking(_Closed):
    """The queue while a query or a validator runs. `is_tried`: it set a future, which is done then and wakes nobody any more."""

    is_tried = False

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} only looks, so it may not start or wake anything: do that in the workflow or in an update's handler")

    def append(self, handle: Handle) -> NoReturn:
        self.is_tried = True
        super().append(handle)


class _Outside(_Closed):
    """The queue between turns. Who is refused here has set its future all the same: the task that waits for that would wait for ever,
    so its run is set aside."""

    def append(self, handle: Handle) -> NoReturn:
        task = getattr(handle._callback, "__self__", None)
        if isinstance(task, RunTask):
            task.get_loop().run.woken_from_outside(self.why)  # type: ignore[attr-defined]
        super().append(handle)


CLOSED: Final = _Outside(
    "workflow code was to be woken from outside (a step body or a thread set a future or an event of a workflow), which replay"
    " could not repeat: return the value from the step, or send a signal"
)


class RunLoop(asyncio.AbstractEventLoop):
    """The loop of one run. `ready` is the shard's queue while the run has its turn, which is empty before and after."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.ready: deque[Handle] = CLOSED
        self._tasks = self._futures = (run.journal.start.seed & _SEED_MASK) << 8
        self._roots = 0
        self._root_path = ""
        self._callback_ops = [0, 0]

    # What asyncio asks of a loop.

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def time(self) -> float:
        return self.run.journal.now / 1000

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> Handle:  # type: ignore[override]
        handle = Handle(callback, args, copy_context() if context is None else context)
        self.ready.append(handle)
        return handle

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None) -> Handle:  # type: ignore[override]
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None) -> Handle:  # type: ignore[override]
        # A float of seconds since 1970 is exact to 0.25 us, so whole milliseconds need this tolerance before rounding up.
        due_ms = -int(-(when * 1000 - 0.01) // 1)
        if due_ms <= self.run.journal.now:
            return self.call_soon(callback, *args, context=context)
        handle = TimerHandle(self.run, due_ms, callback, args, copy_context() if context is None else context)
        self.run.ask_timer(handle, "")
        return handle

    def create_future(self) -> RunFuture:
        future = RunFuture(loop=self)
        self._futures += 1
        future.number = self._futures
        return future

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None, **_: Any) -> RunTask:
        task = RunTask.__new__(RunTask)
        parent: RunTask | None = asyncio.current_task(self)  # type: ignore[assignment]
        if parent is None:
            if type(self.ready) is _Looking:
                coro.close()
                raise Refused(self.ready.why)
            self._roots += 1
            task.path, task.count = self._root_path or ("" if self._roots == 1 else f"r{self._roots}/"), [0, 0]
        elif _maker() == "wait_for":
            # On 3.11 wait_for makes a task, later it does not; its caller is blocked on it, so both are one line of control.
            task.path, task.count = parent.path, parent.count
        else:
            parent.count[1] += 1
            task.path, task.count = f"{parent.path}{parent.count[1]}/", [0, 0]
        if parent is not None and task.count is parent.count:
            task.number = parent.number  # so that the numbers of later tasks are the same on every version
        else:
            self._tasks += 1
            task.number = self._tasks
        task.context = copy_context() if context is None else context
        task.__init__(coro, loop=self, name=name, context=task.context)  # type: ignore[misc]
        self.run.task_made(task)
        return task

    def get_task_factory(self) -> None:
        return None

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.run.complain(context)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.run.complain(context)

    def fusee_step(self, step: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Awaitable[Any]:
        """What awaiting a called `@step` does in this loop: a durable step."""
        context = self.run.context
        if context is None:
            raise Sealed
        return context.call_step(step, args, kwargs)

    # What the runtime asks of it.

    def next_op(self) -> str:
        """The identity of the operation that is being asked for."""
        task: RunTask | None = asyncio.current_task(self)  # type: ignore[assignment]
        if task is None:
            if type(self.ready) is _Looking:
                raise Refused(self.ready.why)
            self._callback_ops[0] += 1
            return f"c/{self._callback_ops[0]}"
        count = task.count
        count[0] += 1
        return f"{task.path}{count[0]}"

    def create_root(self, body: Body, path: str) -> RunTask:
        """A task that is nobody's child, with a path of its own."""
        self._root_path = path
        try:
            return self.create_task(body, context=Context())
        finally:
            self._root_path = ""

    @contextmanager
    def looking(self, what: str) -> Iterator[_Looking]:
        """Code runs that only looks: whatever it would start or wake is refused, and what it counted up is forgotten."""
        outer, ready = events._get_running_loop(), self.ready
        counted = self._tasks, self._futures, self._roots, self._callback_ops[0]
        events._set_running_loop(self)
        self.ready = looking = _Looking(what)
        try:
            yield looking
        finally:
            self.ready = ready
            self._tasks, self._futures, self._roots, self._callback_ops[0] = counted
            events._set_running_loop(outer)

    def drain(self) -> None:
        """Run the code until it can make no further progress.

        Call it from a plain callback, never from a task. Raises Blocked when the turn does not end.
        """
        ready = self.ready
        if not ready:
            return
        outer = events._get_running_loop()
        events._set_running_loop(self)
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(None, self._close_generator)
        left = TURN_CALLBACKS_MAX
        try:
            while ready:
                handle = ready.popleft()
                try:
                    if not handle._cancelled:
                        handle._context.run(handle._callback, *handle._args)
                except BaseException as e:
                    self._raised(e)
                left -= 1
                if not left:
                    raise Blocked(f"more than {TURN_CALLBACKS_MAX} callbacks without waiting for anything ({_line_of(handle)})")
        finally:
            ready.clear()
            sys.set_asyncgen_hooks(*hooks)
            events._set_running_loop(outer)

    def _raised(self, error: BaseException) -> None:
        """A callback raised. What a task let through, it holds itself, so it ends the run and not the process."""
        if not isinstance(error, (SystemExit, KeyboardInterrupt, Interrupted, Sealed)):
            self.run.complain({"message": "a callback raised", "exception": error})

    def _close_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        """Code let go of a generator that has clean-up to do. Outside of a turn the run is over, or a collection came across it."""
        if self.ready is not CLOSED and not self.run.sealed:
            self.create_task(generator.aclose()).left = True  # it is clean-up: the end of main does not cancel it


def _line_of(handle: Handle) -> str:
    task = getattr(handle._callback, "__self__", None)
    if isinstance(task, RunTask):
        return waiting_line(task)
    code = getattr(handle._callback, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else repr(handle._callback)


def _maker() -> str:
    """The public asyncio function that is making a task, if it is one whose use matters; raises Refused for as_completed on
    coroutines, which it starts in the order of a set."""
    frame = sys._getframe(2)
    while frame and frame.f_code.co_name == "create_task":
        frame = frame.f_back  # type: ignore[assignment]
    while frame and frame.f_globals.get("__name__") == "asyncio.tasks":
        code = frame.f_code
        if code.co_name == "wait_for":
            return "wait_for"
        if code.co_qualname.split(".<")[0] in ("as_completed", "_AsCompletedIterator.__init__"):
            raise Refused(
                "asyncio.as_completed starts coroutines in no fixed order, so replay could not repeat it:"
                " give it tasks made with asyncio.create_task, in the order you want"
            )
        frame = frame.f_back  # type: ignore[assignment]
    return ""


def _refuse(name: str, instead: str) -> Callable[..., NoReturn]:
    def refused(self: RunLoop, *_: Any, **__: Any) -> NoReturn:
        raise Refused(f"{name} does not work inside a workflow, where replay could not repeat it: {instead}")

    return refused


_IN_STEP: Final = "do it in a step"
_REFUSED: Final = {
    "run_in_executor": "a `def` step runs in a thread",
    "call_soon_threadsafe": "nothing outside may wake workflow code; send a signal",
    "run_forever": "await instead", "run_until_complete": "await instead", "stop": "return instead", "close": "return instead",
    "add_reader": _IN_STEP, "remove_reader": _IN_STEP, "add_writer": _IN_STEP, "remove_writer": _IN_STEP,
    "add_signal_handler": _IN_STEP, "remove_signal_handler": _IN_STEP,
    "set_task_factory": "the order of tasks is the runtime's", "set_default_executor": _IN_STEP, "set_debug": _IN_STEP,
}
_REFUSED_COROUTINES: Final = (
    "create_connection", "create_server", "create_unix_connection", "create_unix_server", "create_datagram_endpoint",
    "connect_accepted_socket", "connect_read_pipe", "connect_write_pipe", "subprocess_exec", "subprocess_shell", "getaddrinfo",
    "getnameinfo", "sendfile", "sock_accept", "sock_connect", "sock_recv", "sock_recv_into", "sock_sendall", "sock_sendfile",
    "sock_recvfrom", "sock_recvfrom_into", "sock_sendto", "start_tls",
)
for _name, _instead in _REFUSED.items():
    setattr(RunLoop, _name, _refuse(_name, _instead))
for _name in _REFUSED_COROUTINES:
    setattr(RunLoop, _name, _refuse(_name, _IN_STEP))

Body = Coroutine[Any, Any, Any]
