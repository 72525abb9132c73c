# Beginnings at a pace.
#
# What strangers make a process do takes time from those it serves. So only so much of it is done in a second, and who comes next is chosen
# address by address: a flood waits for itself, and who comes from elsewhere waits for nobody. In quiet times nobody waits at all.
"""`Turns`: lets those who wait go on, at a pace, and the addresses in turn."""
from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from fusee_mp.security.crowd import Crowd

T = TypeVar("T")
LOOK_S: Final = 0.005


class Turns(Generic[T]):
    """Calls `on_turn` for each member, `per_second` of them and at most a quarter of that at once."""

    def __init__(self, loop: asyncio.AbstractEventLoop, per_second: int, on_turn: Callable[[T], None]) -> None:
        self._loop, self._per_second, self._on_turn = loop, per_second, on_turn
        self._waiting: Crowd[T] = Crowd()
        self._most = self._left = per_second / 4
        self._counted_at = loop.time()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, member: T, host: str) -> None:
        self._waiting.add(member, host)
        if self._timer is None:
            self._look()

    def remove(self, member: T) -> None:
        """It waits no longer; one that has had its turn is no error."""
        self._waiting.remove(member)

    def _look(self) -> None:
        self._timer = None
        now = self._loop.time()
        self._left = min(self._most, self._left + (now - self._counted_at) * self._per_second)
        self._counted_at = now
        while len(self._waiting) and self._left >= 1:
            self._left -= 1
            self._on_turn(self._waiting.take_next())
        if len(self._waiting):
            self._timer = self._loop.call_later(LOOK_S, self._look)

    def close(self) -> None:
        """Nobody has a turn any more."""
        if self._timer is not None:
            self._timer.cancel()
