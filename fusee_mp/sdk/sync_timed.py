"""Schedules, debounce and batch for blocking code."""
from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from fusee_mp.sdk.definitions import Workflow
from fusee_mp.sdk.schedules import ScheduleDetail, ScheduleHandle, ScheduleSpec
from fusee_mp.sdk.timed_methods import TimedMethods
from fusee_mp.sdk.windows import Batch, Debounce

if TYPE_CHECKING:
    from fusee_mp.sdk.sync import LoopThread, SyncRun

E = TypeVar("E")
I = TypeVar("I")
M = TypeVar("M", bound=TimedMethods)
R = TypeVar("R")


class SyncScheduleHandle:
    """`ScheduleHandle` for blocking code; its methods and errors are the same."""

    def __init__(self, thread: LoopThread, handle: ScheduleHandle) -> None:
        self.id = handle.id
        self._thread = thread
        self._handle = handle

    def __repr__(self) -> str:
        return repr(self._handle)

    def describe(self) -> ScheduleDetail:
        return self._thread.call(self._handle.describe)

    def next_times(self, n: int) -> list[datetime]:
        return self._thread.call(lambda: self._handle.next_times(n))

    def pause(self) -> None:
        self._thread.call(self._handle.pause)

    def resume(self) -> None:
        self._thread.call(self._handle.resume)

    def delete(self) -> None:
        self._thread.call(self._handle.delete)

    def trigger(self) -> SyncRun[Any]:
        from fusee_mp.sdk.sync import SyncRun

        return SyncRun(self._thread, self._thread.call(self._handle.trigger))

    def backfill(self, first: datetime, last: datetime) -> int:
        return self._thread.call(lambda: self._handle.backfill(first, last))


class SyncTimed(Generic[M]):
    """The methods; options and errors are those of `Engine`."""

    _thread: LoopThread
    _home: M

    def schedule(self, id: str, spec: ScheduleSpec[Any]) -> SyncScheduleHandle:
        """Make a schedule, or give the one of this ID another spec; on return it is durable."""
        handle = self._thread.call(lambda: self._home.schedule(id, spec))
        return SyncScheduleHandle(self._thread, handle)

    def schedule_handle(self, id: str) -> SyncScheduleHandle:
        """A handle on a schedule, without a call."""
        return SyncScheduleHandle(self._thread, self._home.schedule_handle(id))

    def schedules(self) -> list[ScheduleDetail]:
        """All schedules: by ID within a shard, shards ascending."""
        return self._thread.call(self._home.schedules)

    @overload
    def debounce(self, workflow: Workflow[I, R], key: str, input: I, rule: Debounce, event_id: str | None = None) -> SyncRun[R]: ...
    @overload
    def debounce(self, workflow: str, key: str, input: object, rule: Debounce, event_id: str | None = None) -> SyncRun[Any]: ...
    def debounce(self, workflow: Any, key: str, input: Any, rule: Debounce, event_id: str | None = None) -> SyncRun[Any]:
        """One run for many events of a key: it starts, with the last input, when they have ceased."""
        return self._run(lambda: self._home.debounce(workflow, key, input, rule, event_id))

    @overload
    def batch(self, workflow: Workflow[list[E], R], key: str, event: E, rule: Batch, event_id: str | None = None) -> SyncRun[R]: ...
    @overload
    def batch(self, workflow: str, key: str, event: object, rule: Batch, event_id: str | None = None) -> SyncRun[Any]: ...
    def batch(self, workflow: Any, key: str, event: Any, rule: Batch, event_id: str | None = None) -> SyncRun[Any]:
        """One run for many events of a key: it gets them all, in the order in which they came."""
        return self._run(lambda: self._home.batch(workflow, key, event, rule, event_id))

    def _run(self, make: Callable[[], Coroutine[Any, Any, Any]]) -> SyncRun[Any]:
        from fusee_mp.sdk.sync import SyncRun

        return SyncRun(self._thread, self._thread.call(make))
