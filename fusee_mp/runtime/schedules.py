# The schedules of one shard, at work.
#
# What a schedule is to do, its machine says (core/schedule.py). Here time, calls and the ends of runs come to the machine, what each
# of them changed becomes one record, and what the machine orders leaves as messages: a run is on the shard of its own ID.
# Rule 1: one input, one record. It holds the change and every order that follows, so a crash keeps both or neither.
# Rule 2: a run of a schedule has it as its parent, as run 0; that is how its end is heard of, wherever it runs.
# Rule 3: a run whose workflow is not at hand is started all the same, and set aside until it is: no instant is lost.
from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from fusee_mp.bounds import BACKFILL_RUNS_MAX, SCHEDULE_INPUT_BYTES_MAX, SCHEDULE_PAGE, SCHEDULE_PAGE_BYTES
from fusee_mp.core import records as r
from fusee_mp.core.schedule import CancelRun, Effect, Remember, Schedule, ScheduleState, StartRun, TerminateRun, run_id
from fusee_mp.core.schedule_changes import Before, before, change_of
from fusee_mp.core.time_calls import (
    BackfillCall,
    Backfilled,
    ChangeScheduleCall,
    ScheduleCall,
    SchedulesCall,
    ScheduleShown,
    SetScheduleCall,
)
from fusee_mp.core.wishes import begin_of, end_of
from fusee_mp.core.zones import zone_of
from fusee_mp.errors import FuseeError, NotFound, Rejected, StorageError

if TYPE_CHECKING:
    from fusee_mp.runtime.calls import Calls
    from fusee_mp.runtime.shard_runtime import ShardRuntime
    from fusee_mp.store.results import StoredSchedule

LOG: Final = logging.getLogger("fusee_mp.shard")
PAGE: Final = 256
REFUSED_RETRY_MS: Final = 1_000
# A backfill waits while more messages than this are on their way.
OUTBOX_MAX: Final = 2 * SCHEDULE_PAGE
OUTBOX_RETRY_S: Final = 0.01
SHOWN_MAX: Final = 1_000
encode_answer: Final = msgspec.msgpack.Encoder().encode
_decode_state: Final = msgspec.msgpack.Decoder(ScheduleState).decode


class Timetable:
    """A schedule and what it starts; as a timer, the next time it is due."""

    __slots__ = ("alarm", "input", "machine", "type", "zone")

    def __init__(self, type: str, input: bytes, zone: str, machine: Schedule) -> None:
        self.type, self.input, self.zone, self.machine = type, input, zone, machine
        self.alarm: Alarm | None = None
        machine.page = max(1, min(SCHEDULE_PAGE, SCHEDULE_PAGE_BYTES // max(1, len(input))))

    @property
    def id(self) -> str:
        return self.machine.id

    def shown(self, times: int, now_ms: int) -> ScheduleShown:
        machine = self.machine
        return ScheduleShown(
            machine.id, self.type, self.input, self.zone, machine.rule, machine.paused, machine.started, machine.skipped,
            list(machine.open), machine.next_times(min(times, SHOWN_MAX), now_ms),
        )


class Alarm:
    """When a schedule has something to do again. A later one takes its place."""

    __slots__ = ("at_ms", "schedules", "table")

    def __init__(self, schedules: Schedules, table: Timetable, at_ms: int) -> None:
        self.schedules, self.table, self.at_ms = schedules, table, at_ms

    @property
    def is_open(self) -> bool:
        return self.table.alarm is self

    def due(self) -> None:
        if self.is_open:
            self.table.alarm = None
            self.schedules.pass_time(self.table)


class Schedules:
    def __init__(self, shard: ShardRuntime, calls: Calls) -> None:
        self._shard = shard
        self._calls = calls
        self._tables: dict[str, Timetable] = {}
        self._unreadable: dict[str, str] = {}

    def __contains__(self, id: str) -> bool:
        return id in self._tables or id in self._unreadable

    async def take_over(self) -> None:
        """Read the schedules from the store, and go on with what has become due."""
        after = ""
        while rows := await self._shard.home.read("schedules", (after, PAGE)):
            for row in rows:
                after = row.id
                self._revive(row)

    def _revive(self, row: StoredSchedule) -> None:
        try:
            machine = Schedule.load(msgspec.to_builtins(_decode_state(row.state)))
        except (StorageError, msgspec.DecodeError) as e:
            self._unreadable[row.id] = str(e)
            LOG.error('schedule "%s" starts nothing until it can be read here, or is deleted: %s', row.id, e)
        else:
            table = self._tables[row.id] = Timetable(row.type, row.input, row.zone, machine)
            self._arm(table)

    # Time.

    def pass_time(self, table: Timetable) -> None:
        """Decide what is due. While nothing new can be started, wait."""
        if self._shard.home.refusal:
            self._arm(table, REFUSED_RETRY_MS)
            return
        self._move(table, lambda: table.machine.pass_time(self._shard.clock()))

    def _arm(self, table: Timetable, wait_ms: int = 1) -> None:
        due = table.machine.next_due
        if due is None:
            table.alarm = None
            return
        # Not at once, also when it is late: other things have their turn between two pages.
        at = max(due, self._shard.clock() + wait_ms)
        if table.alarm is None or table.alarm.at_ms != at:
            table.alarm = Alarm(self, table, at)
            self._shard.timers.add(at, table.alarm)

    # Ends of runs.

    def run_ended(self, parent: r.Parent, source: r.Source) -> None:
        """A run of a schedule has ended, or could not be started."""
        table = self._tables.get(parent.id)
        lsn = self._shard.lsn
        if table is not None:
            run = run_id(parent.id, int(parent.op)) if parent.op.isdecimal() else ""
            self._move(table, lambda: table.machine.run_ended(run), source=source)
        if self._shard.lsn == lsn:
            self._shard.append(r.encode(r.Skipped(self._shard.clock(), source, f'schedule "{parent.id}" does not wait for this run')))

    # Calls.

    def set(self, call: SetScheduleCall) -> None:
        """Make a schedule, or put another rule in force."""
        call = self._shard.payloads.sealed(call)  # its input is looked at by nobody before the runs
        if refusal := self._refusal(call):
            self._calls.refuse(call, 0, refusal)
            return
        now, table = self._shard.clock(), self._tables.get(call.id)
        effects: list[Effect] = []
        try:
            zone_of(call.zone)
            if table is None:
                table = Timetable(call.type, call.input, call.zone, Schedule(call.id, call.rule, now))
            else:
                effects = table.machine.replace(call.rule, now)
                table = Timetable(call.type, call.input, call.zone, table.machine)
        except Rejected as e:
            self._calls.refuse(call, 0, e)
            return
        self._put(table)
        record = r.ScheduleSet(
            now, call.id, call.type, call.input, call.zone, table.machine.now, request=call.request, answer=encode_answer(None))
        self._calls.done(call, self._record(table, record, effects), None)

    def _put(self, table: Timetable) -> None:
        old = self._tables.get(table.id)
        if old is not None:
            old.alarm = None
        self._tables[table.id] = table

    def _refusal(self, call: SetScheduleCall) -> FuseeError | None:
        if call.id in self._unreadable:
            return self._missing(call.id)
        if self._shard.windows.has_key(call.id):
            return Rejected(f'schedule "{call.id}": a debounce or batch window of this key is open, and their runs have IDs of the same'
                            " form. Give the schedule another ID.", id=call.id)
        if len(call.input) > SCHEDULE_INPUT_BYTES_MAX:
            return Rejected(f"the input of a schedule's runs has at most {SCHEDULE_INPUT_BYTES_MAX:,} bytes, this one has"
                            f" {len(call.input):,}. Keep the value elsewhere and give its address.", id=call.id)
        return self._calls.start_refusal(call)

    def change(self, call: ChangeScheduleCall) -> None:
        """Pause, resume, trigger or delete."""
        table = self._tables.get(call.id)
        if call.what == "delete" and call.id in self:
            self._delete(call, table)
        elif table is None:
            self._calls.refuse(call, self._shard.lsn, self._missing(call.id))
        elif call.what == "trigger":
            self._trigger(call, table)
        else:
            act = table.machine.pause if call.what == "pause" else table.machine.resume
            self._move(table, lambda: act(self._shard.clock()), call.request, lambda _: None)
            self._calls.done(call, self._shard.lsn, None)

    def _trigger(self, call: ChangeScheduleCall, table: Timetable) -> None:
        def answer(effects: list[Effect]) -> str:
            return next((run_id(table.id, each.instant_ms) for each in effects if isinstance(each, (StartRun, Remember))), "")

        if why := self._calls.full(call.id, table.type):
            self._calls.refuse(call, 0, why)
            return
        effects = self._move(table, lambda: table.machine.trigger(self._shard.clock()), call.request, answer)
        self._calls.done(call, self._shard.lsn, answer(effects))

    def _delete(self, call: ChangeScheduleCall, table: Timetable | None) -> None:
        self._unreadable.pop(call.id, None)
        if table is not None:
            table.alarm = None
            del self._tables[call.id]
        record = r.ScheduleDeleted(self._shard.clock(), call.id, call.request, encode_answer(None))
        self._calls.done(call, self._shard.append(self._shard.encode(record)), None)

    def backfill(self, call: BackfillCall, so_far: Backfilled | None = None) -> None:
        """Start page after page; each page's record says how far it is, so a repeat goes on from there."""
        table = self._tables.get(call.id)
        first = call.first_ms if so_far is None or so_far.next_ms is None else so_far.next_ms
        if table is None:
            self._calls.refuse(call, self._shard.lsn, self._missing(call.id))
        elif why := self._calls.full(call.id, table.type) or _too_many(table, first, call.last_ms):
            self._calls.refuse(call, 0, why)
        else:
            self._backfill_page(call, table, Backfilled(so_far.started if so_far is not None else 0, first))

    def _backfill_page(self, call: BackfillCall, table: Timetable, so_far: Backfilled) -> None:
        assert so_far.next_ms is not None
        following: list[int | None] = []

        def act() -> list[Effect]:
            effects, next_ms = table.machine.backfill(so_far.next_ms or 0, call.last_ms)
            following.append(next_ms)
            return effects

        def answer(effects: list[Effect]) -> Backfilled:
            return Backfilled(so_far.started + len(effects), following[0])

        try:
            now = answer(self._move(table, act, call.request, answer))
        except Rejected as e:
            self._calls.refuse(call, 0, e)
            return
        if now.next_ms is None:
            self._calls.done(call, self._shard.lsn, now.started)
        else:
            self._shard.hold(self._shard.lsn, self._next_page, call, now)

    def _next_page(self, call: BackfillCall, so_far: Backfilled) -> None:
        if self._shard.is_closed:
            return
        if len(self._shard.outbox) > OUTBOX_MAX or self._shard.home.refusal:
            self._shard.loop.call_later(OUTBOX_RETRY_S, self._next_page, call, so_far)
        elif (table := self._tables.get(call.id)) is None:
            self._calls.refuse(call, self._shard.lsn, self._missing(call.id))
        else:
            self._backfill_page(call, table, so_far)
            self._shard.work_soon()

    def look(self, call: ScheduleCall) -> ScheduleShown | FuseeError:
        """How it is, by everything recorded so far."""
        table = self._tables.get(call.id)
        return self._missing(call.id) if table is None else table.shown(call.times, self._shard.clock())

    def page(self, call: SchedulesCall) -> list[ScheduleShown]:
        """Those that can be read here, by ID."""
        ids = sorted(id for id in self._tables if id > call.after)[:max(1, min(call.limit, SHOWN_MAX))]
        now, found, size = self._shard.clock(), [], 0
        for id in ids:
            found.append(self._tables[id].shown(1, now))
            size += len(self._tables[id].input)
            if size > SCHEDULE_PAGE_BYTES:
                break
        return found

    def _missing(self, id: str) -> FuseeError:
        if id in self._unreadable:
            return StorageError(f'schedule "{id}" cannot be read where its shard is held: {self._unreadable[id]}', id=id)
        return NotFound(f'no schedule has the ID "{id}": it was never made, or was deleted', id=id)

    # Records.

    def _move(self, table: Timetable, act: Callable[[], list[Effect]], request: str = "",
              answer: Callable[[list[Effect]], Any] | None = None, source: r.Source | None = None) -> list[Effect]:
        """Give the machine an input, record what it changed, and send what it orders."""
        old: Before = before(table.machine.now)
        effects = act()
        if request or before(table.machine.now) != old:
            self._record(table, r.ScheduleMoved(
                self._shard.clock(), table.id, change_of(old, table.machine.now), request=request,
                answer=b"" if answer is None else encode_answer(answer(effects)), source=source), effects)
        else:
            self._arm(table)
        return effects

    def _record(self, table: Timetable, record: r.ScheduleSet | r.ScheduleMoved, effects: list[Effect]) -> int:
        mail = self._shard.mail
        messages: list[tuple[r.Begin | r.End, r.StartAsked | r.Send]] = []
        record.begins, record.ends = [], []
        for effect in effects:
            if isinstance(effect, StartRun):
                begin = r.Begin(*mail.address(effect.run_id), effect.instant_ms)
                record.begins.append(begin)
                messages.append((begin, begin_of(table.id, table.type, table.input, table.zone, record.at, begin)))
            elif isinstance(effect, (CancelRun, TerminateRun)):
                end = r.End(*mail.address(effect.run_id), int(effect.run_id.rpartition("@")[2]),
                            "cancel" if isinstance(effect, CancelRun) else "terminate")
                record.ends.append(end)
                messages.append((end, end_of(table.id, record.at, end)))
        lsn = self._shard.append(self._shard.encode(record))
        for order, message in messages:
            mail.post(table.id, order.to, order.no, self._shard.encode(message), lsn)
        self._arm(table)
        return lsn


def _too_many(table: Timetable, first_ms: int, last_ms: int) -> FuseeError | None:
    instants = table.machine.rule.timing.instants(first_ms, last_ms)
    if sum(1 for _ in zip(range(BACKFILL_RUNS_MAX + 1), instants, strict=False)) <= BACKFILL_RUNS_MAX:
        return None
    return Rejected(f'schedule "{table.id}": a backfill covers at most {BACKFILL_RUNS_MAX:,} instants, and more lie from first through'
                    " last. Fill in parts.", id=table.id)
