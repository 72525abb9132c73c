"""`Refusals`: what the log says of connections that were turned away, in few lines however many they are."""
from __future__ import annotations

import asyncio
import logging
from typing import Final

QUIET_S: Final = 5.0


class Refusals:
    """Tells the first at once, and what follows within QUIET_S in one line, with their number and the last of them."""

    def __init__(self, loop: asyncio.AbstractEventLoop, log: logging.Logger) -> None:
        self.count = 0
        self._loop, self._log = loop, log
        self._untold = 0
        self._last = ""
        self._timer: asyncio.TimerHandle | None = None

    def note(self, host: str, why: str) -> None:
        self.count += 1
        self._last = f"{host or 'gone already'}: {why}"
        if self._timer is None:
            self._log.info("a connection was refused: %s", self._last)
            self._timer = self._loop.call_later(QUIET_S, self._tell)
        else:
            self._untold += 1

    def _tell(self) -> None:
        self._timer = None
        if self._untold:
            self._log.warning("%d more connections were refused within %g s, the last: %s", self._untold, QUIET_S, self._last)
            self._untold = 0
            self._timer = self._loop.call_later(QUIET_S, self._tell)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
