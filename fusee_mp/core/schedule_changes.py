# What one input did to a schedule, as a difference.
#
# The guarantee: `apply(before, change_of(before, after))` is `after`, in every part but the rule, and it decides nothing. So whoever
# reads it later needs neither a clock nor the zone data that the decision was made with: what was started stays what was started.
# It is as large as what changed: some sixty bytes for one start, however long the schedule has run.
# Rule: a change of the timing is no difference but a whole new state, since what was started is remembered timing by timing.
from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeVar

from msgspec import Struct

from fusee_mp.bounds import SCHEDULE_TRIGGERS_MAX
from fusee_mp.core.numbers import Signed
from fusee_mp.core.schedule import ScheduleState
from fusee_mp.core.schedule_history import Stretch

T = TypeVar("T")
# A schedule's runs have it as their parent, under this number, which no run has.
NO_RUN: Final = 0


class ScheduleChange(Struct, array_like=True, frozen=True):
    """The numbers as they are afterwards, and what came into and went out of the lists. Runs are named by their instants."""

    position_ms: Signed
    paused: bool
    started: Signed
    skipped: Signed
    remembered: Signed | None
    opened: list[Signed] = []
    ended: list[Signed] = []
    ending: list[Signed] = []
    joined: list[Stretch] = []
    parted: list[Signed] = []
    between: list[Signed] = []


class Before(NamedTuple):
    """What `change_of` must know of a state that is about to change."""

    numbers: tuple[int, bool, int, int, int | None]
    open: tuple[int, ...]
    ending: tuple[int, ...]
    stretches: tuple[Stretch, ...]
    between: tuple[int, ...]


def before(state: ScheduleState) -> Before:
    """A copy, before an input."""
    history = state.history
    return Before(_numbers(state), tuple(state.open), tuple(state.ending), tuple(history.now.stretches), tuple(history.between))


def change_of(old: Before, state: ScheduleState) -> ScheduleChange:
    """What became of it by the input."""
    opened, ended = _difference(old.open, state.open)
    ending, _ = _difference(old.ending, state.ending)
    joined, parted = _difference(old.stretches, state.history.now.stretches)
    between, _ = _difference(old.between, state.history.between)
    return ScheduleChange(*_numbers(state), opened, ended, ending, joined, [first for first, _ in parted], between)


def apply(state: ScheduleState, change: ScheduleChange) -> None:
    """Make of the state what the input made of it."""
    state.position_ms, state.paused, state.started = change.position_ms, change.paused, change.started
    state.skipped, state.remembered = change.skipped, change.remembered
    ended = set(change.ended)
    state.open = [*_without(state.open, ended), *change.opened]
    state.ending = [*_without(state.ending, ended), *change.ending]
    parted, now = set(change.parted), state.history.now
    kept = [stretch for stretch in now.stretches if stretch[0] not in parted] if parted else now.stretches
    now.stretches = sorted([*kept, *change.joined])
    state.history.between = [*state.history.between, *change.between][-SCHEDULE_TRIGGERS_MAX:]


def _numbers(state: ScheduleState) -> tuple[int, bool, int, int, int | None]:
    return state.position_ms, state.paused, state.started, state.skipped, state.remembered


def _difference(old: Sequence[T], new: Sequence[T]) -> tuple[list[T], list[T]]:
    """What is new, and what is gone; nothing occurs twice in either."""
    had, has = set(old), set(new)
    return [each for each in new if each not in had], [each for each in old if each not in has]


def _without(open: Sequence[int], ended: set[int]) -> list[int]:
    return [instant for instant in open if instant not in ended] if ended else list(open)
