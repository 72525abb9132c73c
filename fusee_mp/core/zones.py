# The offsets of a time zone as spans of constant offset.
#
# A span says what its neighbours' offsets are, and so which local times it shares with them (clocks went back: they exist twice) and
# which lie between (clocks went forward: they do not exist).
# Fact: in the zone data, two changes of one zone's offset are never closer than 95 hours, and no change is larger than 24. So a look at
# each day's offset finds every change, and a local time concerns one change at most.
from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from fusee_mp.errors import Rejected

_DAY_S: Final = 86_400
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# Years whose every instant has a local time in every zone.
FIRST_YEAR: Final = 2
LAST_YEAR: Final = 9998


class Span(NamedTuple):
    """From `start_ms` until before `end_ms` local time is UTC + offset_ms; just before it was before_ms, just after it is after_ms."""

    start_ms: int
    end_ms: int
    offset_ms: int
    before_ms: int
    after_ms: int


def zone_of(name: str) -> ZoneInfo:
    """Raises Rejected for a name that this machine's zone data does not have."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError, TypeError, AttributeError):
        raise Rejected(f'timezone: expected the name of an IANA zone such as "Europe/Berlin", found {name!r:.80}. If the name is right,'
                       " this machine has no zone data: install the package tzdata.", option="timezone") from None


def spans(zone: tzinfo, from_ms: int) -> Iterator[Span]:
    """The spans from the one that holds `from_ms` on, until the last year; at the turn of a year (UTC) a span is cut in two."""
    first_ms, end_ms = _year_s(FIRST_YEAR) * 1_000, _year_s(LAST_YEAR + 1) * 1_000
    year = (_EPOCH + timedelta(milliseconds=min(max(from_ms, first_ms), end_ms))).year
    for each in range(year, LAST_YEAR + 1):
        for span in _spans_of_year(zone, each):
            if span.end_ms > from_ms:
                yield span


@lru_cache(maxsize=4096)
def _spans_of_year(zone: tzinfo, year: int) -> tuple[Span, ...]:
    start, end = _year_s(year), _year_s(year + 1)
    changes = _changes(zone, start - 1, end)
    # A change at the very turn of the year belongs to the year that it begins, and to the end of the one before.
    if not changes or changes[0] != start:
        changes.insert(0, start)
    found = []
    for first, last in zip(changes, [*changes[1:], end], strict=True):
        found.append(Span(first * 1_000, last * 1_000, _offset_ms(zone, first), _offset_ms(zone, first - 1), _offset_ms(zone, last)))
    return tuple(found)


def _changes(zone: tzinfo, start: int, end: int) -> list[int]:
    """The seconds after `start` and before `end` at which another offset begins."""
    changes = []
    before = start
    for after in [*range(start + _DAY_S, end - 1, _DAY_S), end - 1]:
        if _offset_ms(zone, before) != _offset_ms(zone, after):
            changes.append(_change(zone, before, after))
        before = after
    return changes


def _change(zone: tzinfo, before: int, after: int) -> int:
    old = _offset_ms(zone, before)
    while after - before > 1:
        middle = (before + after) // 2
        before, after = (middle, after) if _offset_ms(zone, middle) == old else (before, middle)
    return after


def _offset_ms(zone: tzinfo, at_s: int) -> int:
    offset = (_EPOCH + timedelta(seconds=at_s)).astimezone(zone).utcoffset()
    assert offset is not None
    return offset // timedelta(milliseconds=1)


def _year_s(year: int) -> int:
    return (datetime(year, 1, 1, tzinfo=UTC) - _EPOCH) // timedelta(seconds=1)
