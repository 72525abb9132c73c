"""Whether what usually pays still does."""
from __future__ import annotations

from fusee_mp.bounds import AWAKE_PAUSE_MAX_S, AWAKE_PAUSE_S, AWAKE_ROUND


class Worth:
    """Judges by rounds of AWAKE_ROUND tries. One in which over a quarter did not pay ends in a pause of AWAKE_PAUSE_S; each pause is twice
    as long as the one before, up to AWAKE_PAUSE_MAX_S, unless a whole round was well in between. Times are seconds of any clock."""

    def __init__(self) -> None:
        self._pause_s = AWAKE_PAUSE_S
        self._paused_until = 0.0
        self._begin_round()

    @property
    def is_new_round(self) -> bool:
        return self._seen == 0

    def is_wanted(self, now: float) -> bool:
        """Whether to try."""
        return now >= self._paused_until

    def observe(self, paid: bool, now: float) -> None:
        """Take one try into account."""
        self._seen += 1
        self._unpaid += not paid
        if self._unpaid > AWAKE_ROUND // 4:
            self._paused_until = now + self._pause_s
            self._pause_s = min(2 * self._pause_s, AWAKE_PAUSE_MAX_S)
            self._begin_round()
        elif self._seen == AWAKE_ROUND:
            self._pause_s = AWAKE_PAUSE_S
            self._begin_round()

    def _begin_round(self) -> None:
        self._seen = self._unpaid = 0
