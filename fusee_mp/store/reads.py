"""The questions a store answers: functions of a connection and their arguments, each of bounded cost unless it says otherwise.

A page may end before its limit, when it has grown to PAGE_BYTES; only an empty page is the last.
"""
from __future__ import annotations

import heapq
import sqlite3
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_type_hints

import msgspec

from fusee_mp.core.idfilter import key as hash_key
from fusee_mp.core.records import Parent
from fusee_mp.errors import Rejected
from fusee_mp.store import select, timed_reads
from fusee_mp.store.pages import limited, page
from fusee_mp.store.results import Description, Due, Found, Journal, Request, Sent, State, Status, Tally
from fusee_mp.store.schema import FINAL, NAMES, PAUSED, QUARANTINED, RUNNING
from fusee_mp.store.write import CHAIN, unpack_lsns

DB = sqlite3.Connection

_FOUND: Final = (
    "select run, id, name, status, started, finished, due, deadline, result, reason, attributes, request, parent, lsn"
    " from run join type using(type)"
)
_decode_parent: Final = msgspec.json.Decoder(Parent).decode


def state(db: DB) -> State:
    """What a new holder of the shard needs before anything else."""
    applied, epoch, next_run, strays, stray_lsn = db.execute(
        "select applied_lsn, epoch, next_run, strays, stray_lsn from meta").fetchone()
    peers = db.execute("select shard, taken, next_no from peer order by shard").fetchall()
    return State(
        applied, epoch, next_run, [(shard, taken) for shard, taken, _ in peers if taken],
        [(shard, next_no) for shard, _, next_no in peers if next_no > 1],
        [size for (size,) in db.execute("select length(data) from filter order by layer")], strays, stray_lsn,
    )


def layer(db: DB, index: int) -> bytes | None:
    """One layer of the filter of known IDs, as it was last stored; None: there is none, so every ID may be known."""
    found = db.execute("select data from filter where layer = ?", (index,)).fetchone()
    return found[0] if found else None


def find(db: DB, id: str) -> Found | None:
    """The newest run of an ID."""
    row = db.execute(f"{_FOUND} where hash = ? and id = ? order by run desc limit 1", (hash_key(id), id)).fetchone()
    return _found(row) if row else None


def by_run(db: DB, run: int) -> Found | None:
    """The run with this number."""
    row = db.execute(f"{_FOUND} where run = ?", (run,)).fetchone()
    return _found(row) if row else None


def _found(row: tuple[Any, ...]) -> Found:
    run, id, kind, status, started, finished, due, deadline, result, reason, attributes, request, parent, lsn = row
    return Found(
        run, id, kind, NAMES[status], started, finished, due, deadline, result, reason, (attributes or "{}").encode(), request,
        _decode_parent(parent) if parent else None, lsn,
    )


def fetch(db: DB, run: int) -> Journal | None:
    """A run's whole journal. As large as the journal is."""
    row = db.execute("select id, lsn from run where run = ?", (run,)).fetchone()
    return Journal(run, row[0], row[1], _journal(db, run)) if row else None


def _journal(db: DB, run: int) -> bytes:
    return b"".join(chunk[3] for chunk in db.execute(CHAIN, (run,)))


def open_runs(db: DB, after_run: int = 0, limit: int = 1000) -> list[Journal]:
    """The open runs that are not quiet, with their journals, by run number: what a new holder loads. Paused ones may have bodies to end."""
    pairs = db.execute("select type, status from tally where status in (?, ?, ?) and n > 0", (RUNNING, QUARANTINED, PAUSED)).fetchall()
    walk = "select run, id, lsn from run where type = ? and status = ? and run > ? order by run limit ?"
    rows = heapq.merge(*(db.execute(walk, (*pair, after_run, limited(limit))) for pair in pairs))
    return page((Journal(run, id, lsn, _journal(db, run)) for run, id, lsn in islice(rows, limit)), lambda journal: len(journal.data))


def due(db: DB, until_ms: int, limit: int = 1000, after: tuple[int, int] | None = None) -> list[Due]:
    """Quiet runs whose first timer is due by `until_ms`, earliest first. `after`: (due, run) of the last one of the page before."""
    rows = db.execute(
        "select due, run, id from run where due <= ? and (due, run) > (?, ?) order by due, run limit ?",
        (until_ms, *(after or (-(1 << 62), 0)), limited(limit)))
    return [Due(*row) for row in rows]


def ended(db: DB, id: str) -> list[int]:
    """The numbers of the runs of an ID that have ended."""
    return [run for (run,) in db.execute("select run from run where hash = ? and id = ? and status >= ?", (hash_key(id), id, FINAL))]


def expired(db: DB, before_ms: int, limit: int = 1000, after: tuple[int, int] | None = None) -> list[Due]:
    """Runs that finished before an instant, earliest first, with that time as `due`: what retention looks at."""
    rows = db.execute(
        "select finished, run, id, name from run join type using(type) where finished < ? and (finished, run) > (?, ?)"
        " order by finished, run limit ?",
        (before_ms, *(after or (-(1 << 62), 0)), limited(limit)))
    return [Due(*row) for row in rows]


def request(db: DB, key: str) -> Request | None:
    """What the request with this ID did first, while its run is kept and for a while after."""
    row = db.execute(
        "select request.run, coalesce(id, ''), request.lsn from request left join run using(run) where request.hash = ? and key = ?"
        " order by request.lsn limit 1",
        (hash_key(key), key)).fetchone()
    return Request(*row) if row else None


def outbox(db: DB, to: int | None = None, after_no: int = 0, limit: int = 1000) -> list[Sent]:
    """Messages not acknowledged by shard `to`, from the number after `after_no`; None: by any shard, from the first."""
    where, parameters = ("shard = ? and no > ?", (to, after_no)) if to is not None else ("true", ())
    statement = f"select shard, no, run, id, record from outbox where {where} order by shard, no limit ?"
    rows = db.execute(statement, (*parameters, limited(limit)))
    return page((Sent(*row) for row in rows), lambda sent: len(sent.record))


def status(db: DB, id: str) -> Status | None:
    """The newest run of an ID, as a list shows it."""
    f = find(db, id)
    if f is None:
        return None
    return Status(f.run, f.id, f.type, f.status, f.started, f.finished, f.due, f.attributes, f.reason, select.cursor(f.run))


def describe(db: DB, id: str) -> Description | None:
    """The newest run of an ID with its journal. As large as the journal is."""
    return _described(db, find(db, id))


def describe_run(db: DB, run: int) -> Description | None:
    """The run with this number, with its journal. As large as the journal is."""
    return _described(db, by_run(db, run))


def _described(db: DB, found: Found | None) -> Description | None:
    if found is None:
        return None
    chunks = db.execute(CHAIN, (found.run,)).fetchall()
    lsns = [lsn for _, first, offsets, _ in chunks for lsn in unpack_lsns(first, offsets)]
    return Description(found, lsns, b"".join(chunk[3] for chunk in chunks))


def list_(db: DB, where: dict[str, Any] | None = None, limit: int = 100, after: str | None = None) -> list[Status]:
    """Runs that match, newest first. With terms on type and status alone it reads what it returns; other terms may read every run."""
    return select.lines(db, where, limited(limit), after)


def count(db: DB, where: dict[str, Any] | None = None) -> int:
    """How many runs match. With terms on type and status alone it reads no run; other terms may read every run."""
    return select.count(db, where)


def tally(db: DB) -> list[Tally]:
    """How many runs there are of each type and status."""
    rows = db.execute("select name, status, n from tally join type using(type) where n > 0 order by name, status")
    return [Tally(name, NAMES[status], n) for name, status, n in rows]


Lane: TypeAlias = Literal["at once", "one", "many"]


class Read(NamedTuple):
    """A question by name. One that may take long is asked on another connection: of one run, or of many (`lane`)."""

    call: Callable[..., Any]
    arguments: tuple[Any, ...]
    required: int
    result: Any
    lane: Lane


def _read(call: Callable[..., Any], lane: Lane) -> Read:
    hints = get_type_hints(call)
    result = hints.pop("return")
    del hints["db"]
    return Read(call, tuple(hints.values()), len(hints) - len(call.__defaults__ or ()), result, lane)


_QUICK: Final[tuple[Callable[..., Any], ...]] = (
    state, layer, find, by_run, fetch, open_runs, due, ended, expired, request, outbox, status, *timed_reads.ALL,
)
_OF_ONE: Final[tuple[Callable[..., Any], ...]] = (describe, describe_run, tally)
_OF_MANY: Final[tuple[Callable[..., Any], ...]] = (list_, count)
_LANES: Final[dict[Lane, tuple[Callable[..., Any], ...]]] = {"at once": _QUICK, "one": _OF_ONE, "many": _OF_MANY}
READS: Final[dict[str, Read]] = {call.__name__.rstrip("_"): _read(call, lane) for lane, calls in _LANES.items() for call in calls}


def question(method: str) -> Read:
    """The read of this name. Raises Rejected when there is none."""
    if method not in READS:
        raise Rejected(f'a store has no read "{method}": there are {", ".join(READS)}')
    return READS[method]


def read(db: DB, method: str, args: Sequence[Any]) -> Any:
    """The answer to a question by its name. Raises Rejected when there is none of that name or the arguments do not fit."""
    asked = question(method)
    if not asked.required <= len(args) <= len(asked.arguments):
        raise Rejected(f'read "{method}" takes {asked.required} to {len(asked.arguments)} arguments, not {len(args)}')
    try:
        checked = [msgspec.convert(arg, kind) for arg, kind in zip(args, asked.arguments, strict=False)]
    except msgspec.ValidationError as e:
        raise Rejected(f'read "{method}" was given {args!r:.200}: {e}') from None
    try:
        return asked.call(db, *checked)
    except OverflowError as e:
        raise Rejected(f'read "{method}" was given {args!r:.200}: {e}') from None
