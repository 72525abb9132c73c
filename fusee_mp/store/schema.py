"""The tables of a store, and how connections to it are made.

Shaped for a million rows with random IDs, where a plain schema spends its time on random pages:

- a run's journal is a chain of chunks, appended by rowid and linked backwards, so that folding never visits an old chunk;
- an ID is found by a 62-bit hash, a third of the size of an index on text; the text decides;
- type and status share one index, and `tally` says how many rows each pair has, so that a list walks only pairs that exist, in
  order, and a count by type and status reads no row of `run`;
- runs with a due timer have a small index of their own, and finished ones one by time, which only grows at its end;
- each search attribute of a run has an entry in `attribute`, in the order of name, value and run. Triggers keep it, so nothing that
  writes a run can forget it, and a run without attributes pays for a comparison with null.
"""
from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from fusee_mp.core.where import OPEN, STATUSES
from fusee_mp.errors import StorageError

# 2: the index on attributes.
FORMAT: Final = 2
# "fump" in ASCII: file(1) and we can tell a store from another SQLite file.
APPLICATION_ID: Final = 0x66756D70
# The page cache of the connection that folds; given back when idle.
WRITER_CACHE_KIB: Final = 64 * 1024
READER_CACHE_KIB: Final = 4 * 1024
# Pages of 4 KiB after which SQLite moves the WAL into the database: 8 MiB, which lengthens a commit by some 30 ms.
WAL_PAGES: Final = 2048
WAL_BYTES_KEPT: Final = 64 << 20

# Statuses as they are stored. Open ones are below FINAL, loaded ones (a worker has them in memory) up to QUARANTINED.
CODES: Final[dict[str, int]] = {name: code for code, name in enumerate(OPEN)} | {
    name: code for code, name in enumerate(STATUSES[len(OPEN):], start=10)
}
NAMES: Final[dict[int, str]] = {code: name for name, code in CODES.items()}
RUNNING, QUARANTINED, SUSPENDED, PARKED, PAUSED = (CODES[name] for name in ("running", "quarantined", "suspended", "parked", "paused"))
FINAL: Final = 10
QUIET: Final = (SUSPENDED, PARKED)
assert (RUNNING, QUARANTINED) == (0, 1) and max(CODES[name] for name in OPEN) < FINAL

# Text is indexed by its beginning, names up to this length. What is longer is found too, only not by the index alone.
INDEXED_CHARS: Final = 64
# Values that are not text or numbers, as they stand in the index: behind all text. Anything that is not equal to any operand is OTHER.
FALSE, TRUE, NULL, OTHER = b"\0", b"\1", b"\2", b"\3"

# The entries of a JSON object of attributes, and the statements that make and drop them; %s is where the object and its run come from.
_ENTRIES: Final = f"""
    select key, case type when 'text' then substr(value, 1, {INDEXED_CHARS}) when 'integer' then value when 'real' then value
    when 'false' then x'{FALSE.hex()}' when 'true' then x'{TRUE.hex()}' when 'null' then x'{NULL.hex()}' else x'{OTHER.hex()}' end, %s
    where length(key) <= {INDEXED_CHARS}"""
_ENTER: Final = "insert or ignore into attribute" + _ENTRIES
_DROP: Final = f"delete from attribute where (name, value, run) in ({_ENTRIES % 'old.run from json_each(old.attributes)'})"
_NEW: Final = _ENTER % "new.run from json_each(new.attributes)"
INDEX: Final = (
    "create table attribute(name text not null, value not null, run int not null, primary key(name, value, run)) without rowid",
    f"create trigger attributes_new after insert on run when new.attributes is not null begin {_NEW}; end",
    f"create trigger attributes_set after update of attributes on run begin {_DROP}; {_NEW}; end",
    f"create trigger attributes_gone after delete on run when old.attributes is not null begin {_DROP}; end",
)
# How a store of an earlier format becomes one of the next, by the format it has.
UPGRADES: Final = {1: (*INDEX, _ENTER % "run from (select run, attributes from run) cross join json_each(attributes)")}

# run: `lsn` is that of the run's last record, `chunk` the last link of its journal, `parent` [shard, id, run, op], times Unix ms.
# chunk: `lsn` is that of its first record, `offsets` what to add for the others (u32 each), `data` the records with their lengths.
TABLES: Final = f"""
create table meta(
    one integer primary key check (one = 1), applied_lsn int not null, segment int not null, offset int not null,
    position_lsn int not null, checkpoint_lsn int not null, epoch int not null, next_run int not null,
    filter_run int not null, strays int not null, stray_lsn int not null);
insert into meta values(1, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0);
create table type(type integer primary key, name text not null unique);
create table run(
    run integer primary key, hash int not null, type int not null, status int not null, started int not null, due int,
    finished int, deadline int, chunk int, lsn int not null, id text not null, request text not null, parent text,
    attributes text, reason text not null, result blob);
create index run_hash on run(hash);
create index run_kind on run(type, status);
create index run_due on run(due) where due is not null;
create index run_finished on run(finished) where finished is not null;
create table chunk(pos integer primary key, run int not null, prev int, lsn int not null, offsets blob, data blob not null);
create table request(lsn integer primary key, hash int not null, run int not null, key text not null, gone int);
create index request_hash on request(hash);
create index request_gone on request(gone) where gone is not null;
create table outbox(
    shard int not null, no int not null, run int not null, id text not null, record blob not null,
    primary key(shard, no)) without rowid;
create table peer(shard integer primary key, taken int not null, next_no int not null, acked int not null);
create table schedule(
    id text primary key, type text not null, input blob not null, zone text not null, state blob not null) without rowid;
create table window(
    id text primary key, kind text not null, workflow text not null, key text not null, opened int not null, closes int not null,
    taken int not null, closed int) without rowid;
create index window_closed on window(closed, id) where closed is not null;
create table event(lsn integer primary key, window text not null, id text not null, input blob);
create index event_window on event(window);
create table windows(one integer primary key check (one = 1), now int not null, number int not null, answers int not null);
insert into windows values(1, 0, 0, 0);
create table answer(lsn integer primary key, hash int not null, key text not null, at int not null, value blob not null);
create index answer_hash on answer(hash);
create index answer_at on answer(at);
create table tally(type int not null, status int not null, n int not null, primary key(type, status)) without rowid;
create table filter(layer integer primary key, data blob not null);
create table status(status integer primary key, name text not null);
insert into status values {", ".join(f"({code}, '{name}')" for name, code in CODES.items())};
create view runs as select
    run, id, type.name as workflow, status.name as status, datetime(started / 1000, 'unixepoch') as started,
    datetime(finished / 1000, 'unixepoch') as finished, datetime(due / 1000, 'unixepoch') as due, attributes, reason,
    lsn, request, parent, deadline, result
    from run join type using(type) join status using(status);
pragma application_id = {APPLICATION_ID};
pragma user_version = {FORMAT};
"""


def open_writer(path: Path | str) -> sqlite3.Connection:
    """The connection that folds, on a store that is made if it is not there. Raises StorageError when the file is not a store."""
    is_new = str(path) == ":memory:" or not os.path.exists(path)
    try:
        connection = _connect(str(path), uri=False)
        # First of all: a file of another program must not be changed, not even its journal mode.
        _make_or_check(connection, path)
        connection.execute("pragma journal_mode = wal")
        connection.execute("pragma synchronous = normal")
        connection.execute(f"pragma cache_size = -{WRITER_CACHE_KIB}")
        connection.execute(f"pragma wal_autocheckpoint = {WAL_PAGES}")
        connection.execute(f"pragma journal_size_limit = {WAL_BYTES_KEPT}")
    except sqlite3.Error as e:
        raise StorageError(f'store "{path}" cannot be opened: {e}. Is it a file of another program, or damaged?', path=str(path)) from e
    if is_new and str(path) != ":memory:":
        _flush_directory(os.path.dirname(os.path.abspath(path)))
    return connection


def open_reader(path: Path | str) -> sqlite3.Connection:
    """A read-only connection, for questions that may take long. Raises StorageError when there is no store or not one of ours."""
    connection: sqlite3.Connection | None = None
    try:
        connection = _connect(f"file:{_quoted(path)}?mode=ro", uri=True)
        connection.execute("pragma query_only = on")
        connection.execute(f"pragma cache_size = -{READER_CACHE_KIB}")
        _check(connection, path)
    except sqlite3.Error as e:
        if connection is not None:
            connection.close()
        raise StorageError(f'store "{path}" cannot be read: {e}', path=str(path)) from e
    return connection


def _connect(path: str, uri: bool) -> sqlite3.Connection:
    # Waiting for a lock is the caller's business: it has other things to do meanwhile.
    return sqlite3.connect(path, timeout=0.02, isolation_level=None, check_same_thread=False, uri=uri, cached_statements=256)


def _quoted(path: Path | str) -> str:
    return "".join(f"%{ord(c):02x}" if c in "?#%" else c for c in os.path.abspath(path))


def _make_or_check(connection: sqlite3.Connection, path: Path | str) -> None:
    # Two might make it at once, and a kill may come in between: all or nothing, and looked at again under the lock.
    if connection.execute("select count(*) from sqlite_master").fetchone()[0] == 0:
        with _alone(connection):
            if connection.execute("select count(*) from sqlite_master").fetchone()[0] == 0:
                for statement in (*filter(str.strip, TABLES.split(";")), *INDEX):
                    connection.execute(statement)
    _upgrade(connection)
    _check(connection, path)


def _upgrade(connection: sqlite3.Connection) -> None:
    """All of it or nothing. A store of another program, or of a later version, is left alone."""
    application, version = _stamps(connection)
    if application != APPLICATION_ID or version not in UPGRADES:
        return
    with _alone(connection):
        for statement in (statement for earlier in range(version, FORMAT) for statement in UPGRADES[earlier]):
            connection.execute(statement)
        connection.execute(f"pragma user_version = {FORMAT}")


@contextmanager
def _alone(connection: sqlite3.Connection) -> Iterator[None]:
    """A transaction that may wait for that of another program. What fails in it leaves nothing."""
    connection.execute("pragma busy_timeout = 10000")
    connection.execute("begin immediate")
    with connection:  # commits, or rolls back
        yield
    connection.execute("pragma busy_timeout = 20")


def _stamps(connection: sqlite3.Connection) -> tuple[int, int]:
    application, version = (connection.execute(f"pragma {name}").fetchone()[0] for name in ("application_id", "user_version"))
    return application, version


def _check(connection: sqlite3.Connection, path: Path | str) -> None:
    application, version = _stamps(connection)
    if application != APPLICATION_ID:
        raise StorageError(f'file "{path}" is an SQLite database of another program ({application:#x}): name another', path=str(path))
    if version != FORMAT:
        way = "open its directory once with this version" if version < FORMAT else "use the version that wrote it"
        reason = f"has format {version}, this version reads {FORMAT}: {way}"
        raise StorageError(f'store "{path}" {reason}', path=str(path))


def _flush_directory(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
