"""The signals of one run: those that arrived and were not taken, and who waits for one."""
from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from fusee_mp.errors import PayloadError


class Signals:
    """Per name, in the order of arrival and of waiting. At most one of the two queues of a name is not empty."""

    __slots__ = ("_accepts", "_arrived", "_waiting")

    def __init__(self) -> None:
        self._arrived: dict[str, deque[bytes]] = {}
        self._waiting: dict[str, deque[asyncio.Future[Any]]] = {}
        self._accepts: dict[asyncio.Future[Any], Callable[[bytes], object]] = {}

    def arrived(self, name: str, payload: bytes) -> None:
        """Hand the signal to who has waited longest, or keep it."""
        if not self._hand_over(name, payload):
            self._arrived.setdefault(name, deque()).append(payload)

    def given_back(self, name: str, payload: bytes) -> None:
        """A wait that had been handed this signal was cancelled: it is the next one still."""
        if not self._hand_over(name, payload):
            self._arrived.setdefault(name, deque()).appendleft(payload)

    def _hand_over(self, name: str, payload: bytes) -> bool:
        waiting = self._waiting.get(name)
        while waiting:
            waiter = waiting.popleft()
            if not waiter.done():
                waiter.set_result(payload)
                return True
        return False

    def take(self, name: str) -> bytes | None:
        """The oldest signal of this name that nobody took."""
        arrived = self._arrived.get(name)
        return arrived.popleft() if arrived else None

    def untaken(self) -> Iterator[tuple[str, bytes]]:
        """Every signal that nobody took, with its name; those of one name in their order."""
        for name, arrived in self._arrived.items():
            yield from ((name, payload) for payload in arrived)

    def wait(self, name: str, waiter: asyncio.Future[Any], accepts: Callable[[bytes], object]) -> None:
        """Wait for the next signal of this name; `accepts` raises PayloadError for one of another type."""
        self._waiting.setdefault(name, deque()).append(waiter)
        self._accepts[waiter] = accepts

    def refusal(self, name: str, payload: bytes) -> PayloadError | None:
        """Why who waits for this name would pass such a signal over; None when nobody does, or it fits."""
        waiting = self._waiting.get(name)
        accepts = self._accepts.get(waiting[0]) if waiting else None
        try:
            if accepts is not None:
                accepts(payload)
        except PayloadError as e:
            return e
        return None

    def give_up(self, name: str, waiter: asyncio.Future[Any]) -> None:
        """This wait is over."""
        self._accepts.pop(waiter, None)
        waiting = self._waiting.get(name)
        if waiting and waiter in waiting:
            waiting.remove(waiter)
