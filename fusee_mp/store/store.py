"""A shard's tables, kept up to date with its log.

Batches are staged in memory (`fold`) and become rows in one transaction together with the position they reach (`commit`). A commit
that fails for want of a lock or of room changes nothing, keeps the stage and may be tried again.
"""
from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from msgspec import structs

from fusee_mp.core.idfilter import FIRST_LAYER_IDS, IdFilter
from fusee_mp.core.records import frame
from fusee_mp.errors import StorageError, StorageFull
from fusee_mp.store.archive import DIRECTORY, Archive, Archived
from fusee_mp.store.fold import CannotFold, Entry, Group, decode_batch, fold
from fusee_mp.store.reads import read
from fusee_mp.store.schema import open_reader, open_writer
from fusee_mp.store.write import prepare, write

__all__ = ["CannotFold", "Place", "Store", "StoreLocked", "open_reader"]

# One transaction's worth: some 25 ms, during which no point read is answered.
STAGED_RECORDS_MAX: Final = 2048
STAGED_BYTES_MAX: Final = 4 << 20
# Filters are built anew when they hold this many times the IDs that are left.
FILTER_EXCESS: Final = 4


class Place(NamedTuple):
    """Where in the log the next batch begins: after it, everything up to `lsn` has been read."""

    segment: int = 0
    offset: int = 0
    lsn: int = 0


class StoreLocked(StorageError):
    """Another program holds the store's write lock. Nothing is lost: try the commit again."""

    code = "storage"


class _Meta(NamedTuple):
    applied_lsn: int
    segment: int
    offset: int
    position_lsn: int
    checkpoint_lsn: int
    epoch: int
    next_run: int
    filter_run: int
    strays: int
    stray_lsn: int


class _Staged(NamedTuple):
    entries: list[Entry]
    place: Place


class Store:
    """The tables of one shard. Not for several threads at once; `open_reader` gives connections for others."""

    def __init__(self, db: sqlite3.Connection, path: str) -> None:
        self.db = db
        self.path = path
        self._staged: list[_Staged] = []
        self._staged_bytes = self._staged_records = 0
        self._stored_ids = 0
        self._archive = None if path == ":memory:" else Archive(Path(path).parent / DIRECTORY)
        self._adopt()

    @classmethod
    def open(cls, path: Path | str) -> Store:
        """Open or make the store at this path, or one in memory (":memory:"). Raises StorageError when the file is not a store."""
        return cls(open_writer(path), str(path))

    def _adopt(self) -> None:
        """Take from the tables what is kept in memory."""
        self._meta = self._read_meta()
        self._types: dict[str, int] = dict(self.db.execute("select name, type from type"))
        self._next_pos: int = (self.db.execute("select max(pos) from chunk").fetchone()[0] or 0) + 1
        self.filter = IdFilter.from_layers([data for (data,) in self.db.execute("select data from filter order by layer")])
        if not self.filter.is_complete:
            self._rebuild_filter()
        self._stored_ids = len(self.filter)
        self._stored_layers = self.filter.layers
        self._know(hash for (hash,) in self.db.execute("select hash from run where run >= ?", (self._meta.filter_run,)))

    def _read_meta(self) -> _Meta:
        return _Meta(*self.db.execute(f"select {', '.join(_Meta._fields)} from meta").fetchone())

    @property
    def applied_lsn(self) -> int:
        """Every record up to this one is in the tables."""
        return self._meta.applied_lsn

    @property
    def checkpoint_lsn(self) -> int:
        """Every record up to this one stays in the tables, whatever happens to the machine."""
        return self._meta.checkpoint_lsn

    @property
    def epoch(self) -> int:
        return self._meta.epoch

    @property
    def place(self) -> Place | None:
        """Where the log is to be read from; None: from its beginning."""
        place = self.staged_place
        return place if any(place) else None

    @property
    def staged_place(self) -> Place:
        return self._staged[-1].place if self._staged else Place(self._meta.segment, self._meta.offset, self._meta.position_lsn)

    @property
    def staged_lsn(self) -> int:
        """The last LSN that the next commit reaches."""
        return next((s.entries[-1].lsn for s in reversed(self._staged) if s.entries), self._meta.applied_lsn)

    @property
    def is_full(self) -> bool:
        """Enough is staged for one transaction: commit before folding more."""
        return self._staged_bytes >= STAGED_BYTES_MAX or self._staged_records >= STAGED_RECORDS_MAX

    def fold(self, first_lsn: int, body: bytes | memoryview, place: Place | None = None) -> None:
        """Stage a batch, whose body holds framed records. One that was folded before is skipped.

        Raises CannotFold, staging nothing, when a record is malformed or records are missing in between.
        """
        entries = decode_batch(first_lsn, bytes(body))
        last, expected = first_lsn + len(entries) - 1, self.staged_lsn + 1
        if last < expected:
            entries = []
        elif first_lsn != expected:
            raise CannotFold(first_lsn, f"the next record to fold has LSN {expected}: the log and the store do not belong together")
        self._staged.append(_Staged(entries, Place(*place) if place is not None else self.staged_place))
        self._staged_bytes += len(body)
        self._staged_records += len(entries)

    def fold_records(self, first_lsn: int, records: Iterable[bytes], place: Place | None = None) -> None:
        """Stage encoded records as one batch."""
        self.fold(first_lsn, b"".join(map(frame, records)), place)

    def commit(self, full: bool = False) -> int:
        """Make rows of everything staged and return the applied LSN; with `full`, that is now a checkpoint.

        Raises StoreLocked or StorageFull with nothing changed and everything still staged; CannotFold when a batch holds
        numbers that no table can: the batches before it are applied, it and those after it are dropped.
        """
        if self._staged:
            self._commit_staged()
        if full:
            self._checkpoint()
        return self._meta.applied_lsn

    def _commit_staged(self) -> None:
        staged = self._staged
        try:
            self._transact(staged)
        except (OverflowError, ValueError, sqlite3.DataError, sqlite3.IntegrityError):
            self._commit_one_by_one(staged)
        self._clear()

    def _commit_one_by_one(self, staged: list[_Staged]) -> None:
        self._clear()
        for batch in staged:
            try:
                self._transact([batch])
            except (OverflowError, ValueError, sqlite3.DataError, sqlite3.IntegrityError) as e:
                last = batch.entries[-1].lsn
                raise CannotFold(batch.entries[0].lsn, f"{type(e).__name__}: {e}, in its batch (LSN to {last})") from e

    def _clear(self) -> None:
        self._staged, self._staged_bytes, self._staged_records = [], 0, 0

    def _transact(self, staged: list[_Staged]) -> None:
        entries = [entry for batch in staged for entry in batch.entries]
        with self._transaction():
            group = prepare(self.db, entries, self._types)
            fold(group, entries)
            next_pos = write(self.db, group, self._next_pos, len(self._types))
            meta = self._advance(group, entries, staged[-1].place)
            self._write_meta(meta)
            self._archive_journals(group.archive)
        self._meta, self._types, self._next_pos = meta, group.types, next_pos
        self._know(group.started)

    def _archive_journals(self, journals: list[Archived]) -> None:
        """Before the commit takes them out of the tables."""
        if not journals or self._archive is None:
            return
        try:
            self._archive.add(journals)
        except OSError as e:
            kind = StorageFull if e.errno == errno.ENOSPC else StorageError
            said = f"the archive of {self.path} cannot be written: {e}. The journals stay in the store until it can"
            raise kind(said, path=self.path) from e

    def _advance(self, group: Group, entries: list[Entry], place: Place) -> _Meta:
        old = self._meta
        return old._replace(
            applied_lsn=entries[-1].lsn if entries else old.applied_lsn,
            segment=place.segment, offset=place.offset, position_lsn=place.lsn,
            epoch=max(old.epoch, group.epoch), next_run=max(old.next_run, group.next_run),
            filter_run=min(old.filter_run, group.first_started or old.filter_run),
            strays=old.strays + group.strays, stray_lsn=group.stray_lsn or old.stray_lsn,
        )

    def _write_meta(self, meta: _Meta) -> None:
        self.db.execute(f"update meta set {', '.join(f'{name} = ?' for name in _Meta._fields)}", meta)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        try:
            self.db.execute("begin immediate")
            yield
            self.db.execute("commit")
        except BaseException as e:
            if self.db.in_transaction:
                self.db.execute("rollback")
            if isinstance(e, sqlite3.DatabaseError) and not isinstance(e, sqlite3.DataError | sqlite3.IntegrityError):
                raise _explained(e, self.path) from e
            raise

    # One commit with synchronous FULL flushes the whole WAL, so the commits before it are durable with it.
    def _checkpoint(self) -> None:
        meta = self._meta._replace(checkpoint_lsn=self._meta.applied_lsn)
        self.db.execute("pragma synchronous = full")
        try:
            with self._transaction():
                if self._filter_is_due():
                    self._store_filter()
                    self._stored_ids, self._stored_layers = len(self.filter), self.filter.layers
                    meta = meta._replace(filter_run=meta.next_run)
                self._write_meta(meta)
        finally:
            self.db.execute("pragma synchronous = normal")
        self._meta = meta

    def _know(self, hashes: Iterable[int]) -> None:
        for hash in hashes:
            if not self.filter.maybe(hash):
                self.filter.add(hash)

    # The newest layer is written again only when it has grown by a part, so that each layer is written a bounded number of times.
    # What came since is added from the rows at the next open.
    def _filter_is_due(self) -> bool:
        return (len(self.filter) - self._stored_ids) * 8 >= self.filter.newest_capacity

    def _store_filter(self) -> None:
        runs, first = self.count_runs(), max(0, self._stored_layers - 1)
        if len(self.filter) > FILTER_EXCESS * runs + FIRST_LAYER_IDS:
            self._rebuild_filter(runs)
            first = 0
        self.db.execute("delete from filter where layer >= ?", (first,))
        layers = [(index, self.filter.layer(index)) for index in range(first, self.filter.layers)]
        self.db.executemany("insert into filter values(?, ?)", layers)

    def _rebuild_filter(self, runs: int | None = None) -> None:
        rows = self.db.execute("select hash from run")
        self.filter = IdFilter.of((hash for (hash,) in rows), self.count_runs() if runs is None else runs)

    def count_runs(self) -> int:
        return int(self.db.execute("select coalesce(sum(n), 0) from tally").fetchone()[0])

    def read(self, method: str, args: Sequence[Any]) -> Any:
        """Answer a question (store/reads.py) from what is committed; the filter of known IDs as it is now."""
        answer = read(self.db, method, args)
        if method == "state":
            return structs.replace(answer, filter_layers=self.filter.layer_bytes)
        if method == "layer":
            return self.filter.layer(args[0]) if 0 <= args[0] < self.filter.layers else None
        return answer

    def wal_bytes(self) -> int:
        """The size of the write-ahead log; it grows while another program keeps a transaction open."""
        try:
            return Path(self.path + "-wal").stat().st_size
        except OSError:
            return 0

    def shrink(self) -> bool:
        """Move the WAL into the database, cut it off and give memory back. False when a reader stands in the way."""
        try:
            busy = self.db.execute("pragma wal_checkpoint(truncate)").fetchone()[0]
        except sqlite3.Error:
            busy = 1
        self.db.execute("pragma shrink_memory")
        return not busy

    def close(self) -> None:
        """Close the files. What is staged and not committed is dropped: the log still has it."""
        self.db.close()
        if self._archive is not None:
            self._archive.close()


def _explained(error: sqlite3.DatabaseError, path: str) -> StorageError:
    code = error.sqlite_errorcode & 0xFF
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreLocked(f'store "{path}" is locked by another program, which has a write transaction open: end that', path=path)
    if code == sqlite3.SQLITE_FULL:
        return StorageFull(f'store "{path}" cannot grow: its disk is full. Folding goes on once there is room', path=path)
    return StorageError(f'store "{path}" cannot be written: {error}', path=path)
