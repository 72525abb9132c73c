# Staying awake for an answer that is due in a moment.
#
# Waking a processor that has gone to sleep takes longer than a step's whole work here. So who has just sent one small thing, and waits
# for the answer to it, turns its loop for a short while in place of letting it sleep. With more under way than that the loop has work
# enough, and the time would be taken from others: then nobody spins.
from __future__ import annotations

import asyncio
from collections.abc import Callable


class Spin:
    """Keeps a loop from sleeping for `most_s` after each `start`, or until `stop`. Costs nothing in between."""

    def __init__(self, loop: asyncio.AbstractEventLoop, most_s: float, clock: Callable[[], float]) -> None:
        self._loop = loop
        self._most_s = most_s
        self._clock = clock
        self._until = 0.0
        self._is_turning = False

    def start(self) -> None:
        self._until = self._clock() + self._most_s
        if not self._is_turning:
            self._is_turning = True
            self._loop.call_soon(self._turn)

    def stop(self) -> None:
        self._until = 0.0

    def _turn(self) -> None:
        if self._clock() < self._until:
            self._loop.call_soon(self._turn)
        else:
            self._is_turning = False
