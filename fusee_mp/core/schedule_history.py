# Which instants of a schedule have been started: each is started once, also when its run and everything about it is long forgotten.
#
# Kept as stretches: a stretch (first, last) means that every instant of the timing from first through last was started. So a schedule
# that never skips is one stretch for ever. A stretch says nothing of instants of another timing, so each timing keeps its own.
# Limit: beyond SCHEDULE_STRETCHES_MAX the two oldest stretches become one. What was skipped between them then counts as started, the
# safe side: it can no longer be backfilled, but nothing is ever started twice.
from __future__ import annotations

from bisect import bisect_right
from typing import TypeAlias

from msgspec import Struct, field

from fusee_mp.bounds import SCHEDULE_STRETCHES_MAX, SCHEDULE_TIMINGS_MAX, SCHEDULE_TRIGGERS_MAX
from fusee_mp.core.timing import Timing, is_instant

Stretch: TypeAlias = tuple[int, int]


class _Started(Struct):
    """The stretches of one timing, ascending, apart."""

    timing: Timing
    stretches: list[Stretch] = field(default_factory=list)

    def has(self, instant: int) -> bool:
        at = self._before(instant)
        return at >= 0 and instant <= self.stretches[at][1] and is_instant(self.timing, instant)

    def add(self, instant: int) -> None:
        at = self._before(instant)
        self.stretches.insert(at + 1, (instant, instant))
        self._join(at + 1)
        self._join(at)
        if len(self.stretches) > SCHEDULE_STRETCHES_MAX:
            self.stretches[:2] = [(self.stretches[0][0], self.stretches[1][1])]

    def _before(self, instant: int) -> int:
        """The stretch that begins last at or before the instant; -1 for none."""
        return bisect_right(self.stretches, instant, key=lambda stretch: stretch[0]) - 1

    def _join(self, at: int) -> None:
        """Make this stretch and the next one, if no instant lies between."""
        if not 0 <= at < len(self.stretches) - 1:
            return
        (first, last), (start, end) = self.stretches[at:at + 2]
        if self.timing.next_after(last) == start:
            self.stretches[at:at + 2] = [(first, end)]


class History(Struct):
    """now: of the timing in force. before: of earlier ones, the oldest first. between: started by triggers, at no instant of the timing."""

    now: _Started
    before: list[_Started] = field(default_factory=list)
    between: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, timing: Timing) -> History:
        return cls(_Started(timing))

    def has(self, instant: int) -> bool:
        return self.now.has(instant) or instant in self.between or any(earlier.has(instant) for earlier in self.before)

    def add(self, instant: int) -> None:
        if is_instant(self.now.timing, instant):
            self.now.add(instant)
        else:
            self.between = [*self.between, instant][-SCHEDULE_TRIGGERS_MAX:]

    def retime(self, timing: Timing) -> None:
        """Another timing is in force from now on."""
        if timing == self.now.timing:
            return
        again = [earlier for earlier in self.before if earlier.timing == timing]
        rest = [earlier for earlier in self.before if earlier.timing != timing]
        self.before = [*rest, self.now][-SCHEDULE_TIMINGS_MAX:]
        self.now = again[0] if again else _Started(timing)

    def is_sound(self) -> bool:
        """The stretches rise, as `has` needs them to."""
        return all(first <= last for each in (self.now, *self.before) for first, last in each.stretches) and all(
            last < first for each in (self.now, *self.before) for (_, last), (first, _) in zip(each.stretches, each.stretches[1:]))
