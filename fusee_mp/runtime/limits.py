# Permits for steps, as the runtime asks for them.
#
# Rule 1: a step that names a limit begins only with a permit, and gives it back when its attempt has ended, however it ended.
# Rule 2: a permit is answered from a callback of its own, never from within the asking.
# Rule 3: in one process a permit ends when it is given back: whoever holds it cannot be cut off from the table.
from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from fusee_mp.core.permits import FOR_EVER_MS, Granted, Permits, RetryAt
from fusee_mp.core.waitqueue import Priority
from fusee_mp.errors import Rejected

if TYPE_CHECKING:
    from fusee_mp.runtime.steps import StepCall


class Limits(Protocol):
    """Where this process gets its permits."""

    def ask(self, name: str, priority: Priority, granted: Callable[[], object], undefined: Callable[[], object]) -> int:
        """Queue for a permit and return its ticket; `granted` or `undefined` is called later, once."""

    def release(self, ticket: int) -> None:
        """Give the permit back, or give up waiting for it."""


class NoLimits:
    """For homes whose steps never begin."""

    def ask(self, name: str, priority: Priority, granted: Callable[[], object], undefined: Callable[[], object]) -> int:
        raise AssertionError(f'a step that must not begin asked for a permit of "{name}"')

    def release(self, ticket: int) -> None:
        raise AssertionError("a permit that was never given came back")


class Permit:
    """A step's permit under a limit, asked for when it is made."""

    __slots__ = ("is_held", "_call", "_limit", "_ticket")

    def __init__(self, call: StepCall, limit: str) -> None:
        self.is_held = False
        self._call = call
        self._limit = limit
        options = call.options
        priority = Priority(options.priority, options.fairness, options.weight)
        self._ticket = call.run.shard.home.limits.ask(limit, priority, self._granted, self._undefined)

    def _granted(self) -> None:
        call = self._call
        if call.permit is self:
            self.is_held = True
            call.run.shard.hold(call.run.gate, call.begin)
            call.run.shard.work_soon()

    def _undefined(self) -> None:
        if self._call.permit is self:
            self._call.refuse(Rejected(
                f'step "{self._call.name}" names the limit "{self._limit}", which is not defined.'
                f' Define it: engine.limit("{self._limit}", Limit(concurrent=..)), or `fusee-mp limits {self._limit} --concurrent N`',
                limit=self._limit,
            ))

    def give_back(self) -> None:
        self._call.run.shard.home.limits.release(self._ticket)


class LocalLimits:
    """Permits from tables in this process; `table_of` finds the one a name belongs to."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], int], table_of: Callable[[str], Permits]) -> None:
        self._loop = loop
        self._clock = clock
        self._table_of = table_of
        self._last = 0
        self._names: dict[int, str] = {}
        self._waiting: dict[str, dict[int, tuple[Priority, Callable[[], object]]]] = {}
        self._retries: dict[str, asyncio.TimerHandle] = {}

    def ask(self, name: str, priority: Priority, granted: Callable[[], object], undefined: Callable[[], object]) -> int:
        self._last += 1
        if self._table_of(name).spec(name) is None:
            self._loop.call_soon(undefined)
        else:
            self._names[self._last] = name
            self._waiting.setdefault(name, {})[self._last] = (priority, granted)
            self._ask(name, self._last, priority)
            self.serve(name)
        return self._last

    def release(self, ticket: int) -> None:
        name = self._names.pop(ticket, None)
        if name is None:
            return
        self._waiting.get(name, {}).pop(ticket, None)
        self._table_of(name).release(name, 0, ticket)
        self.serve(name)

    def serve(self, name: str) -> None:
        """Grant what can be granted: a permit came back, or the limit was defined anew."""
        waiting = self._waiting.get(name)
        while waiting:
            ticket, (priority, _) = next(iter(waiting.items()))
            if not self._ask(name, ticket, priority):
                return

    def _ask(self, name: str, ticket: int, priority: Priority) -> bool:
        now = self._clock()
        answer = self._table_of(name).acquire(name, 0, ticket, priority, now_ms=now, lease_ms=FOR_EVER_MS)
        if isinstance(answer, Granted):
            entry = self._waiting[name].pop(answer.ticket, None)
            if entry is not None:
                self._loop.call_soon(entry[1])
            return True
        if isinstance(answer, RetryAt) and name not in self._retries:
            self._retries[name] = self._loop.call_later(max(1, answer.at_ms - now) / 1000, self._retry, name)
        return False

    def _retry(self, name: str) -> None:
        del self._retries[name]
        self.serve(name)

    def close(self) -> None:
        for timer in self._retries.values():
            timer.cancel()
