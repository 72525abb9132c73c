"""`RunningTime`: a clock that nearly stands while this process does not run."""
from __future__ import annotations

import asyncio
from typing import Final

BEAT_S: Final = 0.5


class RunningTime:
    """The time since this was made in which the loop ran.

    Of a stretch in which it did not (the process was stopped, the machine paused, a call blocked the loop) two beats count at most. So
    what this clock ends is not ended by such a stretch before the loop has read what came meanwhile.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._counted = 0.0
        self._beat_at = loop.time()
        self._timer = loop.call_later(BEAT_S, self._beat)

    def ms(self) -> int:
        return int((self._counted + self._since_beat()) * 1000)

    def _since_beat(self) -> float:
        return min(self._loop.time() - self._beat_at, 2 * BEAT_S)

    def _beat(self) -> None:
        self._counted += self._since_beat()
        self._beat_at = self._loop.time()
        self._timer = self._loop.call_later(BEAT_S, self._beat)

    def close(self) -> None:
        self._timer.cancel()
