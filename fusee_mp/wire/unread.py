# Memory that peers hold by not reading what is sent to them.
#
# All together they are bounded: beyond it the one that has most waiting is ended, until the rest fits. Who reads never has more waiting
# than its transport asks a writer to pause for, and is not looked at. What waits is with the transport, or held by who writes it part by
# part.
"""`Unread`: bounds what waits for peers that are behind."""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from fusee_mp.wire.stream import Stream

# So much may be sent to those who are behind between two looks at how far they are.
LOOK_EVERY_BYTES: Final = 4 << 20


class Unread:
    """Of connections that are told to pause, at most `bytes_max` in all."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._behind: set[Stream] = set()
        self._held: dict[Stream, int] = {}
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

    @contextmanager
    def holding(self, stream: Stream, size: int) -> Iterator[None]:
        """So much is held for one, and written part by part."""
        self._held[stream] = self._held.get(stream, 0) + size
        self._look()
        try:
            yield
        finally:
            self._held[stream] -= size
            if not self._held[stream]:
                del self._held[stream]

    def _look(self) -> None:
        streams = self._behind | self._held.keys()
        waiting = sorted((stream.unsent_bytes + self._held.get(stream, 0), id(stream), stream) for stream in streams if stream.is_open)
        total = sum(size for size, _, _ in waiting)
        while total > self._bytes_max:
            size, _, stream = waiting.pop()
            total -= size
            stream.abort(f"the peer does not read: {size} bytes wait for it, and {total + size} for all who do not")
