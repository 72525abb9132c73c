# What records of schedules and windows do to the tables: one statement after the other, in the order of the records.
#
# Rule 1: nothing is decided here. A schedule's record says what changed, a window's which run an event joined and what closed; so the
#         rows need no clock and no zone data.
# Rule 2: messages to other shards are made again as the runtime made them, and stand in the outbox as those of runs do.
# Rule 3: what is kept for repeats (answers, event IDs of closed windows) goes when a record's own time says so, or by its number.
from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any, Final

import msgspec

from fusee_mp.bounds import ANSWER_KEEP_MS, WINDOW_EVENT_IDS_KEEP_MS, WINDOW_EVENT_IDS_MAX
from fusee_mp.core import records as r
from fusee_mp.core.idfilter import key as hash_key
from fusee_mp.core.schedule import ScheduleState
from fusee_mp.core.schedule_changes import apply
from fusee_mp.core.wishes import begin_of, close_of, end_of
from fusee_mp.store.fold import Entry, Group

_OLDEST: Final = "select id, closed, answers from window, windows where closed is not null order by closed, id limit 1"
_decode_state: Final = msgspec.msgpack.Decoder(ScheduleState).decode


class _Schedule:
    """A schedule as a group changes it."""

    __slots__ = ("input", "state", "type", "zone")

    def __init__(self, type: str, input: bytes, zone: str, state: ScheduleState) -> None:
        self.type, self.input, self.zone, self.state = type, input, zone, state


class _Writer:
    """One group. Schedules are decoded once, and encoded at its end."""

    def __init__(self, db: sqlite3.Connection, group: Group) -> None:
        self.db, self.group = db, group
        self.schedules: dict[str, _Schedule | None] = {}

    # Schedules.

    def schedule(self, record: r.ScheduleSet, entry: Entry) -> None:
        schedule = self.schedules[record.id] = _Schedule(record.type, record.input, record.zone, record.state)
        self._send(record, schedule)

    def moved(self, record: r.ScheduleMoved, entry: Entry) -> None:
        schedule = self._schedule(record.id)
        if schedule is None:
            self.group.strays, self.group.stray_lsn = self.group.strays + 1, max(self.group.stray_lsn, entry.lsn)
            return
        apply(schedule.state, record.change)
        self._send(record, schedule)

    def deleted(self, record: r.ScheduleDeleted, entry: Entry) -> None:
        self.schedules[record.id] = None

    def _schedule(self, id: str) -> _Schedule | None:
        if id not in self.schedules:
            row = self.db.execute("select type, input, zone, state from schedule where id = ?", (id,)).fetchone()
            self.schedules[id] = _Schedule(row[0], row[1], row[2], _decode_state(row[3])) if row else None
        return self.schedules[id]

    def _send(self, record: r.ScheduleSet | r.ScheduleMoved, schedule: _Schedule) -> None:
        id, at, send = record.id, record.at, self.group.send
        for begin in record.begins:
            send(begin.to, begin.no, id, r.encode(begin_of(id, schedule.type, schedule.input, schedule.zone, at, begin)))
        for end in record.ends:
            send(end.to, end.no, id, r.encode(end_of(id, at, end)))

    def write_schedules(self) -> None:
        for id, schedule in self.schedules.items():
            if schedule is None:
                self.db.execute("delete from schedule where id = ?", (id,))
            else:
                self.db.execute(
                    "insert or replace into schedule(id, type, input, zone, state) values(?, ?, ?, ?, ?)",
                    (id, schedule.type, schedule.input, schedule.zone, msgspec.msgpack.encode(schedule.state)))

    # Windows.

    def gathered(self, record: r.Gathered, entry: Entry) -> None:
        for closing in record.closed:
            if closing.window != record.window:
                self._close(closing, record.at)
        self.db.execute(
            "insert into window(id, kind, workflow, key, opened, closes, taken) values(?, ?, ?, ?, ?, ?, 1)"
            " on conflict do update set closes = excluded.closes, taken = taken + 1",
            (record.window, record.kind, record.workflow, record.key, record.at, record.closes))
        if record.kind == "debounce":
            self._forget_inputs(record.window)
        self.db.execute("insert into event(lsn, window, id, input) values(?, ?, ?, ?)",
                        (entry.lsn, record.window, record.event, record.input))
        for closing in record.closed:
            if closing.window == record.window:
                self._close(closing, record.at)
        self._tick(record.at, _number_of(record.window))

    def windows_closed(self, record: r.WindowsClosed, entry: Entry) -> None:
        for closing in record.closed:
            self._close(closing, record.at)
        self._tick(record.at, 0)

    def _close(self, closing: r.Closing, at: int) -> None:
        row = self.db.execute(
            "select kind, workflow, key, closes from window where id = ? and closed is null", (closing.window,)).fetchone()
        if row is None:
            return
        kind, workflow, key, closes = row
        rows = self.db.execute("select input from event where window = ? and input is not null order by lsn", (closing.window,)).fetchall()
        self.group.send(closing.to, closing.no, key, r.encode(close_of(kind, workflow, [input for (input,) in rows], at, closing)))
        self._forget_inputs(closing.window)
        self.db.execute("update window set closed = ? where id = ?", (min(closes, at), closing.window))
        (kept,) = self.db.execute("select count(*) from event where window = ?", (closing.window,)).fetchone()
        self.db.execute("update windows set answers = answers + ?", (kept,))

    def _forget_inputs(self, window: str) -> None:
        self.db.execute("delete from event where window = ? and id = ''", (window,))
        self.db.execute("update event set input = null where window = ? and input is not null", (window,))

    def _tick(self, at: int, number: int) -> None:
        self.db.execute("update windows set now = max(now, ?), number = max(number, ?)", (at, number))
        while self._is_too_old(oldest := self.db.execute(_OLDEST).fetchone(), at - WINDOW_EVENT_IDS_KEEP_MS):
            gone = self.db.execute("delete from event where window = ?", oldest[:1]).rowcount
            self.db.execute("delete from window where id = ?", oldest[:1])
            self.db.execute("update windows set answers = answers - ?", (gone,))

    @staticmethod
    def _is_too_old(oldest: tuple[str, int, int] | None, before_ms: int) -> bool:
        return oldest is not None and (oldest[1] <= before_ms or oldest[2] > WINDOW_EVENT_IDS_MAX)

    def answered(self, record: Any, entry: Entry) -> None:
        """Whoever comes with this request again gets this answer."""
        self.db.execute("delete from answer where at < ?", (record.at - ANSWER_KEEP_MS,))
        self.db.execute("insert into answer(lsn, hash, key, at, value) values(?, ?, ?, ?, ?)",
                        (entry.lsn, hash_key(record.request), record.request, record.at, record.answer))


def _number_of(window: str) -> int:
    number = window.rpartition("@")[2]
    return int(number) if number.isdecimal() else 0


_KINDS: Final[dict[type, Callable[[_Writer, Any, Entry], None]]] = {
    r.ScheduleSet: _Writer.schedule, r.ScheduleMoved: _Writer.moved, r.ScheduleDeleted: _Writer.deleted,
    r.Gathered: _Writer.gathered, r.WindowsClosed: _Writer.windows_closed,
}


def write(db: sqlite3.Connection, group: Group) -> None:
    """Write what the group has of schedules and windows, within its transaction; its messages go to the group's outbox."""
    writer = _Writer(db, group)
    for entry in group.timed:
        _KINDS[type(entry.record)](writer, entry.record, entry)
        if getattr(entry.record, "request", ""):
            writer.answered(entry.record, entry)
    writer.write_schedules()
