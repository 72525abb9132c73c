"""From groups to rows: reads what a group needs to know, and writes what it became, in few statements."""
from __future__ import annotations

import sqlite3
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, Final

import msgspec

from fusee_mp.bounds import REQUESTS_KEEP_MS
from fusee_mp.core import records as r
from fusee_mp.core.idfilter import key as hash_key
from fusee_mp.store import timed
from fusee_mp.store.archive import Archived
from fusee_mp.store.fold import LENGTH, Entry, Group, Row

_COLUMNS: Final = (
    "run", "hash", "type", "status", "started", "due", "finished", "deadline", "chunk", "lsn", "id", "request", "parent", "attributes",
    "reason", "result",
)
_INSERT: Final = f"insert into run({', '.join(_COLUMNS)}) values({', '.join('?' * len(_COLUMNS))})"
_LOAD: Final = "select r.run, r.id, r.type, r.status, r.due, r.chunk from json_each(?) cross join run as r on r.run = value"
CHAIN: Final = """with recursive link(pos) as (
    select chunk from run where run = ? union all select prev from chunk join link using(pos) where prev is not null)
    select pos, lsn, offsets, data from link join chunk using(pos) order by pos"""


def prepare(db: sqlite3.Connection, entries: list[Entry], types: dict[str, int]) -> Group:
    """A group that knows the runs, already stored, that these records name."""
    runs = {entry.record.run for entry in entries if hasattr(entry.record, "run")}
    return Group({row.run: row for row in _load(db, runs)}, types, lambda run: _attributes_of(db, run))


def _load(db: sqlite3.Connection, runs: Iterable[int]) -> Iterator[Row]:
    for run, id, kind, status, due, chunk in db.execute(_LOAD, (msgspec.json.encode(list(runs)).decode(),)):
        yield Row(run, id, kind, status, due, chunk, False)


def _attributes_of(db: sqlite3.Connection, run: int) -> str | None:
    found = db.execute("select attributes from run where run = ?", (run,)).fetchone()
    return found[0] if found else None


def write(db: sqlite3.Connection, group: Group, next_pos: int, old_types: int) -> int:
    """Write the group within the open transaction. Returns the position after its last chunk."""
    for row in group.rows.values():
        if row.forgot is not None and not row.is_new:
            _forget(db, row.run, row.forgot)
            row.chunk = None
    for row in group.deleted:
        if row.archived:
            group.archive.append(_archived(db, row))
        if not row.is_new:
            _forget(db, row.run, row.values["deleted"])
            db.execute("delete from run where run = ?", (row.run,))
    live = [row for row in group.rows.values() if not row.gone]
    next_pos = _write_chunks(db, live, next_pos)
    _write_types(db, group, old_types)
    _write_runs(db, live)
    _write_tally(db, live, group.deleted)
    if group.timed:
        timed.write(db, group)
    _write_messages(db, group)
    _write_requests(db, group)
    return next_pos


def _write_requests(db: sqlite3.Connection, group: Group) -> None:
    rows = [(each.hash, each.lsn, run, each.key, each.gone) for run, requests in group.requests.items() for each in requests]
    db.executemany("insert or ignore into request(hash, lsn, run, key, gone) values(?, ?, ?, ?, ?)", rows)
    if group.deleted or any(row.forgot is not None for row in group.rows.values()):
        # Counted from the last that went, so it does not matter how the log is cut into groups.
        db.execute("delete from request where gone < (select max(gone) from request where gone is not null) - ?", (REQUESTS_KEEP_MS,))


def _write_chunks(db: sqlite3.Connection, rows: list[Row], pos: int) -> int:
    chunks: list[tuple[int, int, int | None, int, bytes | None, bytes]] = []
    for row in rows:
        if row.data:
            chunks.append((pos, row.run, row.chunk, row.lsns[0], _offsets(row.lsns), b"".join(row.data)))
            row.chunk = pos
            pos += 1
    db.executemany("insert into chunk(pos, run, prev, lsn, offsets, data) values(?, ?, ?, ?, ?, ?)", chunks)
    return pos


def _offsets(lsns: list[int]) -> bytes | None:
    if len(lsns) == 1:
        return None
    first = lsns[0]
    return array("I", [lsn - first for lsn in lsns[1:]]).tobytes()


def _write_types(db: sqlite3.Connection, group: Group, old_types: int) -> None:
    if len(group.types) > old_types:
        new = [(number, name) for name, number in group.types.items() if number > old_types]
        db.executemany("insert into type(type, name) values(?, ?)", new)


def _write_runs(db: sqlite3.Connection, rows: list[Row]) -> None:
    new: list[list[Any]] = []
    changed: defaultdict[tuple[str, ...], list[tuple[Any, ...]]] = defaultdict(list)
    for row in rows:
        if row.is_new:
            values = {"reason": ""} | row.values | _always(row) | {"type": row.type, "status": row.status, "due": row.due}
            new.append([row.run, *map(values.get, _COLUMNS[1:])])
        elif row.lsn:
            values = row.values | _always(row) | _moved(row)
            changed[tuple(values)].append((*values.values(), row.run))
    db.executemany(_INSERT, new)
    for columns, parameters in changed.items():
        db.executemany(f"update run set {', '.join(f'{name} = ?' for name in columns)} where run = ?", parameters)


def _always(row: Row) -> dict[str, Any]:
    return {"chunk": row.chunk, "lsn": row.lsn}


def _moved(row: Row) -> dict[str, Any]:
    # Only what differs: naming an indexed column costs a visit to its index even when the value stays.
    moved: dict[str, Any] = {}
    if row.status != row.was_status:
        moved["status"] = row.status
    if row.due != row.was_due:
        moved["due"] = row.due
    return moved


def _write_tally(db: sqlite3.Connection, live: list[Row], deleted: list[Row]) -> None:
    tally: defaultdict[tuple[int, int], int] = defaultdict(int)
    for row in (*live, *deleted):
        if not row.is_new:
            tally[row.type, row.was_status] -= 1
    for row in live:
        tally[row.type, row.status] += 1
    changes = [(kind, status, n) for (kind, status), n in tally.items() if n]
    db.executemany("insert into tally values(?, ?, ?) on conflict do update set n = n + excluded.n", changes)


def _write_messages(db: sqlite3.Connection, group: Group) -> None:
    peers = [(shard, peer.taken, max(1, peer.next_no), peer.acked) for shard, peer in group.peers.items()]
    db.executemany(
        "insert into peer values(?, ?, ?, ?) on conflict do update set taken = max(taken, excluded.taken),"
        " next_no = max(next_no, excluded.next_no), acked = max(acked, excluded.acked)",
        peers,
    )
    waiting = [(to, no, *entry) for (to, no), entry in group.outbox.items() if no > group.peers[to].acked]
    db.executemany("insert or ignore into outbox(shard, no, run, id, record) values(?, ?, ?, ?, ?)", waiting)
    acked = [(shard, peer.acked) for shard, peer in group.peers.items() if peer.acked]
    db.executemany("delete from outbox where shard = ? and no <= ?", acked)


def _forget(db: sqlite3.Connection, run: int, at: int) -> None:
    """The journal of a run goes, at that time; its requests are known for a while yet."""
    chunks = db.execute(CHAIN, (run,)).fetchall()
    requests = [(at, hash_key(key), run) for _, _, _, data in chunks for key in _requests_in(data)]
    db.executemany("update request set gone = ? where hash = ? and run = ? and gone is null", requests)
    db.executemany("delete from chunk where pos = ?", [(chunk[0],) for chunk in chunks])


def _archived(db: sqlite3.Connection, row: Row) -> Archived:
    """The whole journal of a run that goes."""
    chunks = [] if row.is_new else db.execute(CHAIN, (row.run,)).fetchall()
    lsns = [lsn for _, first, offsets, _ in chunks for lsn in unpack_lsns(first, offsets)]
    return Archived(row.run, row.id, [*lsns, *row.lsns], b"".join([*(chunk[3] for chunk in chunks), *row.data]))


def _requests_in(data: bytes) -> Iterator[str]:
    at = 0
    while at < len(data):
        stop = at + LENGTH + int.from_bytes(data[at : at + LENGTH], "little")
        key = getattr(r.decode(data[at + LENGTH : stop]), "request", "")
        if key:
            yield key
        at = stop


def unpack_lsns(first: int, offsets: bytes | None) -> Iterator[int]:
    """The LSNs of a chunk's records."""
    return chain((first,), (first + offset for offset in array("I", offsets or b"")))
