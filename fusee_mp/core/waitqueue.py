# Who is served next: the highest level first; within a level, fairness keys take turns; within a key, first come first served.
#
# Keys take turns by stride scheduling. Each key has a turn, a number that grows by 1/weight whenever it is served, and the key with
# the lowest turn is next. So a key of weight w gets w turns in proportion, and at any time two keys that both kept waiting differ by
# less than one turn of the lighter one. Deficit round robin gives the same shares, but in bursts: a key of weight 100 would hold
# every permit for 100 turns in a row.
# Rule 1: a grant moves the turn of its key on, a withdrawal does not.
# Rule 2: a key that comes (back) begins at the turn last served, or at its own if that is later. Waiting earns no credit, and leaving
#         the queue pays no debt: else a key that always has one ticket would be served every time.
# Rule 3: a level where nobody waits forgets its turns. There was nobody to be unfair to.
# Equal turns are served in the order in which the tickets came, so with equal weights the keys rotate.
from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Final, Generic, TypeVar

from msgspec import Struct

from fusee_mp.bounds import FAIRNESS_WEIGHT_MAX, PRIORITY_LEVEL_MAX
from fusee_mp.errors import Rejected, StorageError

T = TypeVar("T", bound=Hashable)

# One turn of a key of weight 1. Turns are whole numbers, so that a saved queue goes on exactly as it was.
TURN: Final = 1 << 32


class Priority(Struct, frozen=True):
    """level: higher first. fairness: the key that takes turns with others of its level. weight: that key's share of turns."""

    level: int = 0
    fairness: str = ""
    weight: int = 1

    def check(self) -> Priority:
        """This priority, if it may be one; else Rejected."""
        if not _is_int(self.level, -PRIORITY_LEVEL_MAX - 1, PRIORITY_LEVEL_MAX):
            raise Rejected(f"priority: expected a whole number of 32 bits, found {self.level!r:.80}. Higher numbers go first; 0 is usual.")
        if not isinstance(self.fairness, str):
            raise Rejected(f"fairness: expected text, found {self.fairness!r:.80}. Name the tenant, customer, .. that takes turns.")
        if not _is_int(self.weight, 1, FAIRNESS_WEIGHT_MAX):
            raise Rejected(f"weight: expected a whole number from 1 to {FAIRNESS_WEIGHT_MAX:,}, found {self.weight!r:.80}. 1 is usual.")
        return self


DEFAULT: Final = Priority()


class _Lane(Generic[T]):
    """One fairness key of one level. waiting: (arrival, weight) by ticket, first come first."""

    __slots__ = ("waiting", "turn")

    def __init__(self, turn: int) -> None:
        self.waiting: OrderedDict[T, tuple[int, int]] = OrderedDict()
        self.turn = turn

    @property
    def head(self) -> tuple[T, int, int]:
        ticket = next(iter(self.waiting))
        return ticket, *self.waiting[ticket]


class _Level(Generic[T]):
    """turn: the one last served. idle: (turn, key) of lanes without tickets that are still ahead of it."""

    __slots__ = ("turn", "waiting", "lanes", "idle")

    def __init__(self) -> None:
        self.turn = 0
        self.waiting = 0
        self.lanes: dict[str, _Lane[T]] = {}
        self.idle: list[tuple[int, str]] = []

    def rest(self, key: str) -> None:
        """A lane has run empty: keep its turn for as long as it is ahead of the others."""
        heapq.heappush(self.idle, (self.lanes[key].turn, key))
        while self.idle and self.idle[0][0] <= self.turn:
            turn, key = heapq.heappop(self.idle)
            lane = self.lanes.get(key)
            if lane is not None and not lane.waiting and lane.turn == turn:
                del self.lanes[key]
        if len(self.idle) > 2 * len(self.lanes) + 64:
            self.idle = sorted((lane.turn, key) for key, lane in self.lanes.items() if not lane.waiting)


class WaitQueue(Generic[T]):
    __slots__ = ("_levels", "_place", "_heap", "_arrivals")

    def __init__(self) -> None:
        self._levels: dict[int, _Level[T]] = {}
        self._place: dict[T, Priority] = {}
        # (-level, turn, arrival, key) of every lane's head. Entries that no longer tell the truth are dropped when they come up.
        self._heap: list[tuple[int, int, int, str]] = []
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._place)

    def __contains__(self, ticket: object) -> bool:
        return ticket in self._place

    def push(self, ticket: T, priority: Priority = DEFAULT) -> None:
        """Queue a ticket. Only the first push of one counts. Raises Rejected for a priority that cannot be."""
        if ticket in self._place:
            return
        self._place[ticket] = priority.check()
        level = self._levels.setdefault(priority.level, _Level())
        lane = level.lanes.get(priority.fairness)
        if lane is None:
            lane = level.lanes[priority.fairness] = _Lane(level.turn)
        self._arrivals += 1
        level.waiting += 1
        lane.waiting[ticket] = (self._arrivals, priority.weight)
        if len(lane.waiting) == 1:
            lane.turn = max(lane.turn, level.turn)
            self._enter(priority.level, priority.fairness, lane)

    def next(self) -> T | None:
        """The ticket to be served next."""
        heap = self._heap
        while heap:
            depth, turn, arrival, key = heap[0]
            level = self._levels.get(-depth)
            lane = level.lanes.get(key) if level is not None else None
            if lane is not None and lane.waiting and lane.turn == turn:
                ticket, came, _ = lane.head
                if came == arrival:
                    return ticket
            heapq.heappop(heap)
        return None

    def pop_next(self) -> T | None:
        """Serve the next ticket: it leaves, and its key's turn moves on."""
        ticket = self.next()
        if ticket is None:
            return None
        place = self._place[ticket]
        level = self._levels[place.level]
        lane = level.lanes[place.fairness]
        level.turn = lane.turn
        lane.turn += TURN // lane.waiting[ticket][1]
        self._leave(ticket)
        return ticket

    def remove(self, ticket: T) -> None:
        """Withdraw a ticket; one that does not wait is none of our business."""
        if ticket in self._place:
            self._leave(ticket)

    def remove_if(self, unwanted: Callable[[T], bool]) -> None:
        for ticket in [ticket for ticket in self._place if unwanted(ticket)]:
            self._leave(ticket)

    def _leave(self, ticket: T) -> None:
        place = self._place.pop(ticket)
        level = self._levels[place.level]
        lane = level.lanes[place.fairness]
        del lane.waiting[ticket]
        level.waiting -= 1
        if not level.waiting:
            del self._levels[place.level]
        elif lane.waiting:
            self._enter(place.level, place.fairness, lane)
        else:
            level.rest(place.fairness)

    def _enter(self, level: int, key: str, lane: _Lane[T]) -> None:
        heapq.heappush(self._heap, (-level, lane.turn, lane.head[1], key))
        if len(self._heap) > 2 * len(self._place) + 64:
            self._heap = [(-depth, lane.turn, lane.head[1], key) for depth, level_ in self._levels.items()
                          for key, lane in level_.lanes.items() if lane.waiting]
            heapq.heapify(self._heap)

    def state(self, plain: Callable[[T], Any]) -> dict[str, Any]:
        """As plain values: the tickets in the order they came, and how far each key is ahead of the turn last served."""
        came = sorted(((arrival, ticket) for level in self._levels.values() for lane in level.lanes.values()
                       for ticket, (arrival, _) in lane.waiting.items()), key=lambda entry: entry[0])
        ahead = [[depth, key, lane.turn - level.turn] for depth, level in sorted(self._levels.items())
                 for key, lane in sorted(level.lanes.items()) if lane.turn > level.turn]
        places = [(ticket, self._place[ticket]) for _, ticket in came]
        return {"waiting": [[plain(ticket), place.level, place.fairness, place.weight] for ticket, place in places], "ahead": ahead}

    @classmethod
    def load(cls, waiting: Iterable[tuple[T, Priority]], ahead: Iterable[tuple[int, str, int]]) -> WaitQueue[T]:
        """The queue that `state` described. Raises StorageError for what no queue can have written."""
        self: WaitQueue[T] = cls()
        for depth, key, turns in ahead:
            level = self._levels.setdefault(depth, _Level())
            if turns < 0 or key in level.lanes:
                raise StorageError(f"saved wait queue: key {key!r} of level {depth} stands twice or behind its level ({turns})")
            level.lanes[key] = _Lane(turns)
        for ticket, priority in waiting:
            if ticket in self._place:
                raise StorageError(f"saved wait queue: ticket {ticket!r} waits twice")
            self.push(ticket, priority)
        self._settle()
        return self

    def _settle(self) -> None:
        for depth, level in list(self._levels.items()):
            if not level.waiting:
                raise StorageError(f"saved wait queue: level {depth} has turns, but nobody waits there")
            for key in [key for key, lane in level.lanes.items() if not lane.waiting]:
                level.rest(key)


def _is_int(value: object, first: int, last: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and first <= value <= last
