"""Schedules as a machine: each instant once, one open run at most, pauses, catch-up, overlap policies, backfill (D19 to D22, G13)."""
from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fusee_mp.bounds import SCHEDULE_PAGE, SCHEDULE_STRETCHES_MAX
from fusee_mp.core.schedule import (
    CancelRun,
    Effect,
    Missed,
    Overlap,
    Remember,
    Schedule,
    ScheduleRule,
    Skip,
    StartRun,
    TerminateRun,
    run_id,
)
from fusee_mp.core.timing import CronTime, Every
from fusee_mp.errors import Rejected, StorageError

POLICIES: tuple[Overlap, ...] = ("skip", "buffer_one", "allow", "cancel", "terminate")


def make(every: int = 100, now_ms: int = 0, **options: Any) -> Schedule:
    return Schedule("s", ScheduleRule(Every(every), **options), now_ms)


def starts(effects: list[Effect]) -> list[int]:
    return [effect.instant_ms for effect in effects if isinstance(effect, StartRun)]


def start(instant: int) -> StartRun:
    return StartRun(f"s@{instant}", instant)


def backfill(schedule: Schedule, first: int, last: int) -> list[int]:
    found, at = [], first
    while True:
        effects, following = schedule.backfill(at, last)
        found += starts(effects)
        if following is None:
            return found
        at = following


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def test_each_instant_starts_one_run_named_after_it() -> None:
    """D21, D22"""
    schedule = make(overlap="allow")
    assert schedule.next_due == 100
    assert schedule.pass_time(99) == []
    assert schedule.pass_time(100) == [start(100)] == [StartRun(run_id("s", 100), 100)]
    assert schedule.pass_time(100) == []
    assert starts(schedule.pass_time(305)) == [200, 300]
    assert (schedule.started, schedule.next_due, schedule.next_times(2, 305)) == (3, 400, [400, 500])


def test_a_new_schedule_begins_with_the_first_instant_after_now() -> None:
    assert make(now_ms=100).next_due == 200


def test_a_backfill_starts_every_instant_of_an_inclusive_range_once() -> None:
    """D19, D20"""
    schedule = Schedule("range", ScheduleRule(Every(1), paused=True), 10**6)
    effects, following = schedule.backfill(1, 1001)
    assert (len(effects), following) == (SCHEDULE_PAGE, 1001)
    assert schedule.backfill(1001, 1001) == ([StartRun("range@1001", 1001)], None)
    again = Schedule.load(msgspec.json.decode(msgspec.json.encode(schedule.state())))
    assert backfill(again, 1, 1002) == [1002]
    assert again.started == 1002
    assert len(again.state()["history"]["now"]["stretches"]) == 1


def test_a_backfill_ignores_overlap_both_ways() -> None:
    schedule = make(now_ms=1_000)
    assert starts(schedule.pass_time(1_100)) == [1_100]
    assert backfill(schedule, 100, 300) == [100, 200, 300]
    assert schedule.open == ("s@1100",)
    assert schedule.run_ended("s@100") == []
    schedule.run_ended("s@1100")
    assert starts(schedule.pass_time(1_200)) == [1_200]


def test_a_backfill_of_what_is_remembered_or_still_to_come_starts_it_once() -> None:
    """D22"""
    schedule = make(overlap="buffer_one")
    schedule.pass_time(200)
    assert backfill(schedule, 100, 400) == [200, 300, 400]
    assert schedule.run_ended("s@100") == []
    assert starts(schedule.pass_time(500)) == [500]


def test_a_backwards_range_is_refused() -> None:
    with pytest.raises(Rejected, match="first before last"):
        make().backfill(2, 1)


def test_a_long_range_already_started_is_passed_in_pages() -> None:
    """D20"""
    schedule = make(1, paused=True)
    backfill(schedule, 0, 5_000)
    assert schedule.backfill(0, 5_000) == ([], SCHEDULE_PAGE)


def test_a_pause_starts_nothing_and_its_instants_are_not_made_up() -> None:
    """D22"""
    schedule = make(overlap="allow")
    assert starts(schedule.pause(250)) == [100, 200]
    assert schedule.paused and schedule.next_due is None and schedule.pass_time(900) == []
    assert schedule.resume(1_000) == []
    assert schedule.next_due == 1_100
    assert backfill(schedule, 0, 1_000) == [0, 300, 400, 500, 600, 700, 800, 900, 1_000]


def test_a_pause_drops_what_was_remembered() -> None:
    schedule = make(overlap="buffer_one")
    schedule.pass_time(200)
    assert schedule.pause(250) == [Skip(200)]
    assert schedule.run_ended("s@100") == []
    assert schedule.skipped == 1


def test_resuming_what_is_not_paused_changes_nothing() -> None:
    schedule = make()
    assert schedule.resume(950) == []
    assert starts(schedule.pass_time(950)) == [100]


def test_after_downtime_only_the_catch_up_window_is_made_up() -> None:
    schedule = make(1_000, catch_up_ms=5_000, overlap="allow")
    effects = schedule.pass_time(100_500)
    assert effects[0] == Missed(1_000, 95_499)
    assert starts(effects) == [96_000, 97_000, 98_000, 99_000, 100_000]


def test_the_bound_of_the_catch_up_window_belongs_to_it() -> None:
    schedule = make(10_000, catch_up_ms=5_000, overlap="allow")
    assert starts(schedule.pass_time(15_000)) == [10_000]
    assert schedule.pass_time(25_001) == [Missed(20_000, 20_000)]


def test_a_little_lateness_is_never_a_miss() -> None:
    assert starts(make(catch_up_ms=0).pass_time(1_000)) == [100]


def test_a_day_of_downtime_costs_no_walk_over_its_instants() -> None:
    schedule = make(1, catch_up_ms=2_000, overlap="allow")
    effects = schedule.pass_time(86_400_000)
    assert effects[0] == Missed(1, 86_397_999) and len(starts(effects)) == SCHEDULE_PAGE
    assert schedule.next_due is not None and schedule.next_due <= 86_400_000
    assert len(starts(schedule.pass_time(86_400_000))) == SCHEDULE_PAGE


@pytest.mark.parametrize(("overlap", "at_200", "at_300", "at_end"), [
    ("skip", [Skip(200)], [Skip(300)], []),
    ("buffer_one", [Remember(200)], [Skip(300)], [start(200)]),
    ("allow", [start(200)], [start(300)], []),
    ("cancel", [Remember(200), CancelRun("s@100")], [Skip(200), Remember(300)], [start(300)]),
    ("terminate", [Remember(200), TerminateRun("s@100")], [Skip(200), Remember(300)], [start(300)]),
])
def test_what_a_policy_does_while_a_run_is_open(overlap: Overlap, at_200: list[Effect], at_300: list[Effect], at_end: list[Effect]) -> None:
    schedule = make(overlap=overlap)
    assert schedule.pass_time(100) == [start(100)]
    assert schedule.pass_time(200) == at_200
    assert schedule.pass_time(300) == at_300
    assert schedule.run_ended("s@100") == at_end
    assert schedule.run_ended("s@100") == []


@pytest.mark.parametrize("overlap", POLICIES)
def test_once_the_run_has_ended_the_next_instant_starts(overlap: Overlap) -> None:
    schedule = make(overlap=overlap)
    schedule.pass_time(100)
    schedule.run_ended("s@100")
    assert schedule.pass_time(200) == [start(200)]


def test_a_trigger_starts_now_also_in_a_pause() -> None:
    schedule = make(paused=True)
    assert schedule.trigger(150) == [start(150)]
    assert schedule.trigger(150) == [Skip(151)]  # The policy is skip, and a run is open.
    schedule.run_ended("s@150")
    assert schedule.trigger(150) == [start(151)]


def test_a_trigger_at_an_instant_is_that_instant() -> None:
    schedule = make(overlap="allow")
    assert schedule.trigger(100) == [start(100)]
    assert schedule.pass_time(100) == []
    assert schedule.trigger(100) == [start(101)]
    assert backfill(schedule, 0, 100) == [0]


def test_a_buffered_trigger_starts_when_the_run_has_ended() -> None:
    schedule = make(paused=True, overlap="buffer_one")
    schedule.trigger(150)
    assert schedule.trigger(160) == [Remember(160)]
    assert schedule.run_ended("s@150") == [start(160)]


def test_setting_the_same_again_keeps_what_is_due_and_an_operators_pause() -> None:
    """D23"""
    schedule = make(1_000)
    schedule.replace(ScheduleRule(Every(1_000)), 10_500)
    assert starts(schedule.pass_time(10_500)) == [1_000]
    schedule.pause(10_600)
    schedule.replace(ScheduleRule(Every(1_000)), 10_700)
    assert schedule.paused
    schedule.replace(ScheduleRule(Every(1_000), paused=True), 10_800)
    schedule.replace(ScheduleRule(Every(1_000)), 10_900)
    assert not schedule.paused and schedule.next_due == 11_000


def test_another_timing_begins_now_and_remembers_what_the_old_one_started() -> None:
    schedule = make(100, overlap="allow")
    schedule.pass_time(400)
    assert starts(schedule.replace(ScheduleRule(Every(150), overlap="allow"), 520)) == [500]
    assert schedule.next_due == 600
    assert backfill(schedule, 0, 450) == [0, 150, 450]  # 300 was started by the old timing, 150 and 450 were none of its instants.
    schedule.replace(ScheduleRule(Every(100), overlap="allow"), 520)
    assert backfill(schedule, 100, 500) == []
    assert schedule.started == 8


def test_a_policy_of_allow_releases_what_was_remembered() -> None:
    schedule = make(overlap="cancel")
    schedule.pass_time(200)
    assert schedule.replace(ScheduleRule(Every(100), overlap="allow"), 210) == [start(200)]


def test_stretches_of_started_instants_are_bounded_on_the_safe_side() -> None:
    schedule = make(1, overlap="skip")
    for n in range(1, 3 * SCHEDULE_STRETCHES_MAX):
        schedule.pass_time(2 * n - 1)
        schedule.pass_time(2 * n)
        schedule.run_ended(f"s@{2 * n - 1}")
    stretches = schedule.state()["history"]["now"]["stretches"]
    assert len(stretches) == SCHEDULE_STRETCHES_MAX
    found = backfill(schedule, 0, 2 * (3 * SCHEDULE_STRETCHES_MAX - 1))
    assert all(instant % 2 == 0 for instant in found)
    assert len(found) == SCHEDULE_STRETCHES_MAX + 1


@pytest.mark.parametrize(("gap", "expected"), [
    ("skip", ["03-30T01:30", "04-01T00:30"]), ("shift", ["03-30T01:30", "03-31T01:30", "04-01T00:30"]),
])
def test_time_catch_up_backfill_and_preview_use_one_rule_over_a_clock_change(gap: Any, expected: list[str]) -> None:
    """G13"""
    timing = CronTime("30 2 * * *", "Europe/Berlin", gap)
    begin, end = ms("2024-03-29T12:00"), ms("2024-04-01T12:00")
    instants = [ms(f"2024-{each}") for each in expected]
    by_time = Schedule("s", ScheduleRule(timing, overlap="allow"), begin)
    found = [at for now in range(begin, end, 60_000) if by_time.next_due is not None and by_time.next_due <= now
             for at in starts(by_time.pass_time(now))]
    made_up = Schedule("s", ScheduleRule(timing, overlap="allow", catch_up_ms=10**9), begin)
    filled = Schedule("s", ScheduleRule(timing, paused=True), end)
    assert found == starts(made_up.pass_time(end)) == backfill(filled, begin, end) == instants
    assert filled.next_times(0, begin) == [] and Schedule("s", ScheduleRule(timing), begin).next_times(len(instants), begin) == instants


def test_after_an_update_of_the_zone_data_instants_to_come_follow_it_and_none_is_started_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """G13"""
    schedule = Schedule("s", ScheduleRule(CronTime("0 12 * * *", "Asia/Gaza"), overlap="allow"), ms("2024-01-01T00:00"))
    assert starts(schedule.pass_time(ms("2024-01-01T10:00"))) == [ms("2024-01-01T10:00")]
    assert schedule.next_due == ms("2024-01-02T10:00")
    # The country moves an hour east: noon comes an hour sooner from now on.
    monkeypatch.setattr("fusee_mp.core.timing.zone_of", lambda name: ZoneInfo("Asia/Baghdad"))
    again = Schedule.load(schedule.state())
    assert again.next_due == ms("2024-01-02T09:00")
    assert backfill(again, ms("2024-01-01T09:30"), ms("2024-01-01T10:30")) == []


def test_jitter_puts_starts_off_and_catch_up_counts_from_there() -> None:
    schedule = make(60_000, jitter_ms=30_000, overlap="allow", catch_up_ms=0)
    due = schedule.next_due
    assert due is not None and 60_000 <= due <= 90_000
    assert schedule.pass_time(due - 1) == []
    assert starts(schedule.pass_time(due + 900)) == [60_000]


@pytest.mark.parametrize(("change", "complaint"), [
    ({"timing": Every(0)}, "every"), ({"overlap": "both"}, "overlap"), ({"paused": 1}, "paused"), ({"jitter_ms": -1}, "jitter"),
    ({"catch_up_ms": 1.5}, "catch_up"), ({"timing": CronTime("* * * *")}, "five fields"),
])
def test_a_rule_that_cannot_be_is_refused(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(Rejected, match=complaint):
        Schedule("s", ScheduleRule(**{"timing": Every(5), **change}), 0)
    schedule = make()
    with pytest.raises(Rejected, match=complaint):
        schedule.replace(ScheduleRule(**{"timing": Every(5), **change}), 0)
    assert schedule.rule == ScheduleRule(Every(100))


@pytest.mark.parametrize("id", ["", "x" * 1_010, "a\0"])
def test_an_id_whose_runs_could_have_none_is_refused(id: str) -> None:
    with pytest.raises(Rejected):
        Schedule(id, ScheduleRule(Every(5)), 0)


@pytest.mark.parametrize("change", [
    {"position_ms": "x"}, {"rule": {"timing": {"type": "every", "every_ms": 0}}}, {"rule": {"timing": {"type": "never"}}}, {"extra": 1},
    {"rule": {"timing": {"type": "every", "every_ms": 7}}},
    {"history": {"now": {"timing": {"type": "every", "every_ms": 100}, "stretches": [[5, 4]]}}},
    {"history": {"now": {"timing": {"type": "every", "every_ms": 100}, "stretches": [[5, 9], [9, 12]]}}},
])
def test_a_state_that_no_schedule_wrote_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(StorageError, match="saved schedule"):
        Schedule.load({**make().state(), **change})


class Machine(RuleBasedStateMachine):
    """Any order of inputs: no instant twice, one open run at most, and a saved schedule goes on as it was."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000
        self.schedule = make(10, self.now)
        self.started: list[str] = []
        self.open: list[str] = []
        self.asked: list[str] = []

    def take(self, effects: list[Effect], watched: bool = True) -> None:
        for effect in effects:
            if isinstance(effect, StartRun):
                self.started.append(effect.run_id)
                if watched:
                    self.open.append(effect.run_id)
            elif isinstance(effect, (CancelRun, TerminateRun)):
                assert effect.run_id in self.open
                self.asked.append(effect.run_id)
        if watched and self.schedule.rule.overlap != "allow" and not self.wide:
            assert len(self.open) <= 1

    wide = False  # True once a policy of allow has left several runs open.

    @rule(ms=st.integers(0, 40))
    def pass_time(self, ms: int) -> None:
        self.now += ms
        self.take(self.schedule.pass_time(self.now))

    @rule(which=st.integers(0, 5))
    def end(self, which: int) -> None:
        if self.open:
            self.take(self.schedule.run_ended(self.open.pop(which % len(self.open))))

    @rule()
    def trigger(self) -> None:
        self.take(self.schedule.trigger(self.now))

    @rule()
    def pause(self) -> None:
        self.take(self.schedule.pause(self.now))
        assert self.schedule.pass_time(self.now + 10**6) == []

    @rule()
    def resume(self) -> None:
        self.take(self.schedule.resume(self.now))

    @rule(back=st.integers(0, 100), forth=st.integers(0, 30))
    def backfill(self, back: int, forth: int) -> None:
        first, last = self.now - back, self.now + forth
        effects, following = self.schedule.backfill(first, last)
        self.take(effects, watched=False)
        every = self.schedule.rule.timing.instants(first, last)
        assert following is None and {f"s@{at}" for at in every} <= set(self.started)

    @rule(overlap=st.sampled_from(POLICIES), every=st.sampled_from([10, 15, 7]), jitter=st.sampled_from([0, 0, 5]), paused=st.booleans())
    def replace(self, overlap: Overlap, every: int, jitter: int, paused: bool) -> None:
        self.wide = self.wide or len(self.open) > 1
        self.take(self.schedule.replace(ScheduleRule(Every(every), overlap, paused, jitter), self.now))

    @rule()
    def save_and_load(self) -> None:
        state = self.schedule.state()
        self.schedule = Schedule.load(msgspec.json.decode(msgspec.json.encode(state)))
        assert self.schedule.state() == state

    @invariant()
    def nothing_is_started_or_asked_to_end_twice(self) -> None:
        self.wide = len(self.open) > 1
        assert len(set(self.started)) == len(self.started) == self.schedule.started
        assert len(set(self.asked)) == len(self.asked)
        assert self.schedule.open == tuple(self.open)


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


# At most 90 s in periods of 10 ms or more: fewer starts than SCHEDULE_OPEN_MAX, beyond which they are skipped, as nothing ends here.
@given(st.lists(st.integers(0, 3_000), max_size=30), st.integers(10, 400), st.integers(0, 300))
@settings(deadline=None, max_examples=100)
def test_while_time_is_passed_soon_enough_no_instant_is_lost(waits: list[int], every: int, jitter: int) -> None:
    schedule, now, found = make(every, overlap="allow", jitter_ms=jitter, catch_up_ms=5_000), 0, []
    for wait in waits:
        now += wait
        while schedule.next_due is not None and schedule.next_due <= now:
            effects = schedule.pass_time(now)
            assert not any(isinstance(effect, Missed) for effect in effects)
            found += starts(effects)
    due = [at for at in range(every, now + 1, every) if at + jitter <= now]
    assert found == list(range(every, every * (len(found) + 1), every)) and set(due) <= set(found)
