# Memory that peers hold by not reading what is sent to them.
#
# Each has a bound of its own (see stream.py); all together they are bounded too: beyond it the one that has most waiting is ended, until
# the rest fits. Who reads never has more waiting than its transport asks a writer to pause for, and is not looked at.
"""`Unread`: bounds what waits for peers that are behind."""
from __future__ import annotations

from typing import Final

from fusee_mp.wire.stream import Stream

# So much may be sent to those who are behind between two looks at how far they are.
LOOK_EVERY_BYTES: Final = 4 << 20


class Unread:
    """Of connections that are told to pause, at most `bytes_max` in all."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._behind: set[Stream] = set()
        self._unlooked = 0

    def behind(self, stream: Stream, is_behind: bool) -> None:
        """A connection is behind, or no longer."""
        if is_behind:
            self._behind.add(stream)
        else:
            self._behind.discard(stream)

    def sent(self, size: int) -> None:
        """So much more waits for one that is behind."""
        self._unlooked += size
        if self._unlooked > LOOK_EVERY_BYTES:
            self._unlooked = 0
            self._look()

    def _look(self) -> None:
        waiting = sorted((stream.unsent_bytes, id(stream), stream) for stream in self._behind)
        total = sum(size for size, _, _ in waiting)
        while total > self._bytes_max:
            size, _, stream = waiting.pop()
            total -= size
            self._behind.discard(stream)
            stream.abort(f"the peer does not read: {size} bytes wait for it, and {total + size} for all who do not")
