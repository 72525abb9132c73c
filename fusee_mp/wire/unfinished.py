# Memory that peers hold by beginning frames and not ending them.
#
# Each may hold one frame; all together they are bounded. Beyond the bound the one gives way that has had nothing new for longest: a slow
# line goes on all the time, so whoever begins many and ends none drives out itself.
"""`Unfinished`: counts what frames hold whose ends have not come."""
from __future__ import annotations

from typing import Final

from fusee_mp.wire.stream import Stream

GAVE_WAY: Final = "busy: too many frames were begun and not finished, and nothing of this one had come for longest: try again"


class Unfinished:
    """Of connections that say what they hold, at most `bytes_max` in all."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._held: dict[Stream, int] = {}  # who had nothing new for longest is first

    @property
    def bytes(self) -> int:
        return self._bytes

    def note(self, stream: Stream, held: int) -> None:
        """Something came, and a connection holds so much of a frame; 0 when it is gone."""
        before = self._held.pop(stream, 0)
        if held:
            self._held[stream] = held
        self._bytes += held - before
        while self._bytes > self._bytes_max:
            first = next(iter(self._held))
            self._bytes -= self._held.pop(first)
            first.close(GAVE_WAY)
