"""What may be asked of schedules and windows: a part of core/calls.py, under its rules."""
from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from fusee_mp.core.schedule import ScheduleRule
from fusee_mp.core.windows import Rule


class _Call(Struct, array_like=True, tag_field="$", gc=False):
    """The base of these calls."""


class SetScheduleCall(_Call, tag="schedule_set"):
    """Make a schedule, or change one: `zone` is what its runs see their instant in."""

    id: str
    type: str
    input: bytes
    zone: str
    rule: ScheduleRule
    request: str
    repeat: bool = False


class ChangeScheduleCall(_Call, tag="schedule_change"):
    """Answered with the ID of the run that a trigger will start; empty when the overlap policy has it start none."""

    id: str
    what: Literal["pause", "resume", "trigger", "delete"]
    request: str
    repeat: bool = False


class BackfillCall(_Call, tag="schedule_backfill"):
    """Start what was not started from `first_ms` through `last_ms`. Answered with the number of runs."""

    id: str
    first_ms: int
    last_ms: int
    request: str
    repeat: bool = False


class GatherCall(_Call, tag="gather"):
    """An event for the window of a key. Answered with the ID of the window's run."""

    type: str
    key: str
    rule: Rule
    input: bytes
    event: str | None
    request: str
    repeat: bool = False

    @property
    def id(self) -> str:
        return self.key


class ScheduleCall(_Call, tag="schedule_look"):
    """How a schedule is, with its next so many instants."""

    id: str
    times: int = 1


class SchedulesCall(_Call, tag="schedules"):
    """The schedules of the shard whose IDs come after this one, by ID; at most so many."""

    after: str = ""
    limit: int = 1000


TimeMutation: TypeAlias = SetScheduleCall | ChangeScheduleCall | BackfillCall | GatherCall


class ScheduleShown(Struct, array_like=True, frozen=True):
    """A schedule: what it was made of, and how it is. `next` holds its next instants, whether or not it is paused."""

    id: str
    type: str
    input: bytes
    zone: str
    rule: ScheduleRule
    paused: bool
    started: int
    skipped: int
    open: list[str]
    next: list[int]


class Backfilled(Struct, array_like=True, frozen=True):
    """How far a backfill is: runs that it started, and the instant it goes on with; None: it is done."""

    started: int
    next_ms: int | None
