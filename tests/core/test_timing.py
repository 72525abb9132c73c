"""Instants of schedules: aligned intervals, local times against a minute-by-minute walk over every kind of clock change, jitter."""
from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice, pairwise
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusee_mp.core.cron import parse
from fusee_mp.core.timing import CronTime, Every, Fold, Gap, Timing, is_instant, jittered
from fusee_mp.core.zones import spans, zone_of
from fusee_mp.errors import Rejected

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DAY_MS = 86_400_000
# Zone, a day with a change, what changes there.
CHANGES = (
    ("Europe/Berlin", "2024-03-31"), ("Europe/Berlin", "2024-10-27"),
    ("America/New_York", "2024-03-10"), ("America/New_York", "2024-11-03"),
    ("Australia/Lord_Howe", "2024-04-07"), ("Australia/Lord_Howe", "2024-10-06"),  # By 30 minutes.
    ("America/Sao_Paulo", "2018-11-04"), ("America/Sao_Paulo", "2018-02-18"), ("Asia/Beirut", "2022-03-27"),  # At midnight.
    ("America/Havana", "2024-03-10"), ("America/Havana", "2024-11-03"), ("Atlantic/Azores", "2024-03-31"),
    ("Pacific/Apia", "2011-12-30"), ("Pacific/Kwajalein", "1969-10-01"),  # A day that never was, a day that was twice.
    ("Asia/Kathmandu", "1986-01-01"), ("Africa/Casablanca", "2024-03-10"), ("Europe/Dublin", "2024-10-27"), ("UTC", "2024-01-01"),
    ("America/St_Johns", "2006-10-29"), ("Europe/Berlin", "2049-03-28"),  # One minute past midnight; beyond the listed changes.
)
CRONS = ("30 1 * * *", "30 2 * * *", "*/15 * * * *", "0 0 * * *", "15 0,2,23 * * *", "0 12 * * *", "* * * * *", "45 1-3 * * SUN",
         "7 */5 * * *")


def ms(text: str, zone: str = "UTC", fold: int = 0) -> int:
    return (datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold) - EPOCH) // timedelta(milliseconds=1)


def utc(instants: list[int]) -> list[str]:
    return [(EPOCH + timedelta(milliseconds=at)).strftime("%m-%d %H:%M") for at in instants]


@lru_cache(maxsize=4)
def walk(zone_name: str, first: int, last: int) -> tuple[list[tuple[int, int, int, bool]], list[tuple[int, int]]]:
    """Every minute of real time with its local one, its fold and whether it is there twice; every local minute that does not exist."""
    zone, real, missing = ZoneInfo(zone_name), [], []
    for at in range(first, last + 1, 60_000):
        local = (EPOCH + timedelta(milliseconds=at)).astimezone(zone)
        twice = local.replace(fold=0).utcoffset() != local.replace(fold=1).utcoffset()
        real.append((at, (local.replace(tzinfo=UTC) - EPOCH) // timedelta(minutes=1), local.fold, twice))
    for at in range(first - DAY_MS, last + DAY_MS, 60_000):
        local = (EPOCH + timedelta(milliseconds=at)).replace(tzinfo=zone)
        before, after = local.utcoffset(), local.replace(fold=1).utcoffset()
        assert before is not None and after is not None
        if before < after:
            missing.append((at - before // timedelta(milliseconds=1), at // 60_000))
    return real, missing


def walked(cron: str, zone: str, gap: Gap, fold: Fold, first: int, last: int) -> list[int]:
    real, missing = walk(zone, first, last)
    local = set(parse(cron).between(first // 60_000 - 3_000, last // 60_000 + 3_000))
    found = {at for at, minute, which, twice in real if minute in local and (fold == "both" or not twice or which == (fold == "last"))}
    if gap == "shift":
        found |= {at for at, minute in missing if minute in local and first <= at <= last}
    return sorted(found)


@pytest.mark.parametrize(("zone", "day"), CHANGES)
@pytest.mark.parametrize(("gap", "fold"), [("skip", "first"), ("shift", "last"), ("shift", "both")])
def test_local_times_follow_the_rule_over_every_kind_of_change(zone: str, day: str, gap: Gap, fold: Fold) -> None:
    first = ms(day) - DAY_MS // 2
    last = first + 2 * DAY_MS
    for cron in CRONS:
        timing, expected = CronTime(cron, zone, gap, fold), walked(cron, zone, gap, fold, first, last)
        assert list(timing.instants(first, last)) == expected
        sample = list(pairwise(expected))[::17]
        assert [later for at, later in sample if timing.next_after(at) != later or not is_instant(timing, at)] == []


@pytest.mark.parametrize(("cron", "zone", "gap", "fold", "first", "last", "expected"), [
    ("30 2 * * *", "Europe/Berlin", "skip", "first", "2024-03-30", "2024-04-01T12:00", ["03-30 01:30", "04-01 00:30"]),
    ("30 2 * * *", "Europe/Berlin", "shift", "first", "2024-03-30", "2024-04-01T12:00", ["03-30 01:30", "03-31 01:30", "04-01 00:30"]),
    ("30 2 * * *", "Europe/Berlin", "skip", "first", "2024-10-27", "2024-10-27T12:00", ["10-27 00:30"]),
    ("30 2 * * *", "Europe/Berlin", "skip", "last", "2024-10-27", "2024-10-27T12:00", ["10-27 01:30"]),
    ("30 2 * * *", "Europe/Berlin", "skip", "both", "2024-10-27", "2024-10-27T12:00", ["10-27 00:30", "10-27 01:30"]),
    ("*/15 1 * * *", "Australia/Lord_Howe", "skip", "both", "2024-04-06T14:00", "2024-04-06T15:30",
     ["04-06 14:00", "04-06 14:15", "04-06 14:30", "04-06 14:45", "04-06 15:00", "04-06 15:15"]),
    ("*/15 2 * * *", "Australia/Lord_Howe", "shift", "first", "2024-10-05T15:00", "2024-10-05T16:30", ["10-05 15:30", "10-05 15:45"]),
    ("0 0 * * *", "America/Sao_Paulo", "skip", "first", "2018-11-03", "2018-11-05T12:00", ["11-03 03:00", "11-05 02:00"]),
    ("0 0 * * *", "America/Sao_Paulo", "shift", "first", "2018-11-03", "2018-11-05T12:00", ["11-03 03:00", "11-04 03:00", "11-05 02:00"]),
    ("0 12 * * *", "Pacific/Apia", "skip", "first", "2011-12-29", "2012-01-01", ["12-29 22:00", "12-30 22:00", "12-31 22:00"]),
])
def test_the_changes_of_known_nights(cron: str, zone: str, gap: Gap, fold: Fold, first: str, last: str, expected: list[str]) -> None:
    assert utc(list(CronTime(cron, zone, gap, fold).instants(ms(first), ms(last)))) == expected


def test_a_shifted_time_that_meets_a_plain_one_is_one_instant() -> None:
    found = list(CronTime("30 2,3 * * *", "Europe/Berlin", "shift").instants(ms("2024-03-31"), ms("2024-03-31T12:00")))
    assert utc(found) == ["03-31 01:30"]


@given(st.integers(1, 10**9), st.integers(-10**13, 10**13))
def test_every_is_aligned_to_the_epoch(every: int, at: int) -> None:
    timing = Every(every)
    following = timing.next_after(at)
    assert following is not None and following % every == 0 and at < following <= at + every
    assert list(islice(timing.instants(at + 1), 3)) == [following, following + every, following + 2 * every]
    assert is_instant(timing, following) and (every == 1 or not is_instant(timing, following + 1))


def test_a_range_is_inclusive_at_both_ends() -> None:
    assert list(Every(1).instants(1, 1001)) == list(range(1, 1002))
    minute = CronTime("* * * * *")
    assert list(minute.instants(60_000, 180_000)) == [60_000, 120_000, 180_000]
    assert list(minute.instants(60_001, 179_999)) == [120_000]
    assert list(minute.instants(180_000, 60_000)) == []


def test_a_long_range_is_made_lazily() -> None:
    assert len(list(islice(Every(1).instants(0, 10**15), 5))) == len(list(islice(CronTime("* * * * *").instants(0, 10**14), 5))) == 5


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "Australia/Lord_Howe"])
def test_rare_dates_are_found_and_the_calendar_ends(zone: str) -> None:
    leap = CronTime("0 12 29 2 *", zone)
    years = [(EPOCH + timedelta(milliseconds=at)).year for at in leap.instants(ms("2093-01-01"), ms("2110-01-01"))]
    assert years == [2096, 2104, 2108]
    assert CronTime("0 12 29 2 */7", zone).next_after(ms("2024-01-01")) is not None
    assert Every(1000).next_after(-5_500) == -5_000
    assert CronTime("@yearly", zone).next_after(ms("9998-01-20")) is None or zone != "UTC"
    assert CronTime("@yearly", zone).next_after(ms("9999-02-01")) is CronTime("@yearly", zone).next_after(10**18) is None
    assert CronTime("@yearly", zone).next_after(-10**18) is not None


def test_spans_cover_time_without_holes() -> None:
    for name in ("America/New_York", "Africa/Casablanca", "Pacific/Apia", "UTC"):
        found = list(islice(spans(zone_of(name), ms("2005-07-01")), 60))
        assert found[0].start_ms <= ms("2005-07-01") < found[0].end_ms
        for span, following in pairwise(found):
            assert span.end_ms == following.start_ms and span.after_ms == following.offset_ms and following.before_ms == span.offset_ms


TIMINGS = st.one_of(
    st.integers(1, 10**7).map(Every), st.builds(CronTime, st.sampled_from(CRONS), st.sampled_from(["UTC", "Europe/Berlin"])))


@given(TIMINGS, st.integers(ms("2024-03-30"), ms("2024-04-02")), st.integers(0, 10**8), st.text(max_size=5))
@settings(deadline=None)
def test_jitter_delays_without_changing_the_order(timing: Timing, at: int, jitter: int, schedule: str) -> None:
    first, second = islice(timing.instants(at), 2)
    due = jittered(timing, schedule, first, jitter)
    assert first <= due <= first + jitter and due < second
    assert due == jittered(timing, schedule, first, jitter)


def test_jitter_spreads_schedules_over_its_whole_width() -> None:
    draws = {jittered(Every(60_000), f"s{n}", 60_000, 9) - 60_000 for n in range(500)}
    assert draws == set(range(10))


@pytest.mark.parametrize(("timing", "complaint"), [
    (Every(0), "1 ms to"), (Every(True), "1 ms to"), (Every(10**15), "1 ms to"), (CronTime("99 * * * *"), "minute"),
    (CronTime("* * * * *", "Europe/Berln"), "Berln"), (CronTime("* * * * *", "../etc/passwd"), "IANA"), (CronTime("* * * * *", ""), "IANA"),
    (CronTime("* * * * *", "Europe"), "IANA"), (CronTime("* * * * *", 5), "IANA"), (CronTime("* * * * *", "a\0b"), "IANA"),  # type: ignore[arg-type]
    (CronTime("* * * * *", gap="jump"), "gap"), (CronTime("* * * * *", fold="never"), "fold"),  # type: ignore[arg-type]
])
def test_a_timing_that_cannot_be_is_refused(timing: Timing, complaint: str) -> None:
    with pytest.raises(Rejected, match=complaint):
        timing.check()


@pytest.mark.parametrize("timing", [Every(5), CronTime("@daily", "Asia/Kolkata", "shift", "both")])
def test_a_timing_survives_being_written(timing: Any) -> None:
    assert msgspec.json.decode(msgspec.json.encode(timing.check()), type=Timing) == timing  # type: ignore[type-abstract]
