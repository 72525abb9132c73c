# When a schedule starts what: due instants, triggers and backfills in, starts and ends of runs out.
#
# The guarantee: each instant is started at most once, and with any overlap policy but "allow" at most one run of the schedule is open
# (backfilled runs aside). A run's ID is `<schedule>@<instant in ms>`, so a start that is carried out twice finds its ID taken.
#
#   overlap      a run is open when an instant is due                              and when that run ends
#   skip         the instant is skipped
#   buffer_one   it is remembered, if none is; else skipped                        the remembered one starts
#   allow        it starts, if fewer than SCHEDULE_OPEN_MAX are open; else skipped
#   cancel       the run is asked to end, once; it is remembered instead of        the remembered one starts
#                the one before, which is skipped
#   terminate    the same, without asking the run's code                           the remembered one starts
#
# Rule 1: `position_ms` only rises. Everything up to it has been decided: started, skipped, missed, or passed over in a pause.
# Rule 2: an instant whose start comes later than the catch-up window allows is missed. It is not made up; backfill can do that.
# Rule 3: a pause passes over its instants, and drops the remembered one. Triggers and backfills work in a pause.
# Rule 4: backfilled runs are outside of the overlap policy: they neither wait for open runs nor make others wait.
# Rule 5: a spec that is set again with the same timing changes nothing of what is due: a deploy must not lose a catch-up.
# One input starts `page` runs at most. `next_due` is then in the past, and the rest comes with the next call.
from __future__ import annotations

from itertools import islice
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Struct, field

from fusee_mp.bounds import DURATION_MS_MAX, SCHEDULE_LATENESS_MS, SCHEDULE_OPEN_MAX, SCHEDULE_PAGE
from fusee_mp.core.numbers import Signed
from fusee_mp.core.placement import check_id
from fusee_mp.core.schedule_history import History
from fusee_mp.core.timing import Timing, jittered
from fusee_mp.errors import Rejected, StorageError

Overlap: TypeAlias = Literal["skip", "buffer_one", "allow", "cancel", "terminate"]
_OVERLAPS: Final = ("skip", "buffer_one", "allow", "cancel", "terminate")
_LONGEST_INSTANT: Final = (1 << 63) - 1


class ScheduleRule(Struct, frozen=True):
    """timing: the instants. jitter_ms: the most that a start is put off. catch_up_ms: the most that a start may be late, never less
    than a second."""

    timing: Timing
    overlap: Overlap = "skip"
    paused: bool = False
    jitter_ms: int = 0
    catch_up_ms: int = 60_000

    def check(self) -> ScheduleRule:
        """This rule, if it may be one; else Rejected."""
        self.timing.check()
        if self.overlap not in _OVERLAPS:
            raise Rejected(f"overlap: expected one of {', '.join(_OVERLAPS)}, found {self.overlap!r:.80}.", option="overlap")
        if not isinstance(self.paused, bool):
            raise Rejected(f"paused: expected True or False, found {self.paused!r:.80}.", option="paused")
        for option, found in (("jitter", self.jitter_ms), ("catch_up", self.catch_up_ms)):
            if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found <= DURATION_MS_MAX:
                raise Rejected(f"{option}: expected 0 to {DURATION_MS_MAX:,} ms, found {found!r:.80}.", option=option)
        return self


class StartRun(Struct, frozen=True):
    """Start the schedule's workflow under this ID, and say `run_ended` when it has ended (or could not be started)."""

    run_id: str
    instant_ms: int


class CancelRun(Struct, frozen=True):
    run_id: str


class TerminateRun(Struct, frozen=True):
    run_id: str


class Remember(Struct, frozen=True):
    """This instant starts when the open run has ended."""

    instant_ms: int


class Skip(Struct, frozen=True):
    """This instant is not started, because of a run that is open, or of a pause."""

    instant_ms: int


class Missed(Struct, frozen=True):
    """No instant from first through last is started: nobody was there in time."""

    first_ms: int
    last_ms: int


Effect: TypeAlias = StartRun | CancelRun | TerminateRun | Remember | Skip | Missed


def run_id(schedule_id: str, instant_ms: int) -> str:
    """The ID of the run that this instant starts."""
    return f"{schedule_id}@{instant_ms}"


class ScheduleState(Struct, forbid_unknown_fields=True):
    """Everything that a schedule is. What an input did to it is a difference between two of these (schedule_changes.py)."""

    id: str
    rule: ScheduleRule
    history: History
    position_ms: Signed
    paused: bool
    started: Signed = 0
    skipped: Signed = 0
    remembered: Signed | None = None
    open: list[Signed] = field(default_factory=list)  # The instants of the runs that the overlap policy looks at.
    ending: list[Signed] = field(default_factory=list)  # Those of them that were asked to end.


class Schedule:
    """One schedule. Every input that has effects is a record of the log first; replaying them, or `load`, gives the same state."""

    __slots__ = ("_due", "_state", "page")

    def __init__(self, id: str, rule: ScheduleRule, now_ms: int) -> None:
        """A new schedule, whose first instant is the first after now. Raises Rejected for a rule or an ID that cannot be."""
        check_id(run_id(check_id(id), _LONGEST_INSTANT))
        self._state = ScheduleState(id, rule.check(), History.of(rule.timing), now_ms, rule.paused)
        self._due: tuple[int, int] | None = None  # The next instant and when it is due, once somebody asked.
        self.page = SCHEDULE_PAGE

    @property
    def id(self) -> str:
        return self._state.id

    @property
    def rule(self) -> ScheduleRule:
        return self._state.rule

    @property
    def paused(self) -> bool:
        return self._state.paused

    @property
    def started(self) -> int:
        """Runs started, however they came about."""
        return self._state.started

    @property
    def skipped(self) -> int:
        """Instants that an open run or a pause kept from starting. Missed ones are not counted: there may be too many to count."""
        return self._state.skipped

    @property
    def open(self) -> tuple[str, ...]:
        """The open runs that the overlap policy looks at, the oldest first."""
        return tuple(run_id(self.id, instant) for instant in self._state.open)

    @property
    def next_due(self) -> int | None:
        """When `pass_time` has something to do again; None in a pause and after the last instant."""
        following = None if self.paused else self._following()
        return None if following is None else following[1]

    def next_times(self, count: int, now_ms: int) -> list[int]:
        """The next instants after now as the timing has them, whether or not the schedule is paused."""
        return list(islice(self.rule.timing.instants(max(now_ms, self._state.position_ms) + 1), count))

    def replace(self, rule: ScheduleRule, now_ms: int) -> list[Effect]:
        """Put another rule in force. An operator's pause or resume holds until a rule says otherwise than the last one did."""
        rule.check()
        state, before = self._state, self.rule
        effects: list[Effect] = []
        if rule.paused != before.paused:
            effects += self.pause(now_ms) if rule.paused else self.resume(now_ms)
        if rule.timing != before.timing:
            effects += self.pass_time(now_ms)
            state.history.retime(rule.timing)
            state.position_ms = max(state.position_ms, now_ms)
        state.rule, self._due = rule, None
        return effects + self._start_remembered()

    def pass_time(self, now_ms: int) -> list[Effect]:
        """Decide every instant that is due."""
        if self.paused:
            return []
        effects: list[Effect] = self._miss(now_ms)
        for _ in range(self.page):
            following = self._following()
            if following is None or following[1] > now_ms:
                break
            instant, due = following
            self._advance(instant)
            effects += [Missed(instant, instant)] if self._is_late(due, now_ms) else self._decide(instant)
        return effects

    def run_ended(self, run: str) -> list[Effect]:
        """A run that this schedule started is no longer open. One it does not know, or knows no more, changes nothing."""
        state = self._state
        instant = next((instant for instant in state.open if run_id(state.id, instant) == run), None)
        if instant is None:
            return []
        state.open.remove(instant)
        if instant in state.ending:
            state.ending.remove(instant)
        return self._start_remembered()

    def trigger(self, now_ms: int) -> list[Effect]:
        """One start now, also in a pause, under the overlap policy. Its instant is the first from now on that was not started."""
        instant = now_ms
        while self._state.history.has(instant) or instant == self._state.remembered:
            instant += 1
        return self._decide(instant)

    def pause(self, now_ms: int) -> list[Effect]:
        """Start nothing by time any more. What was due before is decided first."""
        effects = self.pass_time(now_ms)
        self._state.paused = True
        return effects + self._forget_remembered()

    def resume(self, now_ms: int) -> list[Effect]:
        """Go on with the first instant after now."""
        if self.paused:
            self._state.paused = False
            self._advance(max(self._state.position_ms, now_ms))
        return []

    def backfill(self, first_ms: int, last_ms: int) -> tuple[list[Effect], int | None]:
        """A page of the instants from first through last that were not started yet, and where the next page begins; None for nowhere.

        Raises Rejected when first is after last.
        """
        if first_ms > last_ms:
            raise Rejected(f"backfill: expected first before last, found {first_ms} and {last_ms} (ms since the Unix epoch).")
        effects: list[Effect] = []
        for looked_at, instant in enumerate(self.rule.timing.instants(first_ms, last_ms)):
            if looked_at == self.page:
                return effects, instant
            if not self._state.history.has(instant):
                effects.append(self._start(instant))
        return effects, None

    def _following(self) -> tuple[int, int] | None:
        if self._due is None:
            instant = self.rule.timing.next_after(self._state.position_ms)
            if instant is not None:
                self._due = instant, jittered(self.rule.timing, self.id, instant, self.rule.jitter_ms)
        return self._due

    def _advance(self, position_ms: int) -> None:
        self._state.position_ms, self._due = position_ms, None

    def _is_late(self, due_ms: int, now_ms: int) -> bool:
        return now_ms - due_ms > max(self.rule.catch_up_ms, SCHEDULE_LATENESS_MS)

    def _miss(self, now_ms: int) -> list[Effect]:
        """Pass over all that is too late for any jitter in one leap: a schedule of each ms that was away for a day has 86 million."""
        last = now_ms - max(self.rule.catch_up_ms, SCHEDULE_LATENESS_MS) - self.rule.jitter_ms - 1
        following = self._following()
        if following is None or following[0] > last:
            return []
        self._advance(last)
        return [Missed(following[0], last)]

    def _decide(self, instant: int) -> list[Effect]:
        """The table above, first column."""
        state = self._state
        if state.history.has(instant):
            return []
        if not state.open or (self.rule.overlap == "allow" and len(state.open) < SCHEDULE_OPEN_MAX):
            return [self._start(instant, watched=True)]
        if self.rule.overlap in ("skip", "allow") or (self.rule.overlap == "buffer_one" and state.remembered is not None):
            return [self._skip(instant)]
        effects = self._forget_remembered() if state.remembered != instant else []
        state.remembered = instant
        return [*effects, Remember(instant), *self._end_open()]

    def _end_open(self) -> list[Effect]:
        state = self._state
        if self.rule.overlap == "buffer_one":
            return []
        fresh = [instant for instant in state.open if instant not in state.ending]
        state.ending += fresh
        order = CancelRun if self.rule.overlap == "cancel" else TerminateRun
        return [order(run_id(state.id, instant)) for instant in fresh]

    def _start_remembered(self) -> list[Effect]:
        state = self._state
        instant = state.remembered
        if instant is None or (state.open and self.rule.overlap != "allow"):
            return []
        state.remembered = None
        return [self._start(instant, watched=True)]

    def _start(self, instant: int, watched: bool = False) -> StartRun:
        state = self._state
        state.history.add(instant)
        state.started += 1
        if instant == state.remembered:
            state.remembered = None
        if watched:
            state.open.append(instant)
        return StartRun(run_id(state.id, instant), instant)

    def _skip(self, instant: int) -> Skip:
        self._state.skipped += 1
        return Skip(instant)

    def _forget_remembered(self) -> list[Effect]:
        instant, self._state.remembered = self._state.remembered, None
        return [] if instant is None else [self._skip(instant)]

    @property
    def now(self) -> ScheduleState:
        """The state itself, to be read only: the next input changes it."""
        return self._state

    def state(self) -> dict[str, Any]:
        """Everything as plain values."""
        plain: dict[str, Any] = msgspec.to_builtins(self._state)
        return plain

    @classmethod
    def load(cls, state: object) -> Schedule:
        """What `state` described. Raises StorageError for what no schedule can have written."""
        try:
            saved = msgspec.convert(state, ScheduleState)
            saved.rule.check()
        except (msgspec.ValidationError, Rejected) as e:
            raise StorageError(f"saved schedule: {e}") from None
        if saved.history.now.timing != saved.rule.timing or not saved.history.is_sound():
            raise StorageError(f'saved schedule "{saved.id}": what it started does not fit its timing {saved.rule.timing!r}')
        self = cls.__new__(cls)
        self._state, self._due, self.page = saved, None, SCHEDULE_PAGE
        return self
