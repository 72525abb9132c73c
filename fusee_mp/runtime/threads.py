# Threads for `def` steps.
#
# The standard pool has the interpreter wait at its end for every thread that is still at work, so one slow step would keep a process
# alive long after everybody has stopped waiting for it. A thread cannot be stopped; these end with the process, and what their
# body brings is dropped: the step runs again.
from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from typing import Any

_Job = tuple["Future[Any]", Callable[..., Any], tuple[Any, ...], dict[str, Any]]


class Threads(Executor):
    """At most `most` threads, made when they are needed and kept."""

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._count = 0
        self._lock = threading.Lock()
        self._is_shut = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        with self._lock:
            if self._is_shut:
                raise RuntimeError("the threads for steps were shut down")
            self._jobs.put((future, fn, args, kwargs))
            if not self._idle.acquire(blocking=False) and self._count < self._most:
                self._count += 1
                threading.Thread(target=self._work, name=f"{self._name}-{self._count}", daemon=True).start()
        return future

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, fn, args, kwargs = job
            if future.set_running_or_notify_cancel():
                try:
                    result = fn(*args, **kwargs)
                except BaseException as e:
                    future.set_exception(e)
                else:
                    future.set_result(result)
            del job, future, fn, args, kwargs  # an idle thread must keep nothing of the last step alive
            self._idle.release()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more work. Threads that are at work go on; nobody waits for them."""
        with self._lock:
            self._is_shut = True
            for _ in range(self._count):
                self._jobs.put(None)
