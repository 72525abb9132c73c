# Messages between shards: every one arrives exactly once, in order.
#
# The sender numbers its messages densely per receiving shard; a message is a record of the sender's log before it leaves.
# The receiver takes exactly the next number and records the position together with the arrival; what is not the next is
# dropped, since the sender sends again from the first that is not acknowledged.
# Rule: an acknowledgment leaves the receiver only when the record with the position is durable, and a message leaves the
#       sender only when its record is.
from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

# How many messages go out again at once when an acknowledgment is late: a lost one is rare, a slow receiver is not.
RESEND_MAX: Final = 256


class Outbox:
    """Messages of one shard that their receivers have not acknowledged."""

    __slots__ = ("_next", "_waiting")

    def __init__(self, next_numbers: Iterable[tuple[int, int]] = ()) -> None:
        self._next: dict[int, int] = dict(next_numbers)
        self._waiting: dict[int, deque[tuple[int, bytes]]] = {}

    def start_at(self, to: int, no: int) -> None:
        """The next message to this shard will bear this number."""
        self._next[to] = no

    def number(self, to: int) -> int:
        """The number of the next message to this shard, now taken."""
        no = self._next.get(to, 1)
        self._next[to] = no + 1
        return no

    def put(self, to: int, no: int, message: bytes) -> None:
        self._waiting.setdefault(to, deque()).append((no, message))
        if no >= self._next.get(to, 1):
            self._next[to] = no + 1

    def acknowledged(self, to: int, through: int) -> bool:
        """The receiver holds everything up to `through`. True when that is news."""
        queue = self._waiting.get(to)
        if not queue or queue[0][0] > through:
            return False
        while queue and queue[0][0] <= through:
            queue.popleft()
        if not queue:
            del self._waiting[to]
        return True

    def waiting(self) -> list[int]:
        """The shards that have not acknowledged everything."""
        return list(self._waiting)

    def first(self, to: int, most: int = RESEND_MAX) -> list[tuple[int, bytes]]:
        """The oldest messages to this shard that are not acknowledged."""
        queue = self._waiting.get(to, ())
        return [entry for entry, _ in zip(queue, range(most), strict=False)]

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))


class Inbox:
    """How far the messages of each sending shard have been taken."""

    __slots__ = ("_taken",)

    def __init__(self, positions: Iterable[tuple[int, int]] = ()) -> None:
        self._taken: dict[int, int] = dict(positions)

    def take(self, sender: int, no: int) -> bool:
        """True when this is the sender's next message, now taken; else it is a repeat or comes too early."""
        if no != self._taken.get(sender, 0) + 1:
            return False
        self._taken[sender] = no
        return True

    def taken(self, sender: int) -> int:
        return self._taken.get(sender, 0)
