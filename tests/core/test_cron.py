"""Cron text against a calendar walked minute by minute, and what a bad one is told."""
from __future__ import annotations

from datetime import datetime, timedelta
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusee_mp.core.cron import parse
from fusee_mp.errors import Rejected

EPOCH = datetime(1970, 1, 1)


def minute_of(when: datetime) -> int:
    return (when - EPOCH) // timedelta(minutes=1)


def first(text: str, after: str, count: int = 3) -> list[str]:
    start = minute_of(datetime.fromisoformat(after))
    found = islice(parse(text).between(start, start + 60 * 24 * 366 * 50), count)
    return [(EPOCH + timedelta(minutes=minute)).strftime("%Y-%m-%d %H:%M") for minute in found]


def field_matches(field: str, value: int, low: int, high: int) -> bool:
    """The meaning of a field, item by item, as a plain question about one value."""
    for item in field.split(","):
        span, _, step = item.partition("/")
        begin, _, end = span.partition("-")
        start = low if begin == "*" else int(begin)
        stop = high if begin == "*" or (step and not end) else int(end or start)
        if start <= value <= stop and (value - start) % int(step or 1) == 0:
            return True
    return False


def matches(text: str, when: datetime) -> bool:
    minute, hour, day, month, weekday = text.split()
    if not field_matches(minute, when.minute, 0, 59) or not field_matches(hour, when.hour, 0, 23):
        return False
    if not field_matches(month, when.month, 1, 12):
        return False
    by_day = field_matches(day, when.day, 1, 31)
    sunday = when.isoweekday() == 7
    by_weekday = field_matches(weekday, when.isoweekday() % 7, 0, 6) or (sunday and "*" not in weekday and field_matches(weekday, 7, 0, 7))
    both = day.startswith("*") or weekday.startswith("*")
    return by_day and by_weekday if both else by_day or by_weekday


def fields(low: int, high: int) -> st.SearchStrategy[str]:
    value = st.integers(low, high)
    spans = st.tuples(value, value).map(lambda pair: f"{min(pair)}-{max(pair)}")
    item = st.one_of(value.map(str), spans, st.tuples(spans, st.integers(1, high)).map(lambda pair: f"{pair[0]}/{pair[1]}"),
                     st.integers(1, high).map(lambda step: f"*/{step}"))
    return st.one_of(st.just("*"), st.just("*"), item, st.lists(item, min_size=2, max_size=3).map(",".join))


TEXTS = st.tuples(fields(0, 59), fields(0, 23), fields(1, 28), fields(1, 12), fields(0, 7)).map(" ".join)


@given(TEXTS, st.integers(0, 60 * 24 * 365 * 60))
@settings(deadline=None, max_examples=100)
def test_the_days_and_minutes_are_those_of_the_calendar(text: str, start: int) -> None:
    end = start + 60 * 24 * 2
    expected = [minute for minute in range(start, end) if matches(text, EPOCH + timedelta(minutes=minute))]
    assert list(parse(text).between(start, end)) == expected


@given(st.tuples(fields(1, 31), fields(1, 12), fields(0, 7)).map(lambda found: "30 12 " + " ".join(found)), st.integers(0, 30_000))
@settings(deadline=None, max_examples=100)
def test_no_matching_day_of_two_years_is_left_out(text: str, start: int) -> None:
    noons = [day * 1440 + 750 for day in range(start, start + 731)]
    expected = [noon for noon in noons if matches(text, EPOCH + timedelta(minutes=noon))]
    try:
        assert list(parse(text).between(start * 1440, (start + 731) * 1440)) == expected
    except Rejected as e:
        assert "no day of any year" in e.message and not expected


@pytest.mark.parametrize(("text", "after", "expected"), [
    ("0 9 * * MON-FRI", "2024-03-01 10:00", ["2024-03-04 09:00", "2024-03-05 09:00", "2024-03-06 09:00"]),
    ("0 9 13 * FRI", "2024-09-01 00:00", ["2024-09-06 09:00", "2024-09-13 09:00", "2024-09-20 09:00"]),
    ("0 9 */2 * FRI", "2024-09-01 00:00", ["2024-09-13 09:00", "2024-09-27 09:00", "2024-10-11 09:00"]),
    ("0 0 29 2 *", "2023-01-01 00:00", ["2024-02-29 00:00", "2028-02-29 00:00", "2032-02-29 00:00"]),
    ("0 0 29 feb *", "2097-01-01 00:00", ["2104-02-29 00:00", "2108-02-29 00:00", "2112-02-29 00:00"]),
    ("0 0 31 * *", "2024-01-31 00:01", ["2024-03-31 00:00", "2024-05-31 00:00", "2024-07-31 00:00"]),
    ("0 0 L * *", "2024-02-01 00:00", ["2024-02-29 00:00", "2024-03-31 00:00", "2024-04-30 00:00"]),
    ("0 0 * * 7", "2024-09-01 00:01", ["2024-09-08 00:00", "2024-09-15 00:00", "2024-09-22 00:00"]),
    ("0 0 * * FRI-SUN", "2024-09-02 00:00", ["2024-09-06 00:00", "2024-09-07 00:00", "2024-09-08 00:00"]),
    ("50/4 23 * * *", "2024-09-02 00:00", ["2024-09-02 23:50", "2024-09-02 23:54", "2024-09-02 23:58"]),
    ("@weekly", "2024-09-02 00:00", ["2024-09-08 00:00", "2024-09-15 00:00", "2024-09-22 00:00"]),
    ("@Hourly", "2024-12-31 22:30", ["2024-12-31 23:00", "2025-01-01 00:00", "2025-01-01 01:00"]),
])
def test_what_a_text_means(text: str, after: str, expected: list[str]) -> None:
    assert first(text, after) == expected


@pytest.mark.parametrize(("text", "complaint"), [
    ("61 * * * *", "minute: expected 0 to 59, found '61'"),
    ("* 24 * * *", "hour: expected 0 to 23, found '24'"),
    ("* * 0 * *", "day of month: expected 1 to 31 or L, found '0'"),
    ("* * * 13 *", "month: expected 1 to 12 or JAN to DEC, found '13'"),
    ("* * * JANUARY *", "month: expected 1 to 12 or JAN to DEC, found 'JANUARY'"),
    ("* * * * 8", "day of week: expected 0 to 7 or SUN to SAT, found '8'"),
    ("* * * * MON#2", "day of week: expected a value, a range"),
    ("*/0 * * * *", "minute: expected a step from 1 to 59"),
    ("*-5 * * * *", "minute: expected a value"),
    ("22-2 * * * *", "a range that rises; write it as two, 22-59,0-2"),
    ("1,,2 * * * *", "minute: expected a value"),
    ("-1 * * * *", "minute: expected a value"),
    ("* * L-3 * *", "L alone"),
    ("* * 1/L * *", "day of month: expected a value"),
    ("² * * * *", "minute: expected a value"),
    ("* * * *", "five fields .*found 4. For seconds use every="),
    ("* * * * * *", "found 6"), ("", "found 0"), ("@fortnightly", "@yearly"), (5, "expected text"),
    ("0 0 30 2 *", "no day of any year matches: '30' is no day of month '2'"),
    ("0 0 31 4,6,9,11 *", "no day of any year"),
])
def test_a_bad_text_is_told_what_is_wrong_and_what_is_allowed(text: str, complaint: str) -> None:
    with pytest.raises(Rejected, match=complaint):
        parse(text)


@given(st.text("0123456789*/-,LMONJA @\n", max_size=25))
@settings(deadline=None, max_examples=300)
def test_any_text_is_either_a_cron_or_refused(text: str) -> None:
    try:
        cron = parse(text)
    except Rejected:
        return
    assert cron.minutes and not cron.never_matches()
