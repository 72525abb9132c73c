# Who has which workflow types: what each worker is to know of the others.
#
# Most workers have the types of others already, and their coming and going is no news. So the types are counted, and only when one comes
# that nobody had, or the last worker of one goes, are all told anew. What each is told is bounded, and when (see Telling).
"""`Elsewhere`: the news. `Telling`: when it is told."""
from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from fusee_mp.bounds import ELSEWHERE_BYTES_MAX, ELSEWHERE_NAMES_MAX
from fusee_mp.router.seats import Member

# After telling there is a pause of so many times what it took: however many come and go, it takes little of the router's time.
PAUSE_TIMES: Final = 10


class Elsewhere:
    """Remembers what each session was told."""

    def __init__(self) -> None:
        self._members: dict[int, Member] = {}
        self._workers: dict[str, int] = {}  # how many have a type
        self._told: dict[int, list[str]] = {}
        self._is_news = False

    def news(self, members: Mapping[int, Member]) -> Iterator[tuple[int, list[str]]]:
        """The sessions whose others have other types than when it was said last, with these types: as many as a worker is told."""
        for session in self._members.keys() - members.keys():
            self._left(session)
        new = [session for session in members if session not in self._members]
        for session in new:
            self._joined(members[session])
        told, self._is_news = list(members) if self._is_news else new, False
        for session in told:
            own = self._members[session].types
            names = fitting((name for name in self._workers if name not in own), ELSEWHERE_BYTES_MAX, ELSEWHERE_NAMES_MAX)
            if names != self._told.get(session, []):
                self._told[session] = names
                yield session, names

    def _joined(self, member: Member) -> None:
        self._members[member.session] = member
        for name in member.workflows:
            self._is_news = self._is_news or name not in self._workers
            self._workers[name] = self._workers.get(name, 0) + 1

    def _left(self, session: int) -> None:
        self._told.pop(session, None)
        for name in self._members.pop(session).workflows:
            self._workers[name] -= 1
            if not self._workers[name]:
                del self._workers[name]
                self._is_news = True


class Telling:
    """Calls `tell` soon after `soon`, once for all that is said within a turn, and with pauses."""

    def __init__(self, loop: asyncio.AbstractEventLoop, tell: Callable[[], None]) -> None:
        self._loop, self._tell = loop, tell
        self._timer: asyncio.TimerHandle | None = None
        self._not_before = 0.0

    def soon(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_at(self._not_before, self._now)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _now(self) -> None:
        self._timer = None
        start = time.perf_counter()
        self._tell()
        self._not_before = self._loop.time() + PAUSE_TIMES * (time.perf_counter() - start)


def fitting(names: Iterable[str], bytes_max: int, count_max: int) -> list[str]:
    """The first of the names: so many at most, and so many bytes with the length that stands before each."""
    size = 0
    found: list[str] = []
    for name in names:
        size += len(name.encode()) + 5
        if size > bytes_max or len(found) == count_max:
            break
        found.append(name)
    return found
