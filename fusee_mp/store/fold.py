"""What each record does to the tables: a table of functions by kind, over rows held in memory.

A group is the records of one transaction. It begins with what the database knows about the runs they name, is changed record by
record, and is then written (write.py) in few statements, so a run that a hundred records touch costs one row and one chunk.

1. Folding is a function of the log alone: no clock, no randomness. Stores made from the same records have the same rows, whatever
   the grouping was, except where a journal is cut into chunks.
2. A record never makes folding fail: one for a run that is not there (or a second start of one that is) is a stray, which is
   counted and shown, and changes nothing. What cannot be decoded is refused before it comes here (`decode_batch`).
3. A final status stays. Only `Unquarantined` and the end of a run lift a quarantine; only `Resumed`, a request to cancel and the end
   of a run lift a pause.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

from fusee_mp.core import records as r
from fusee_mp.core.idfilter import key as hash_key
from fusee_mp.store.archive import Archived
from fusee_mp.store.schema import CODES, FINAL, PARKED, PAUSED, QUARANTINED, QUIET, RUNNING, SUSPENDED

LENGTH: Final = r.LENGTH_BYTES
# What an outbox entry says when no run of this shard sent it.
NO_RUN: Final = 0


class Entry(NamedTuple):
    """One record on its way into the tables; `data` has its length in front."""

    lsn: int
    record: Any
    data: bytes


class CannotFold(Exception):
    """A record cannot be folded: which, and why. Everything before its batch can be."""

    def __init__(self, lsn: int, reason: str) -> None:
        super().__init__(f"the record with LSN {lsn} cannot be folded: {reason}")
        self.lsn, self.reason = lsn, reason


def decode_batch(first_lsn: int, body: bytes) -> list[Entry]:
    """The records of a batch's body. Raises CannotFold for the first that is cut off, malformed or holds bad JSON."""
    entries: list[Entry] = []
    at, end = 0, len(body)
    while at < end:
        lsn = first_lsn + len(entries)
        stop = at + LENGTH + int.from_bytes(body[at : at + LENGTH], "little")
        if at + LENGTH > end or stop > end:
            raise CannotFold(lsn, f"its length says {stop - at - LENGTH} bytes, the batch has {max(0, end - at - LENGTH)} left")
        entries.append(Entry(lsn, _decode(lsn, body[at + LENGTH : stop]), body[at:stop]))
        at = stop
    return entries


def _decode(lsn: int, data: bytes) -> Any:
    try:
        return r.read(data)
    except ValueError as e:
        raise CannotFold(lsn, str(e)) from e


class Row:
    """A run as a group changes it."""

    __slots__ = (
        "archived", "chunk", "data", "due", "forgot", "gone", "id", "is_new", "lsn", "lsns", "run", "status", "type", "values", "was_due",
        "was_status",
    )

    def __init__(self, run: int, id: str, type: int, status: int, due: int | None, chunk: int | None, is_new: bool) -> None:
        self.run, self.id, self.type, self.chunk = run, id, type, chunk
        self.status = self.was_status = status
        self.due = self.was_due = due
        self.is_new, self.gone, self.lsn = is_new, False, 0
        self.archived = False
        self.forgot: int | None = None  # when its journal went before it
        # Columns to set besides status, due, chunk and lsn.
        self.values: dict[str, Any] = {}
        self.lsns: list[int] = []
        self.data: list[bytes] = []


class Request:
    """A request's ID; `gone` is when its run went."""

    __slots__ = ("gone", "hash", "key", "lsn")

    def __init__(self, lsn: int, key: str) -> None:
        self.lsn, self.key, self.hash = lsn, key, hash_key(key)
        self.gone: int | None = None


class Peer:
    """How far the messages from and to another shard are."""

    __slots__ = ("acked", "next_no", "taken")

    def __init__(self, taken: int = 0, next_no: int = 1, acked: int = 0) -> None:
        self.taken, self.next_no, self.acked = taken, next_no, acked


class Group:
    """The rows of one transaction: what was known before, and what the records make of it."""

    def __init__(self, rows: dict[int, Row], types: dict[str, int], attributes_of: Callable[[int], str | None]) -> None:
        self.rows = rows
        self.types = dict(types)
        self.attributes_of = attributes_of
        self.requests: dict[int, list[Request]] = {}  # by run
        self.outbox: dict[tuple[int, int], tuple[int, str, bytes]] = {}
        self.peers: dict[int, Peer] = {}
        self.deleted: list[Row] = []
        self.archive: list[Archived] = []
        self.timed: list[Entry] = []  # of schedules and windows (timed.py)
        self.started: list[int] = []
        self.first_started: int | None = None
        self.next_run = 0
        self.epoch = self.strays = self.stray_lsn = 0

    def peer(self, shard: int) -> Peer:
        return self.peers.get(shard) or self.peers.setdefault(shard, Peer(0, 0, 0))

    def send(self, to: int, no: int, id: str, record: bytes) -> None:
        """A message that no run of this shard sent."""
        peer = self.peer(to)
        peer.next_no = max(peer.next_no, no + 1)
        self.outbox[to, no] = (NO_RUN, id, record)

    def type_of(self, name: str) -> int:
        return self.types.setdefault(name, len(self.types) + 1)


def fold(group: Group, entries: list[Entry]) -> None:
    """Apply the records to the group, in their order."""
    rows, of_shard, of_run, stray = group.rows, _OF_SHARD, _OF_RUN, _stray
    for entry in entries:
        record = entry.record
        kind = type(record)
        if (apply_shard := of_shard.get(kind)) is not None:
            apply_shard(group, record, entry)
            continue
        row = rows.get(record.run)
        if kind is r.Start:
            _start(group, record, entry) if row is None or row.gone else stray(group, entry)
        elif row is None or row.gone:
            stray(group, entry)
        else:
            _touch(group, row, record, entry, of_run.get(kind))


def _stray(group: Group, entry: Entry) -> None:
    group.strays += 1
    group.stray_lsn = entry.lsn
    _take_source(group, entry.record)


def _touch(group: Group, row: Row, record: Any, entry: Entry, apply: Callable[[Group, Row, Any, Entry], None] | None) -> None:
    row.lsn = entry.lsn
    if row.status in QUIET:
        row.status = RUNNING
        row.due = None
    elif row.status == PAUSED:
        row.due = None
    if type(record) not in r.NOT_IN_JOURNAL:
        row.lsns.append(entry.lsn)
        row.data.append(entry.data)
    if apply is not None:
        apply(group, row, record, entry)


def _start(group: Group, record: r.Start, entry: Entry) -> None:
    kind, hash = group.type_of(record.type), hash_key(record.id)
    row = group.rows[record.run] = Row(record.run, record.id, kind, RUNNING, None, None, True)
    row.values = {
        "hash": hash, "id": record.id, "started": record.at, "deadline": record.deadline, "request": record.request,
        "parent": msgspec.json.encode(record.parent).decode() if record.parent else None,
        "attributes": _plain(r.decode_object(record.attributes)) if record.attributes is not None else None,
    }
    row.lsn = entry.lsn
    row.lsns.append(entry.lsn)
    row.data.append(entry.data)
    group.started.append(hash)
    group.next_run = max(group.next_run, record.run + 1)
    group.first_started = min(group.first_started or record.run, record.run)
    _arrival(group, row, record, entry)


def _arrival(group: Group, row: Row, record: Any, entry: Entry) -> None:
    _take_source(group, record)
    if record.request:
        group.requests.setdefault(row.run, []).append(Request(entry.lsn, record.request))


def _take_source(group: Group, record: Any) -> None:
    source = getattr(record, "source", None)
    if source is not None:
        peer = group.peer(source.shard)
        peer.taken = max(peer.taken, source.no)


def _source_only(group: Group, row: Row, record: Any, entry: Entry) -> None:
    _take_source(group, record)


def _message(group: Group, row: Row, record: Any, entry: Entry) -> None:
    if record.no:  # else it was sent by an earlier run of the ID
        _put(group, record, row.run, row.id, entry)


def _put(group: Group, record: Any, run: int, id: str, entry: Entry) -> None:
    peer = group.peer(record.to)
    peer.next_no = max(peer.next_no, record.no + 1)
    group.outbox[record.to, record.no] = (run, id, entry.data[LENGTH:])


def _done(group: Group, row: Row, record: r.Done, entry: Entry) -> None:
    if row.status < FINAL:
        row.status, row.due = CODES[record.status], None
        row.values.update(finished=record.at, result=record.payload, reason=record.reason)
    if record.parent is not None:
        _message(group, row, record, entry)
    _arrival(group, row, record, entry)
    if not record.history:
        _requests_gone(group, row, record.at)
        row.forgot = record.at if row.forgot is None else row.forgot
        row.lsns, row.data = [], []


def _requests_gone(group: Group, row: Row, at: int) -> None:
    """Their run, or its journal, went: they are known for a while yet."""
    for request in group.requests.get(row.run, ()):
        if request.gone is None:
            request.gone = at


def _quiet(group: Group, row: Row, record: r.Quiet, entry: Entry) -> None:
    if row.status == RUNNING:
        row.status, row.due = PARKED if record.parked else SUSPENDED, record.due
    elif row.status == PAUSED:
        row.due = record.due


def _quarantined(group: Group, row: Row, record: r.Quarantined, entry: Entry) -> None:
    if row.status < FINAL:
        row.status = QUARANTINED
        row.values["reason"] = record.message


def _unquarantined(group: Group, row: Row, record: r.Unquarantined, entry: Entry) -> None:
    if row.status == QUARANTINED:
        row.status = RUNNING
        row.values["reason"] = ""


def _paused(group: Group, row: Row, record: r.Paused, entry: Entry) -> None:
    if row.status == RUNNING or row.status == PAUSED:
        row.status = PAUSED
        row.values["reason"] = record.reason
    _arrival(group, row, record, entry)


def _resumed(group: Group, row: Row, record: r.Resumed | r.CancelRequested, entry: Entry) -> None:
    if row.status == PAUSED:
        row.status = RUNNING
        row.values["reason"] = ""
    _arrival(group, row, record, entry)


def _deleted(group: Group, row: Row, record: r.Deleted, entry: Entry) -> None:
    _arrival(group, row, record, entry)
    _requests_gone(group, row, record.at)
    row.gone, row.archived = True, record.archive
    row.values["deleted"] = record.at
    group.deleted.append(row)


def _attributes(group: Group, row: Row, record: r.Attributes, entry: Entry) -> None:
    old = row.values["attributes"] if "attributes" in row.values else group.attributes_of(row.run)
    row.values["attributes"] = _plain((r.decode_object(old) if old else {}) | r.decode_object(record.values))


def _plain(attributes: dict[str, Any]) -> str:
    # Written anew, since SQLite finds a name only where it is spelled without escapes.
    return msgspec.json.encode(attributes).decode()


def _grant(group: Group, record: r.Grant, entry: Entry) -> None:
    group.epoch = max(group.epoch, record.epoch)


def _acked(group: Group, record: r.Acked, entry: Entry) -> None:
    peer = group.peer(record.to)
    peer.acked = max(peer.acked, record.through)


def _skipped(group: Group, record: r.Skipped, entry: Entry) -> None:
    _take_source(group, record)


def _refused(group: Group, record: r.Refused, entry: Entry) -> None:
    _put(group, record, NO_RUN, record.id, entry)
    _take_source(group, record)


def _stray_message(group: Group, record: r.StartAsked, entry: Entry) -> None:
    _stray(group, entry)


def _timed(group: Group, record: Any, entry: Entry) -> None:
    group.timed.append(entry)
    _take_source(group, record)


# Kinds that only belong to a run's journal (StepDone, Attempt, Timer, Fired, ..) have no entry: `_touch` is all they do.
_OF_RUN: Final[dict[type, Callable[[Group, Row, Any, Entry], None]]] = {
    r.Signal: _arrival, r.CancelRequested: _resumed, r.ChildDone: _source_only, r.Child: _message, r.Send: _message, r.Done: _done,
    r.Quiet: _quiet, r.Quarantined: _quarantined, r.Unquarantined: _unquarantined, r.Deleted: _deleted, r.Attributes: _attributes,
    r.Update: _arrival, r.Completed: _arrival, r.Paused: _paused, r.Resumed: _resumed,
}
_OF_SHARD: Final[dict[type, Callable[[Group, Any, Entry], None]]] = {
    r.Grant: _grant, r.Skipped: _skipped, r.Acked: _acked, r.Refused: _refused,
    r.ScheduleSet: _timed, r.ScheduleMoved: _timed, r.ScheduleDeleted: _timed, r.Gathered: _timed, r.WindowsClosed: _timed,
    r.StartAsked: _stray_message,
}
