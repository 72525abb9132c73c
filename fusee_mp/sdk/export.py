# Reading journals out of a data directory, whoever has it open.
#
# The store lags behind the log: by up to 200 ms while an engine runs, by more after a crash. So what the log holds beyond the store is
# read too, and kept in memory beside it; nothing is written, no lock is taken.
# Rule 1: first the store says how far it is, then the log is read from there, then the store is asked for runs: what it has
#         folded meanwhile is in both, and counts once.
# Rule 2: the files of a running engine move: a segment may be recycled or begun while they are read. What looks like damage is
#         looked at again, and believed when it stays.
# The limit of this: the last batch of a running engine may not be flushed yet, so an export can hold records of its last moment that a
# power cut then takes back.
from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any, Final

from fusee_mp.core import records as r
from fusee_mp.core.placement import check_id, shard_of
from fusee_mp.errors import DamagedLog, NotFound, Rejected, StorageError
from fusee_mp.log.directory import log_directory, read_meta, shard_directory
from fusee_mp.log.options import Position
from fusee_mp.log.reader import read_batches
from fusee_mp.log.recovery import recover
from fusee_mp.payload.apart import PAYLOADS, Apart
from fusee_mp.payload.sealing import Payloads
from fusee_mp.sdk.journals import Journal
from fusee_mp.store import open_reader, reads
from fusee_mp.store.archive import DIRECTORY, read_archive

STORE: Final = "store.db"
LOOKS: Final = 5
PAUSE_S: Final = 0.1
PAGE: Final = 256


def export(dir: str | os.PathLike[str], id: str | None = None, limit: int | None = 100) -> list[Journal]:
    """The journals in a data directory, closed or while an engine runs on it: with `id` that of its newest run, else those of the
    newest runs of each shard, shards ascending, at most `limit` in all (None: every one).

    What a crashed engine left in its log and not yet in its store is there too, and, after all others, what was archived of runs
    that are gone (archive_history). Raises NotFound when no run has the ID, StorageError
    when the directory is not one of ours, DamagedLog.
    """
    if limit is not None and limit < 1:
        raise Rejected(f"export(limit=) is at least 1, or None for all, not {limit}")
    path, shards = Path(dir), shards_of(Path(dir))
    if id is None:
        return list(islice((journal for shard in range(shards) for journal in newest(path, shard)), limit))
    with closing(_Shard.open(path, shard_of(check_id(id), shards))) as shard:
        found = shard.newest_of(id)
    if found is None:
        raise NotFound(f'no run in {path} has the workflow ID "{id}": it was never started there, or its retention has ended', id=id)
    return [found]


def newest(path: Path, shard: int, workflows: Collection[str] | None = None) -> Iterator[Journal]:
    """The journals of one shard, newest run first, read as they are asked for; of these workflows only, if given."""
    with closing(_Shard.open(path, shard)) as opened:
        yield from opened.newest(workflows)


def shards_of(path: Path) -> int:
    """How many shards a data directory has. Raises StorageError where it is none."""
    meta = read_meta(path)
    if meta is None:
        said = f"{path} is no data directory: it has no fusee.meta. Name the one that the engine or server was given"
        raise StorageError(said, path=str(path))
    return meta.shards


class _Shard:
    """One shard's runs as store and log together have them."""

    def __init__(self, number: int, db: Any, log: Path) -> None:
        self._number = number
        self._payloads = Payloads(apart=Apart(log.parent / PAYLOADS, None))
        self._archive = log.parent / DIRECTORY
        self._db = db
        self._later: dict[int, list[tuple[int, r.RunRecord]]] = {}  # records by run that the store may not have
        self._gone: set[int] = set()
        if db is None or log.is_dir():
            self._read_log(log, 0 if db is None else reads.state(db).applied_lsn)

    @classmethod
    def open(cls, path: Path, number: int) -> _Shard:
        """Raises DamagedLog when log and store do not belong together, also at a later look."""
        store = shard_directory(path, number) / STORE
        for left in reversed(range(LOOKS)):
            db = open_reader(store) if store.exists() else None
            try:
                return cls(number, db, log_directory(path, number))
            except BaseException as e:
                if db is not None:
                    db.close()
                if not left or not isinstance(e, DamagedLog | FileNotFoundError):
                    raise
            time.sleep(PAUSE_S)
        raise AssertionError("the last look returns or raises")

    def close(self) -> None:
        if self._db is not None:
            self._db.close()

    def _read_log(self, log: Path, after_lsn: int) -> None:
        if not log.is_dir():
            return  # made a moment ago: there is nothing yet
        found = recover(log, proven_lsn=after_lsn)
        if found.gaps:
            gap = found.gaps[0]
            raise DamagedLog(
                f"log file {log / gap.file} lacks the batch with LSN {gap.first_lsn} at offset {gap.offset}: {gap.reason}. Restore the "
                "directory from a backup", file=str(log / gap.file), offset=gap.offset, lsn=gap.first_lsn,
            )
        for batch in read_batches(log, Position(0, 0, after_lsn), found.last_lsn):
            for lsn, data in enumerate(r.unframe(bytes(batch.body)), batch.first_lsn):
                if lsn > after_lsn:
                    self._add(lsn, r.decode(data))

    def _add(self, lsn: int, record: r.Record) -> None:
        if isinstance(record, r.Deleted):
            if not record.archive:  # else the store has it until it is archived
                self._gone.add(record.run)
        elif not isinstance(record, r.NOT_IN_JOURNAL):
            self._later.setdefault(record.run, []).append((lsn, record))

    def newest_of(self, id: str) -> Journal | None:
        found = [run for run, start in self._starts() if start.id == id]
        stored = None if self._db is None else reads.find(self._db, id)
        run = max(found, default=0 if stored is None else stored.run)
        kept = self._journal(run) if run and run not in self._gone else None
        return kept or next((journal for journal in self._archived() if journal.workflow_id == id), None)

    def newest(self, workflows: Collection[str] | None) -> Iterator[Journal]:
        begun = {run: start.type for run, start in self._starts()}
        for run in sorted(begun, reverse=True):
            if (workflows is None or begun[run] in workflows) and (journal := self._journal(run)) is not None:
                yield journal
        for run in self._stored(workflows):
            if run not in begun and (journal := self._journal(run)) is not None:
                yield journal
        for journal in self._archived():
            if workflows is None or journal.workflow in workflows:
                yield journal

    def _archived(self) -> Iterator[Journal]:
        for archived in read_archive(self._archive):
            if self._db is not None and reads.by_run(self._db, archived.run) is not None:
                continue  # a crash came before it was taken out of the store: it had its turn
            yield Journal.of(archived.id, self._number, archived.lsns, archived.data).whole(self._payloads)

    def _starts(self) -> Iterator[tuple[int, r.Start]]:
        for run, records in self._later.items():
            if isinstance(records[0][1], r.Start):
                yield run, records[0][1]

    def _stored(self, workflows: Collection[str] | None) -> Iterator[int]:
        after: str | None = None
        while self._db is not None and (page := reads.list_(self._db, None, PAGE, after)):
            yield from (row.run for row in page if workflows is None or row.type in workflows)
            after = page[-1].cursor

    def _journal(self, run: int) -> Journal | None:
        """None when the run was deleted, or is one that neither store nor log knows the start of."""
        if run in self._gone:
            return None
        later = self._later.get(run, [])
        stored = None if self._db is None else reads.describe_run(self._db, run)
        if stored is not None:
            journal = Journal.of(stored.found.id, self._number, stored.lsns, stored.data)
        elif later and isinstance(start := later[0][1], r.Start):
            journal = Journal(start.id, self._number, (), ())
        else:
            return None
        last = journal.lsns[-1] if journal.lsns else 0
        return journal.followed_by([(lsn, record) for lsn, record in later if lsn > last]).whole(self._payloads)
