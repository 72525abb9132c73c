"""`Waiting`: calls that wait for their answers, by who asked, and how much of what they may have is taken."""
from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from fusee_mp.errors import ProtocolError

# What travels as a call but is answered by the keeper, with everything durable applied.
CLIENT_READS: Final = frozenset(("status", "describe", "list", "count", "tally"))
# Calls that wait for what comes by itself, also when nobody asks.
WAITS: Final = frozenset(("result", "started"))
GAVE_WAY: Final = "too much waits here, most of it for this connection: this question was given up. Wait for answers before you ask more"


class Asked(Protocol):
    """A call: who asked (anything that is hashed), under which number, and what."""

    @property
    def owner(self) -> object: ...
    @property
    def request(self) -> int: ...
    @property
    def method(self) -> str: ...
    @property
    def size(self) -> int: ...


T = TypeVar("T", bound=Asked)


class Bounds(NamedTuple):
    calls: int
    bytes: int
    reads: int


class _Share:
    """What waits: of all, or of one who asks."""

    __slots__ = ("calls", "bytes", "reads", "ids", "number")

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.calls = self.bytes = self.reads = 0
        self.ids: dict[int, int] = {}  # of one who asks: by the number of the request

    def add(self, call: Asked, sign: int = 1) -> None:
        self.calls += sign
        self.bytes += sign * call.size
        self.reads += sign * (call.method in CLIENT_READS)

    def lacks_room(self, call: Asked, most: Bounds) -> str:
        if call.method in CLIENT_READS and self.reads >= most.reads:
            return f"{self.reads} questions for its store"
        if self.calls >= most.calls or self.bytes + call.size > most.bytes:
            return f"{self.calls} calls of {self.bytes} bytes"
        return ""


_NOTHING: Final = _Share()


class Waiting(Generic[T]):
    """The calls, by numbers given here. `of_all` bounds them, `of_one` those of one who asks. `on_dropped` is told of those that are taken
    out because nobody waits for them any more."""

    def __init__(self, of_all: Bounds, of_one: Bounds, on_dropped: Callable[[int, T], None]) -> None:
        self._bound_of_all, self._bound_of_one, self._on_dropped = of_all, of_one, on_dropped
        self._ids, self._owners = itertools.count(1), itertools.count(1)
        self._calls: dict[int, T] = {}
        self._all = _Share()
        self._of: dict[object, _Share] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def make_room(self, call: T, gave_way: Callable[[T], None]) -> str:
        """See to room for this one: who has most lets its newest questions go, of which `gave_way` is told. What leaves no room, if any
        thing does: calls that change something stay, and nobody gives way to who has as much."""
        while full := self._all.lacks_room(call, self._bound_of_all):
            id = self._who_gives_way(call)
            if id is None:
                return full
            gave_way(self._drop(id))
        return ""

    def _who_gives_way(self, call: T) -> int | None:
        is_read = call.method in CLIENT_READS and self._all.reads >= self._bound_of_all.reads
        owner, most = max(self._of.items(), key=lambda item: item[1].reads if is_read else item[1].calls)
        own = self._of.get(call.owner, _NOTHING)
        if owner == call.owner or most.calls <= own.calls + 1:
            return None
        may_go = CLIENT_READS if is_read else CLIENT_READS | WAITS
        return next((id for id in reversed(most.ids.values()) if self._calls[id].method in may_go), None)

    def number_of(self, owner: object) -> int:
        """A number that nobody else has who asks."""
        return self._of[owner].number

    def lacks_own_room(self, call: T) -> str:
        """The same of what its own asker has there."""
        own = self._of.get(call.owner)
        return own.lacks_room(call, self._bound_of_one) if own is not None else ""

    def add(self, call: T) -> int:
        """Keep it; its number here. Raises ProtocolError for a request whose number still waits."""
        own = self._of.get(call.owner) or _Share(next(self._owners))
        if call.request in own.ids:
            raise ProtocolError(f"request {call.request} still waits for its answer: give each request a number of its own")
        id = own.ids[call.request] = next(self._ids)
        self._of[call.owner] = own
        self._calls[id] = call
        self._all.add(call)
        own.add(call)
        return id

    def get(self, id: int) -> T | None:
        return self._calls.get(id)

    def items(self) -> Iterator[tuple[int, T]]:
        """All of now, also when some are taken out meanwhile."""
        return iter(list(self._calls.items()))

    def take(self, id: int) -> T | None:
        """Take it out, if nobody has."""
        call = self._calls.pop(id, None)
        if call is not None:
            self._all.add(call, -1)
            own = self._of[call.owner]
            own.add(call, -1)
            del own.ids[call.request]
            if not own.calls:
                del self._of[call.owner]
        return call

    def cancel(self, owner: object, request: int) -> None:
        """Who asked no longer waits for this one."""
        own = self._of.get(owner)
        if own is not None and request in own.ids:
            self._drop(own.ids[request])

    def forget(self, owner: object) -> None:
        """Who asked is gone."""
        own = self._of.get(owner)
        for id in list(own.ids.values()) if own is not None else ():
            self._drop(id)

    def _drop(self, id: int) -> T:
        call = self.take(id)
        assert call is not None
        self._on_dropped(id, call)
        return call
