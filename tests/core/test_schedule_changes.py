"""A difference of a schedule's state, applied to the state before, gives the state after; whatever was done to it."""
from __future__ import annotations

import random
from copy import deepcopy

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from fusee_mp.bounds import SCHEDULE_OPEN_MAX
from fusee_mp.core.schedule import Overlap, Schedule, ScheduleRule, ScheduleState, StartRun
from fusee_mp.core.schedule_changes import ScheduleChange, apply, before, change_of
from fusee_mp.core.timing import Every

OVERLAPS: list[Overlap] = ["skip", "buffer_one", "allow", "cancel", "terminate"]


def through_bytes(change: ScheduleChange) -> ScheduleChange:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(change), type=ScheduleChange)


def anything(schedule: Schedule, rng: random.Random, now_ms: int) -> None:
    open = [*schedule.open, "s@1"]
    rng.choice([
        lambda: schedule.pass_time(now_ms), lambda: schedule.pass_time(now_ms), lambda: schedule.run_ended(rng.choice(open)),
        lambda: schedule.trigger(now_ms), lambda: schedule.pause(now_ms), lambda: schedule.resume(now_ms),
        lambda: schedule.backfill(now_ms - rng.randrange(200), now_ms),
    ])()


@given(st.integers(0, 1 << 30), st.sampled_from(OVERLAPS), st.integers(1, 60))
def test_a_change_makes_of_the_state_before_the_state_after(seed: int, overlap: Overlap, inputs: int) -> None:
    rng, now_ms = random.Random(seed), 1_000
    schedule = Schedule("s", ScheduleRule(Every(10), overlap, catch_up_ms=50), now_ms)
    copy: ScheduleState = deepcopy(schedule.now)
    for _ in range(inputs):
        now_ms += rng.choice([0, 1, 10, 35, 3_000])
        old = before(schedule.now)
        anything(schedule, rng, now_ms)
        apply(copy, through_bytes(change_of(old, schedule.now)))
        assert copy == schedule.now
        assert Schedule.load(msgspec.to_builtins(copy)).now == schedule.now


def test_what_a_start_changes_stays_small_however_long_the_schedule_has_run() -> None:
    schedule, now_ms = Schedule("s", ScheduleRule(Every(1_000)), 0), 0
    for number in range(2_000):
        now_ms += 1_000
        old = before(schedule.now)
        schedule.pass_time(now_ms)
        assert len(msgspec.msgpack.encode(change_of(old, schedule.now))) < 60
        if number % 3 == 0:
            for run in schedule.open:
                schedule.run_ended(run)


def test_runs_that_may_overlap_are_bounded_and_what_comes_then_is_skipped() -> None:
    schedule = Schedule("s", ScheduleRule(Every(1), "allow"), 0)
    effects = []
    for now_ms in range(1_000, SCHEDULE_OPEN_MAX + 5_000, 1_000):
        effects += schedule.pass_time(now_ms)
    assert sum(isinstance(effect, StartRun) for effect in effects) == SCHEDULE_OPEN_MAX == len(schedule.open)
    assert schedule.skipped == 4_000
