# At which instants a schedule is due. An instant is a number of ms since the Unix epoch.
#
# `Every` is aligned to the epoch: its instants are the multiples of the interval, whenever the schedule was made.
# `CronTime` is local time in a zone, and clocks change. One rule says what becomes of local times that do not exist (gap) and of those
# that exist twice (fold), and everything here follows it: what is due, what is made up, what is backfilled, what is shown in advance.
#   gap="skip": it does not run.   gap="shift": it runs as much later as the clock jumped: 02:30 as 03:30, which is the same instant.
#   fold="first": the first time only.   fold="last": the second only.   fold="both": both.
# Every instant occurs once, however many local times lead to it.
# The zone data of the machine decides: after an update of it, instants not yet past follow the new data.
from __future__ import annotations

import heapq
from collections.abc import Iterator
from hashlib import blake2b
from typing import Final, Literal, TypeAlias

from msgspec import Struct

from fusee_mp.bounds import DURATION_MS_MAX
from fusee_mp.core.cron import Cron, parse
from fusee_mp.core.zones import Span, spans, zone_of
from fusee_mp.errors import Rejected

Gap: TypeAlias = Literal["skip", "shift"]
Fold: TypeAlias = Literal["first", "last", "both"]
_MINUTE_MS: Final = 60_000


class Every(Struct, frozen=True, tag="every"):
    """Each multiple of `every_ms`."""

    every_ms: int

    def check(self) -> Every:
        """This timing, if it may be one; else Rejected."""
        if not isinstance(self.every_ms, int) or isinstance(self.every_ms, bool) or not 1 <= self.every_ms <= DURATION_MS_MAX:
            raise Rejected(f"every: expected 1 ms to {DURATION_MS_MAX:,} ms, found {self.every_ms!r:.80}.", option="every")
        return self

    def instants(self, first_ms: int, last_ms: int | None = None) -> Iterator[int]:
        """From `first_ms` through `last_ms`, ascending, made as they are asked for."""
        at = -(-first_ms // self.every_ms) * self.every_ms
        while last_ms is None or at <= last_ms:
            yield at
            at += self.every_ms

    def next_after(self, ms: int) -> int | None:
        return (ms // self.every_ms + 1) * self.every_ms


class CronTime(Struct, frozen=True, tag="cron"):
    cron: str
    timezone: str = "UTC"
    gap: Gap = "skip"
    fold: Fold = "first"

    def check(self) -> CronTime:
        """This timing, if it may be one; else Rejected."""
        parse(self.cron)
        zone_of(self.timezone)
        if self.gap not in ("skip", "shift"):
            raise Rejected(f'gap: expected "skip" or "shift", found {self.gap!r:.80}.', option="gap")
        if self.fold not in ("first", "last", "both"):
            raise Rejected(f'fold: expected "first", "last" or "both", found {self.fold!r:.80}.', option="fold")
        return self

    def instants(self, first_ms: int, last_ms: int | None = None) -> Iterator[int]:
        """From `first_ms` through `last_ms`, ascending, made as they are asked for. They end with the year 9998."""
        cron, before = parse(self.cron), None
        for span in spans(zone_of(self.timezone), first_ms):
            for at in heapq.merge(self._shifted(cron, span), self._regular(cron, span, first_ms)):
                if last_ms is not None and at > last_ms:
                    return
                if at >= first_ms and at != before:
                    yield at
                    before = at
            if last_ms is not None and span.end_ms > last_ms:
                return

    def next_after(self, ms: int) -> int | None:
        return next(self.instants(ms + 1), None)

    def _regular(self, cron: Cron, span: Span, first_ms: int) -> Iterator[int]:
        """The instants of this span whose local time is read plainly."""
        start, end = span.start_ms + span.offset_ms, span.end_ms + span.offset_ms
        if self.fold == "first":
            start = max(start, span.start_ms + span.before_ms)  # What was there before the clock went back is no first time.
        elif self.fold == "last":
            end = min(end, span.end_ms + span.after_ms)  # What comes again when the clock goes back is no last time.
        yield from _local(cron, max(start, first_ms + span.offset_ms), end, span.offset_ms)

    def _shifted(self, cron: Cron, span: Span) -> Iterator[int]:
        """Local times that the clock jumped over at the start of this span, read with the offset from before the jump."""
        if self.gap == "shift":
            yield from _local(cron, span.start_ms + span.before_ms, span.start_ms + span.offset_ms, span.before_ms)


Timing: TypeAlias = Every | CronTime


def _local(cron: Cron, start_ms: int, end_ms: int, offset_ms: int) -> Iterator[int]:
    for minute in cron.between(-(-start_ms // _MINUTE_MS), -(-end_ms // _MINUTE_MS)):
        yield minute * _MINUTE_MS - offset_ms


def is_instant(timing: Timing, ms: int) -> bool:
    return timing.next_after(ms - 1) == ms


def jittered(timing: Timing, schedule_id: str, instant_ms: int, jitter_ms: int) -> int:
    """When the start of this instant is due: up to `jitter_ms` later, but before the next instant, so that starts keep their order.

    The same for the same schedule and instant, always and everywhere.
    """
    if not jitter_ms:
        return instant_ms
    following = timing.next_after(instant_ms)
    room = jitter_ms + 1 if following is None else min(jitter_ms + 1, following - instant_ms)
    draw = int.from_bytes(blake2b(f"{schedule_id}@{instant_ms}".encode(), digest_size=8).digest(), "little")
    return instant_ms + draw % room
