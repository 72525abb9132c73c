# Staying awake for an answer that is due in a moment.
#
# Waking a processor that has gone to sleep takes longer than a step's whole work here. So who has just sent one small thing, and waits
# for the answer to it, turns its loop for a short while in place of letting it sleep. With more under way than that the loop has work
# enough, and the time would be taken from others: then nobody spins. Nor does one for whom the answers mostly come too late, from a slow
# disk or on a machine where others have the processors.
from __future__ import annotations

import asyncio
from collections.abc import Callable

from fusee_mp.core.worth import Worth


class Spin:
    """Keeps a loop from sleeping for `most_s` after each `start`, or until `stop`. Costs nothing in between."""

    def __init__(self, loop: asyncio.AbstractEventLoop, most_s: float, clock: Callable[[], float]) -> None:
        self._loop = loop
        self._most_s = most_s
        self._clock = clock
        self._worth = Worth()
        self._until: float | None = None
        self._is_turning = False

    def is_on(self) -> bool:
        return self._until is not None

    def start(self) -> None:
        """Something was sent."""
        now = self._clock()
        if not self._worth.is_wanted(now):
            return
        self._until = now + self._most_s
        if not self._is_turning:
            self._is_turning = True
            self._loop.call_soon(self._turn)

    def stop(self) -> None:
        """The answer is there."""
        if self._until is not None:
            self._until = None
            self._worth.observe(True, self._clock())

    def _turn(self) -> None:
        if self._until is None:
            self._is_turning = False
        elif (now := self._clock()) < self._until:
            self._loop.call_soon(self._turn)
        else:
            self._is_turning, self._until = False, None
            self._worth.observe(False, now)
