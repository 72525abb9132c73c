# Cron text: five fields (minute, hour, day of month, month, day of week), or @hourly, @daily, @weekly, @monthly, @yearly.
#
# A field is `*`, a value, a range `a-b`, any of these with a step `/n`, or a list of them with commas. `a/n` runs from a to the field's
# end. Months and days of the week have names (JAN, MON), in any case; Sunday is 0 and 7; `L` is the last day of the month.
# The day rule, as in every cron: when both day fields are restricted, a day matches if either does; when one of them begins with `*`,
# it must match both. So `0 9 13 * FRI` is every 13th and every Friday, and `0 9 */2 * FRI` the Fridays with an odd date.
# This file knows calendars only: no zones, no instants.
from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from datetime import date
from functools import lru_cache
from typing import Final, NamedTuple

from fusee_mp.errors import Rejected

MINUTES_PER_DAY: Final = 1_440
_EPOCH: Final = date(1970, 1, 1).toordinal()
_LAST_DAY: Final = date.max.toordinal()
_CYCLE_DAYS: Final = 146_097  # The calendar repeats, days of the week too, every 400 years.
_LAST_OF_MONTH: Final = 99  # Beyond the values of every field.

_SHORTHANDS: Final = {
    "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *", "@monthly": "0 0 1 * *", "@weekly": "0 0 * * 0", "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *", "@hourly": "0 * * * *",
}


class _Field(NamedTuple):
    name: str
    first: int
    last: int
    names: tuple[str, ...] = ()

    @property
    def allowed(self) -> str:
        words = f" or {self.names[0]} to {self.names[-1]}" if self.names else ""
        return f"{self.first} to {self.last}{words}{' or L' if self.name == 'day of month' else ''}"


_FIELDS: Final = (
    _Field("minute", 0, 59), _Field("hour", 0, 23), _Field("day of month", 1, 31),
    _Field("month", 1, 12, ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")),
    _Field("day of week", 0, 7, ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")),
)
_ITEM: Final = re.compile(r"(\*|\w+)(?:-(\w+))?(?:/(\d{1,4}))?", re.ASCII)


class Cron(NamedTuple):
    """What a cron text means. minutes: of a day, ascending. weekdays: 0 is Sunday. either: one matching day field is enough."""

    minutes: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    either: bool

    def between(self, start: int, end: int) -> Iterator[int]:
        """The matching local minutes, counted from 1970-01-01 00:00 local time, from `start` until before `end`, ascending."""
        for day in self._matching_days(start // MINUTES_PER_DAY, -(-end // MINUTES_PER_DAY)):
            midnight = day * MINUTES_PER_DAY
            for minute in self.minutes[bisect_left(self.minutes, start - midnight):bisect_left(self.minutes, end - midnight)]:
                yield midnight + minute

    def _matching_days(self, first: int, end: int) -> Iterator[int]:
        ordinal, end = max(first + _EPOCH, 1), min(end + _EPOCH, _LAST_DAY)
        while ordinal < end:
            day = date.fromordinal(ordinal)
            if day.month not in self.months:
                ordinal = date(day.year + day.month // 12, day.month % 12 + 1, 1).toordinal() if day.year < 9999 else end
                continue
            if self._has(day):
                yield ordinal - _EPOCH
            ordinal += 1

    def _has(self, day: date) -> bool:
        by_date = day.day in self.days or (_LAST_OF_MONTH in self.days and date.fromordinal(day.toordinal() + 1).day == 1)
        by_weekday = day.isoweekday() % 7 in self.weekdays
        return by_date or by_weekday if self.either else by_date and by_weekday

    def never_matches(self) -> bool:
        start = date(2000, 1, 1).toordinal() - _EPOCH
        return next(self._matching_days(start, start + _CYCLE_DAYS), None) is None


@lru_cache(maxsize=1024)
def parse(text: str) -> Cron:
    """Raises Rejected, with the field, what was found and what is allowed, for text that is no cron or that never matches."""
    if not isinstance(text, str):
        raise Rejected(f'cron: expected text such as "0 9 * * MON-FRI", found {text!r:.80}.')
    fields = _SHORTHANDS.get(text.strip().lower(), text).split()
    if text.strip().startswith("@") and len(fields) == 1:
        raise Rejected(f"cron {text!r:.80}: expected one of {', '.join(_SHORTHANDS)}, or five fields.")
    if len(fields) != len(_FIELDS):
        names = ", ".join(field.name for field in _FIELDS)
        raise Rejected(f"cron {text!r:.80}: expected five fields ({names}), found {len(fields)}. For seconds use every=.")
    minutes, hours, days, months, weekdays = (_values(text, field, found) for field, found in zip(_FIELDS, fields, strict=True))
    cron = Cron(tuple(hour * 60 + minute for hour in sorted(hours) for minute in sorted(minutes)), days, months,
                frozenset(day % 7 for day in weekdays), not (fields[2].startswith("*") or fields[4].startswith("*")))
    if cron.never_matches():
        raise Rejected(f"cron {text!r:.80}: no day of any year matches: {fields[2]!r} is no day of month {fields[3]!r}.")
    return cron


def _values(text: str, field: _Field, found: str) -> frozenset[int]:
    values: set[int] = set()
    for item in found.split(","):
        match = _ITEM.fullmatch(item)
        if match is None or (match[1] == "*" and match[2]):
            raise _refusal(text, field, item, f"a value, a range a-b, * or a step such as */5 ({field.allowed})")
        values.update(_span(text, field, item, *match.groups()))
    return frozenset(values)


def _span(text: str, field: _Field, item: str, low: str, high: str | None, step: str | None) -> range:
    first = field.first if low == "*" else _value(text, field, item, low)
    if high is not None:
        last = _value(text, field, item, high)
        # SUN is 0 as a start and 7 as an end.
        last = 7 if field.name == "day of week" and last == 0 and first else last
    else:
        end = max(first, 6) if field.name == "day of week" else field.last
        last = end if low == "*" or step else first
    if _LAST_OF_MONTH in (first, last) and (high or step):
        raise _refusal(text, field, item, "L alone, without a range or step")
    if last < first:
        raise _refusal(text, field, item, f"a range that rises; write it as two, {low}-{field.last},{field.first}-{high}")
    if step is not None and not 1 <= int(step) <= field.last:
        raise _refusal(text, field, item, f"a step from 1 to {field.last}")
    return range(first, last + 1, int(step or 1))


def _value(text: str, field: _Field, item: str, found: str) -> int:
    if found.upper() in field.names:
        return field.names.index(found.upper()) + field.first
    if field.name == "day of month" and found.upper() == "L":
        return _LAST_OF_MONTH
    if not found.isdecimal() or len(found) > 4 or not field.first <= int(found) <= field.last:
        raise _refusal(text, field, item, field.allowed)
    return int(found)


def _refusal(text: str, field: _Field, item: str, expected: str) -> Rejected:
    return Rejected(f"cron {text!r:.80}, {field.name}: expected {expected}, found {item!r:.40}.", field=field.name, found=item)
