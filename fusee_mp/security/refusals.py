"""`Refusals`: what the log says of connections that were turned away, in few lines however many they are."""
from __future__ import annotations

import asyncio
import logging

from fusee_mp.logs import Seldom


class Refusals(Seldom):
    """`count`: how many there were."""

    def __init__(self, loop: asyncio.AbstractEventLoop, log: logging.Logger) -> None:
        self.count = 0
        super().__init__(
            loop, log, "a connection was refused: %s", "%d more connections were refused within %g s, the last: %s", logging.WARNING)

    def refused(self, host: str, why: str) -> None:
        self.count += 1
        self.note(f"{host or 'gone already'}: {why}")
