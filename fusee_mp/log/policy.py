# Where a flush runs.
#
# In the loop it costs the least and blocks the loop; in the helper it costs two switches and blocks nothing. So a disk must first
# prove itself: 1,000 flushes in a row with a p99 under 1 ms. A single one over 20 ms sends the flushes back to the helper. On a disk
# that has proved itself a single record is flushed by the helper with both awake (attended.py), as long as that is no slower.
"""Where a flush runs, decided by the times of those before, and the histogram of flush times."""
from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from fusee_mp import bounds
from fusee_mp.core.worth import Worth

_SLOW_MAX = bounds.LOG_INLINE_AFTER_FLUSHES // 100


class FlushPolicy:
    """Decides by measured flush times alone. `is_inline` holds for the next flush."""

    def __init__(self, mode: Literal["auto", "inline", "helper"]) -> None:
        self._is_fixed = mode != "auto"
        self.is_inline = mode == "inline"
        self._begin_trial()

    def observe(self, elapsed_ms: float) -> None:
        """Take one flush into account, measured where it ran."""
        if self._is_fixed:
            return
        if self.is_inline:
            if elapsed_ms > bounds.LOG_INLINE_WORST_MS:
                self.is_inline = False
                self._begin_trial()
            return
        self._seen += 1
        self._slow += elapsed_ms >= bounds.LOG_INLINE_P99_MS
        if self._seen == bounds.LOG_INLINE_AFTER_FLUSHES:
            self.is_inline = self._slow <= _SLOW_MAX
            self._begin_trial()

    def _begin_trial(self) -> None:
        self._seen = 0
        self._slow = 0


class AttendPolicy:
    """Whether the next single flush is to be attended. It does not pay where it takes over twice the usual time, as where the processes
    that stay awake for it have too few processors between them."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._worth = Worth()
        self._usual_s = 0.0

    def is_wanted(self, latency: Histogram) -> bool:
        """`latency`: of all flushes, for what is usual."""
        if not self._worth.is_wanted(self._clock()):
            return False
        if self._worth.is_new_round:
            self._usual_s = latency.quantile_ms(0.5) / 1000
        return True

    def observe(self, elapsed_s: float) -> None:
        """Take one attended flush into account, measured from its request to the arrival of its answer."""
        self._worth.observe(elapsed_s <= 2 * self._usual_s, self._clock())


class Histogram:
    """Durations in 80 buckets, four to a doubling, from 1 µs: a quantile is off by at most 19 %."""

    BUCKETS = 80

    def __init__(self) -> None:
        self.counts = [0] * self.BUCKETS
        self.total = 0

    def add(self, elapsed_s: float) -> None:
        us = int(elapsed_s * 4_000_000)  # quarters, so that the two bits after the first exist from 1 µs on
        high = us.bit_length() - 3
        bucket = (high << 2 | (us >> high) & 3) if high >= 0 else 0
        self.counts[min(bucket, self.BUCKETS - 1)] += 1
        self.total += 1

    def quantile_ms(self, part: float) -> float:
        """The upper edge of the bucket that holds this part of all durations; 0 where there are none."""
        left = part * self.total
        for bucket, count in enumerate(self.counts):
            left -= count
            if left <= 0 and self.total:
                return ((4 + bucket % 4 + 1) << (bucket // 4)) / 4000
        return 0.0


class Metrics:
    """Counters of one log since its open; `mode` is where the last flush ran."""

    def __init__(self) -> None:
        self.flushes = 0
        self.flushed_bytes = 0
        self.batches = 0
        self.records = 0
        self.copied_batches = 0
        self.segments_begun = 0
        self.segments_retired = 0
        self.helper_restarts = 0
        self.flush_latency = Histogram()
        self.mode = "inline"
