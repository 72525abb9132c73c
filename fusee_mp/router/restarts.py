# When a shard process that ended is started again, and when that is given up.
#
# A first death is bad luck: it is started again at once. Deaths in a row get growing pauses, and too many of them within a short time
# have a cause that starting again does not mend. Then the whole server ends and says so: a supervisor or a person must look.
"""`Restarts`: the policy for one shard process, pure."""
from __future__ import annotations

from typing import Final

GIVE_UP_DEATHS: Final = 5
GIVE_UP_WINDOW_MS: Final = 30_000
PAUSE_FIRST_MS: Final = 100
PAUSE_MOST_MS: Final = 5_000
# After so long without a death the next one is the first again.
FORGET_MS: Final = 300_000


class Restarts:
    """Counts deaths; `total` is for people to see."""

    def __init__(self) -> None:
        self.total = 0
        self._deaths: list[int] = []

    def died(self, now_ms: int) -> int | None:
        """The pause in ms before the next start, or None: give up."""
        self.total += 1
        self._deaths = [at for at in self._deaths if now_ms - at < FORGET_MS][-GIVE_UP_DEATHS * 4:] + [now_ms]
        if sum(1 for at in self._deaths if now_ms - at < GIVE_UP_WINDOW_MS) >= GIVE_UP_DEATHS:
            return None
        if len(self._deaths) == 1:
            return 0
        return min(PAUSE_FIRST_MS << (len(self._deaths) - 2), PAUSE_MOST_MS)
