# Schedules, as users make them and look at them.
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Generic, overload

from typing_extensions import TypeVar

from fusee_mp.core.placement import check_id, shard_of
from fusee_mp.core.schedule import Overlap, ScheduleRule, run_id
from fusee_mp.core.time_calls import BackfillCall, ChangeScheduleCall, ScheduleCall, ScheduleShown
from fusee_mp.core.timing import CronTime, Every, Fold, Gap, Timing
from fusee_mp.core.zones import zone_of
from fusee_mp.duration import Duration, to_ms
from fusee_mp.errors import Rejected
from fusee_mp.names import checked_name
from fusee_mp.sdk.awaited import AwaitedRun
from fusee_mp.sdk.definitions import Workflow
from fusee_mp.sdk.run import Run
from fusee_mp.sdk.target import ANY

if TYPE_CHECKING:
    from fusee_mp.sdk.timed_methods import TimedMethods

I = TypeVar("I")
TIMES_MAX: Final = 1_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class ScheduleSpec(Generic[I]):
    """What a schedule starts, and when.

    every: at each multiple of this duration since the Unix epoch. cron: five fields in local time of `timezone` (also lists, ranges,
    steps, names, @daily ..). timezone: an IANA name; also the zone of `ctx.scheduled_at`. overlap: what becomes of an instant while the
    run before is open: "skip" it; "buffer_one" starts it when that run has ended; "allow" starts it; "cancel" and "terminate" ask that
    run to end, and start it then. paused: starts nothing by time until resumed. jitter: a start is put off by up to so much, the same
    for the same instant always. catch_up: after downtime, instants late by more than this are not made up. gap: local times that the
    clock jumps over: "skip", or "shift" by the jump. fold: of local times that exist twice: "first", "last" or "both".
    Raises Rejected when it is made with what cannot be.
    """

    @overload
    def __init__(self: ScheduleSpec[None], *, workflow: Workflow[None, Any], input: None = None, every: Duration | None = None,
                 cron: str | None = None, timezone: str = "UTC", overlap: Overlap = "skip", paused: bool = False, jitter: Duration = 0,
                 catch_up: Duration = "1m", gap: Gap = "skip", fold: Fold = "first") -> None: ...
    @overload
    def __init__(self, *, workflow: Workflow[I, Any], input: I, every: Duration | None = None, cron: str | None = None,
                 timezone: str = "UTC", overlap: Overlap = "skip", paused: bool = False, jitter: Duration = 0, catch_up: Duration = "1m",
                 gap: Gap = "skip", fold: Fold = "first") -> None: ...
    @overload
    def __init__(self: ScheduleSpec[Any], *, workflow: str, input: object = None, every: Duration | None = None, cron: str | None = None,
                 timezone: str = "UTC", overlap: Overlap = "skip", paused: bool = False, jitter: Duration = 0, catch_up: Duration = "1m",
                 gap: Gap = "skip", fold: Fold = "first") -> None: ...
    def __init__(self, *, workflow: Any, input: Any = None, every: Duration | None = None, cron: str | None = None, timezone: str = "UTC",
                 overlap: Overlap = "skip", paused: bool = False, jitter: Duration = 0, catch_up: Duration = "1m", gap: Gap = "skip",
                 fold: Fold = "first") -> None:
        if not isinstance(workflow, Workflow):
            checked_name("workflow", workflow)
        self.workflow: Workflow[Any, Any] | str = workflow
        self.input: Any = input
        self.timezone = timezone
        zone_of(timezone)
        self.rule = ScheduleRule(
            _timing(every, cron, timezone, gap, fold), overlap, paused, to_ms(jitter, "jitter"), to_ms(catch_up, "catch_up")).check()

    @classmethod
    def of(cls, shown: ScheduleShown) -> ScheduleSpec[Any]:
        """The spec that a shard describes: its workflow by name, its input as JSON reads."""
        self: ScheduleSpec[Any] = cls.__new__(cls)
        self.workflow, self.input = shown.type, ANY.decode(shown.input)
        self.timezone, self.rule = shown.zone, shown.rule
        return self

    @property
    def every(self) -> timedelta | None:
        timing = self.rule.timing
        return timedelta(milliseconds=timing.every_ms) if isinstance(timing, Every) else None

    @property
    def cron(self) -> str | None:
        return self.rule.timing.cron if isinstance(self.rule.timing, CronTime) else None

    @property
    def overlap(self) -> Overlap:
        return self.rule.overlap

    @property
    def paused(self) -> bool:
        return self.rule.paused

    @property
    def jitter(self) -> timedelta:
        return timedelta(milliseconds=self.rule.jitter_ms)

    @property
    def catch_up(self) -> timedelta:
        return timedelta(milliseconds=self.rule.catch_up_ms)

    @property
    def gap(self) -> Gap:
        return self.rule.timing.gap if isinstance(self.rule.timing, CronTime) else "skip"

    @property
    def fold(self) -> Fold:
        return self.rule.timing.fold if isinstance(self.rule.timing, CronTime) else "first"

    def __repr__(self) -> str:
        name = self.workflow if isinstance(self.workflow, str) else self.workflow.name
        when = f"cron={self.cron!r}" if self.every is None else f"every={str(self.every)!r}"
        return f"<schedule of {name!r}, {when}, timezone={self.timezone!r}, overlap={self.overlap!r}>"


def _timing(every: Duration | None, cron: str | None, timezone: str, gap: Gap, fold: Fold) -> Timing:
    if (every is None) == (cron is None):
        raise Rejected(f"ScheduleSpec: expected one of every= and cron=, found every={every!r:.80}, cron={cron!r:.80}.", option="every")
    if every is not None:
        if (gap, fold) != ("skip", "first"):
            CronTime("* * * * *", timezone, gap, fold).check()
            raise Rejected("ScheduleSpec: gap= and fold= are for cron=, whose local times clock changes concern. Leave them out.",
                           option="gap")
        return Every(to_ms(every, "every"))
    assert cron is not None
    if not isinstance(cron, str):
        raise Rejected(f'cron: expected text such as "0 2 * * *", found {cron!r:.80}.', option="cron")
    return CronTime(cron, timezone, gap, fold)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleDetail:
    """A schedule as it was when asked.

    spec: its workflow by name. paused: now, whatever the spec says. started: runs, however they came about. skipped: instants that an
    open run or a pause kept from starting. next: the next instant, in its zone; None in a pause. open: IDs of runs that the overlap
    policy looks at, the oldest first.
    """

    id: str
    spec: ScheduleSpec[Any]
    paused: bool
    started: int
    skipped: int
    next: datetime | None
    open: Sequence[str] = ()


class ScheduleHandle:
    """What can be asked of a schedule. Raises NotFound in every method once it is deleted."""

    def __init__(self, home: TimedMethods, id: str) -> None:
        self.id = check_id(id)
        self._home = home

    def __repr__(self) -> str:
        return f'<schedule "{self.id}">'

    async def _call(self, call: Any) -> Any:
        return await self._home._call(shard_of(self.id, self._home.shards), call)

    async def describe(self) -> ScheduleDetail:
        """How it is."""
        return detail_of(await self._call(ScheduleCall(self.id)))

    async def next_times(self, n: int) -> list[datetime]:
        """Its next instants, in its zone, also while it is paused. At most 1,000."""
        if not isinstance(n, int) or isinstance(n, bool) or not 1 <= n <= TIMES_MAX:
            raise Rejected(f"next_times(n) takes 1 to {TIMES_MAX:,}, not {n!r:.80}")
        shown: ScheduleShown = await self._call(ScheduleCall(self.id, n))
        return [local(ms, shown.zone) for ms in shown.next]

    async def pause(self) -> None:
        """Start nothing by time until it is resumed."""
        await self._change("pause")

    async def resume(self) -> None:
        """Go on with the first instant from now; `backfill` starts what the pause passed over."""
        await self._change("resume")

    async def delete(self) -> None:
        """Forget it, with what it started. Its open runs go on."""
        await self._change("delete")

    async def trigger(self) -> Run[Any]:
        """Start a run now, also in a pause, under the overlap policy: with "buffer_one", "cancel" and "terminate" it starts when the
        open run has ended. Raises Rejected when the policy is to skip it."""
        run = await self._change("trigger")
        if not run:
            raise Rejected(f'schedule "{self.id}" was not started: a run of it is open, and its overlap policy is to skip what comes'
                           " meanwhile. End that run, or give the schedule another overlap.", id=self.id)
        return AwaitedRun(self._home, run, ANY)  # type: ignore[arg-type]

    async def backfill(self, first: datetime, last: datetime) -> int:
        """Start every instant from `first` through `last` that was not started yet, whatever is open, and return how many these were.

        Raises Rejected when more than 100,000 instants lie in between.
        """
        first_ms, last_ms = -(-(_aware("first", first) - _EPOCH) // timedelta(milliseconds=1)), unix_ms("last", last)
        return int(await self._call(BackfillCall(self.id, first_ms, last_ms, self._home._request_id())))

    async def _change(self, what: Any) -> Any:
        return await self._call(ChangeScheduleCall(self.id, what, self._home._request_id()))


def schedule_run_id(id: str, when: datetime | int) -> str:
    """The ID of the run that a schedule starts for an instant (aware, or ms since the Unix epoch)."""
    return run_id(id, when if isinstance(when, int) else unix_ms("when", when))


def detail_of(shown: ScheduleShown) -> ScheduleDetail:
    following = local(shown.next[0], shown.zone) if shown.next and not shown.paused else None
    return ScheduleDetail(id=shown.id, spec=ScheduleSpec.of(shown), paused=shown.paused, started=shown.started, skipped=shown.skipped,
                          next=following, open=tuple(shown.open))


def local(ms: int, zone: str) -> datetime:
    """An instant in a zone. Exact: a float would lose milliseconds of far years."""
    return (_EPOCH + timedelta(milliseconds=ms)).astimezone(zone_of(zone))


def unix_ms(what: str, at: datetime) -> int:
    return (_aware(what, at) - _EPOCH) // timedelta(milliseconds=1)


def _aware(what: str, at: datetime) -> datetime:
    if not isinstance(at, datetime) or at.tzinfo is None or at.utcoffset() is None:
        raise Rejected(f"{what}: expected a datetime with a zone, found {at!r:.80}. Write datetime(.., tzinfo=UTC), or a ZoneInfo.",
                       option=what)
    return at
