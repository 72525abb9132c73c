# Time that stands still while something happens and jumps when nothing can.
#
# The loop that runs the test is borrowed: its idle wait becomes a jump to its next timer. So everything that waits for a timer of this
# loop (durable timers, retries, time-outs, asyncio.sleep in step bodies and tests) passes at once and in its order, and nothing else
# in the process sees another time; tests in other loops, threads or processes do not meet.
#
# Rule 1: time jumps only when nothing is ready to run, and lands on the next timer, to the microsecond.
# Rule 2: while the world is at work for this loop, time is real: a thread runs for it, a child process is awaited, or a step body that
#         does not just sleep runs while sockets or pipes are open. A real time-out in such a body keeps its real length.
# Rule 3: sockets that stay open for nobody (a pool of connections, a test's server) delay a jump by GRACE_S, and prevent none.
# Rule 4: given back, the loop's time goes on from where it is, so timers that were made meanwhile keep their order.
from __future__ import annotations

import asyncio
import math
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from weakref import WeakKeyDictionary

from fusee_mp.errors import Rejected

GRACE_S: Final = 0.1
# For so long nothing happens by itself, and nobody from outside wakes the loop: then whoever waits is told that it is for ever.
STUCK_S: Final = 5.0
_WAITERS: Final = "asyncio-waitpid-"  # threads of asyncio that wait for a child process

Events = list[tuple[selectors.SelectorKey, int]]


class Clock:
    """The time of one borrowed loop. `works` says whether a step body may be waiting for the world; `stuck` hears that nothing
    will happen any more."""

    def __init__(self, loop: Any) -> None:
        self._now: float = loop.time()
        self._left_at: float | None = None
        self._threads = 0
        self._quiet: list[asyncio.Future[None]] = []
        self._loop = loop
        self._selector: selectors.BaseSelector = loop._selector
        self._run_in_executor = loop.run_in_executor
        self.works: list[Callable[[], bool]] = []
        self.stuck: list[Callable[[], None]] = []
        loop._selector = _Selector(self, self._selector)
        loop.time = self.time
        loop.run_in_executor = self._in_executor

    def time(self) -> float:
        """The loop's time, in seconds."""
        return self._now if self._left_at is None else self._now + time.monotonic() - self._left_at

    def leave(self) -> None:
        """Let time be real from now on."""
        self._left_at = time.monotonic()

    def take(self) -> None:
        """Take the loop again."""
        self._now, self._left_at = self.time(), None

    async def quiet(self) -> None:
        """Wait until nothing more happens without time going on."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._quiet.append(future)
        await future

    def is_timer(self, future: object) -> bool:
        """The future is one that a timer of the loop sets, as that of asyncio.sleep."""
        return any(future in (handle._args or ()) for handle in self._loop._scheduled if not handle._cancelled)

    def _in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        future = self._run_in_executor(executor, func, *args)
        self._threads += 1
        future.add_done_callback(self._thread_ended)
        return future

    def _thread_ended(self, _: object) -> None:
        self._threads -= 1

    # The idle wait.

    def select(self, timeout: float | None) -> Events:
        if self._left_at is not None:
            return self._selector.select(timeout)
        events = self._selector.select(0)
        if events or timeout is not None and timeout <= 0:
            return events
        if self._is_real():
            return self._wait(timeout)
        if self._has_open_files():
            events = self._wait(GRACE_S if timeout is None else min(GRACE_S, timeout))
            if events or self._is_real():
                return events
        return self._jump(timeout)

    def _jump(self, timeout: float | None) -> Events:
        if self._quiet:
            quiet, self._quiet = self._quiet, []
            for future in quiet:
                if not future.done():
                    future.set_result(None)
        elif timeout is None:
            return self._wait_for_ever()
        else:
            # The loop waits for a day at most. One step of a float further: months ahead, the tolerance that it adds to its time is lost
            # in rounding, and a timer is run only once its time has passed.
            self._now = math.nextafter(max(self._now + timeout, self._loop._scheduled[0].when()), math.inf)
        return []

    def _wait(self, timeout: float | None) -> Events:
        """A real wait; time goes on with it."""
        began = time.monotonic()
        events = self._selector.select(timeout)
        self._now += time.monotonic() - began
        return events

    def _wait_for_ever(self) -> Events:
        # Somebody outside may still know this loop: a thread of the test, a signal handler.
        events = self._wait(STUCK_S)
        if not events:
            for tell in self.stuck:
                tell()
        return events

    def _is_real(self) -> bool:
        if self._threads or any(thread.name.startswith(_WAITERS) for thread in threading.enumerate()):
            return True
        return self._has_open_files() and any(works() for works in self.works)

    def _has_open_files(self) -> bool:
        own = self._loop._ssock
        return any(key.fileobj is not own and key.fd != own.fileno() and not _listens(key.fd) for key in self._selector.get_map().values())


def _listens(fd: int) -> bool:
    """A listening socket alone brings nothing: who connects has a socket too."""
    try:
        with socket.socket(fileno=fd) as found:
            try:
                return bool(found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
            finally:
                found.detach()
    except OSError:
        return False


class _Selector:
    """The loop's selector, whose wait is the clock's."""

    def __init__(self, clock: Clock, selector: selectors.BaseSelector) -> None:
        self._clock = clock
        self._selector = selector

    def select(self, timeout: float | None = None) -> Events:
        return self._clock.select(timeout)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._selector, name)


_CLOCKS: WeakKeyDictionary[Any, Clock] = WeakKeyDictionary()
_USERS: WeakKeyDictionary[Any, int] = WeakKeyDictionary()


@contextmanager
def borrowed(loop: asyncio.AbstractEventLoop) -> Iterator[Clock]:
    """The clock of this loop, shared by all who borrow it at the same time. Raises Rejected for a loop that is not asyncio's own."""
    if not isinstance(loop, asyncio.SelectorEventLoop):
        raise Rejected(
            f"virtual time needs one of asyncio's own event loops, and this test runs on {type(loop).__module__}.{type(loop).__name__}:"
            " run it with asyncio.run, or configure your test runner for asyncio's default loop"
        )
    clock = _CLOCKS.get(loop) or _CLOCKS.setdefault(loop, Clock(loop))
    _USERS[loop] = users = _USERS.get(loop, 0) + 1
    if users == 1:
        clock.take()
    try:
        yield clock
    finally:
        _USERS[loop] -= 1
        if not _USERS[loop]:
            clock.leave()
