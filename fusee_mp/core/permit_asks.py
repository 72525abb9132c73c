# A worker's side of step limits: which tickets it has, and what to say to the table.
#
# Rule 1: a ticket is asked for when it comes, so that the table knows its place; then only the worker's own next one of each limit is
#         asked for again. Any ask of this worker lets the table grant whichever of its tickets is next, and the answer names it.
#         When one is granted, the next is asked for at once: a table that was started again meanwhile does not know of it.
# Rule 2: what is said leaves in the order in which it was returned here; a release that overtook its ask would leave a permit behind.
# Asks that a broken connection swallowed need no care: the next one is asked for again with every pass.
from __future__ import annotations

from typing import Final, TypeAlias

from msgspec import Struct

from fusee_mp.bounds import PERMIT_RENEW_MS
from fusee_mp.core.permits import CLIENT_SHIFT
from fusee_mp.core.waitqueue import DEFAULT, Priority, WaitQueue


class Ask(Struct, frozen=True):
    """Say `acquire` to the table."""

    name: str
    ticket: int
    priority: Priority


class Release(Struct, frozen=True):
    name: str
    ticket: int


class Renew(Struct, frozen=True):
    """Say `confirm` to the table: these are held."""

    name: str
    tickets: list[int]


Say: TypeAlias = Ask | Release | Renew
_ASKED: Final = -1
_GRANTED: Final = -2


class _Ticket:
    """state: asked, granted, or the time of the next ask."""

    __slots__ = ("name", "priority", "state")

    def __init__(self, name: str, priority: Priority) -> None:
        self.name = name
        self.priority = priority
        self.state = _ASKED


class PermitAsks:
    __slots__ = ("_tickets", "_waiting", "_granted", "_last", "_renewed_ms")

    def __init__(self, worker: int) -> None:
        """`worker`: the number of who asks, below 2**24 and its own, so that no two make the same ticket."""
        self._tickets: dict[int, _Ticket] = {}
        self._waiting: dict[str, WaitQueue[int]] = {}
        self._granted: dict[str, set[int]] = {}
        self._last = worker << CLIENT_SHIFT
        self._renewed_ms: int | None = None

    def ticket(self) -> int:
        """A new ticket."""
        self._last += 1
        return self._last

    def acquire(self, name: str, ticket: int, priority: Priority = DEFAULT) -> list[Say]:
        """A step wants to begin under this limit. Nothing to say when that is known. Raises Rejected for a priority that cannot be."""
        if ticket in self._tickets:
            return []
        priority.check()
        self._waiting.setdefault(name, WaitQueue()).push(ticket, priority)
        self._tickets[ticket] = _Ticket(name, priority)
        return [Ask(name, ticket, priority)]

    def granted(self, ticket: int) -> bool:
        """The table granted this ticket. True when its step may begin now; a repeat, or one released meanwhile, is no news."""
        known = self._tickets.get(ticket)
        if known is None or known.state == _GRANTED:
            return False
        known.state = _GRANTED
        self._granted.setdefault(known.name, set()).add(ticket)
        self._leave(known.name, ticket, served=True)
        return True

    def retry_at(self, ticket: int, at_ms: int) -> None:
        """The table grants nothing before this time."""
        known = self._tickets.get(ticket)
        if known is not None and known.state != _GRANTED:
            known.state = at_ms

    def release(self, ticket: int) -> list[Say]:
        """The step has ended, or gives up waiting."""
        known = self._tickets.pop(ticket, None)
        if known is None:
            return []
        if known.state == _GRANTED:
            self._give_back(known.name, ticket)
        else:
            self._leave(known.name, ticket, served=False)
        return [Release(known.name, ticket)]

    def pass_time(self, now_ms: int) -> list[Say]:
        """What is to be said now: a renewal each second while anything is held, and the next ticket of each limit once more."""
        says: list[Say] = []
        if self._renewed_ms is None or not self._renewed_ms <= now_ms < self._renewed_ms + PERMIT_RENEW_MS:
            self._renewed_ms = now_ms
            says += [Renew(name, sorted(tickets)) for name, tickets in self._granted.items()]
        for name in self._waiting:
            says += self.ask_next(name, now_ms)
        return says

    def ask_next(self, name: str, now_ms: int) -> list[Say]:
        """The next ticket of this limit once more, if one waits and its time has come."""
        queue = self._waiting.get(name)
        ticket = None if queue is None else queue.next()
        if ticket is None or self._tickets[ticket].state > now_ms:
            return []
        return [Ask(name, ticket, self._tickets[ticket].priority)]

    def in_use(self, name: str) -> int:
        """Permits of this limit that this worker holds."""
        return len(self._granted.get(name, ()))

    def waiting(self, name: str) -> int:
        """Tickets of this worker that wait for this limit."""
        queue = self._waiting.get(name)
        return 0 if queue is None else len(queue)

    def _give_back(self, name: str, ticket: int) -> None:
        held = self._granted[name]
        held.remove(ticket)
        if not held:
            del self._granted[name]

    def _leave(self, name: str, ticket: int, served: bool) -> None:
        queue = self._waiting[name]
        # A grant of the next ticket moves its key's turn on, as it did in the table; a withdrawal does not.
        if served and queue.next() == ticket:
            queue.pop_next()
        else:
            queue.remove(ticket)
        if not queue:
            del self._waiting[name]
