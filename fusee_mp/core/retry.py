"""When a failed step is tried again."""
from __future__ import annotations

from msgspec import Struct


class Fatal(Exception):
    """Raised by a step body: the step fails at once, whatever its retry policy allows.

    `raise Fatal(..) from error` arrives in the workflow as `error`; without a cause it arrives as this.
    """


class RetrySchedule(Struct, frozen=True):
    """The numbers of a retry policy. `attempts` None is without end; the first wait is `initial_ms`, each next `factor` times
    longer, up to `maximum_ms`; `jitter` is the share by which a wait is then made longer or shorter."""

    attempts: int | None = 1
    initial_ms: int = 100
    maximum_ms: int = 60_000
    factor: float = 2.0
    jitter: float = 0.1

    def delay_ms(self, attempt: int, draw: float) -> int | None:
        """The wait after this attempt (counted from 1) failed, or None when it was the last. `draw` is uniform in [0, 1)."""
        if self.attempts is not None and attempt >= self.attempts:
            return None
        try:
            wait = min(self.initial_ms * self.factor ** (attempt - 1), float(self.maximum_ms))
        except OverflowError:  # beyond every maximum
            wait = float(self.maximum_ms if self.initial_ms else 0)
        return max(0, round(wait * (1 + self.jitter * (2 * draw - 1))))


ONCE = RetrySchedule()
