"""Follows a shard's log: reads durable batches, folds them, commits in slices.

What can stand in the way is a `Trouble`, reported to the owner once when it begins and once when it is over:

- "locked": another program holds the store's write lock; "full": the disk is full. Folding tries again by itself.
- "log", "record", "store": a durable batch cannot be read, a record not be folded, or the store not be written. Folding has halted,
  for what comes after would not be right: questions about what is applied are still answered, others are refused with the reason.
- "wal": the store's write-ahead log has grown large because a program keeps a read transaction open. Folding goes on.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from fusee_mp.errors import FuseeError, StorageError, StorageFull
from fusee_mp.log.options import Position
from fusee_mp.log.reader import Batch, read_batches
from fusee_mp.store import CannotFold, Place, Store, StoreLocked

WAL_BYTES_REPORTED: Final = 256 << 20
RETRY_S: Final = 0.1
HALTING: Final = ("log", "record", "store")


class Tail:
    """The store's way through the log."""

    def __init__(self, store: Store, log_directory: Path, report: Callable[[str, str], None]) -> None:
        self.store = store
        self.through_lsn = store.applied_lsn
        self.retry_at = 0.0
        self.trouble = self.reason = ""
        self._directory = log_directory
        self._report = report
        self._batches: Iterator[Batch] = iter(())

    @property
    def is_behind(self) -> bool:
        """There is something to fold, and nothing forbids it."""
        return self.store.applied_lsn < self.through_lsn and not self.is_halted

    @property
    def is_halted(self) -> bool:
        return self.trouble in HALTING

    def step(self, now: float) -> None:
        """Fold one slice and commit it; a failure becomes the trouble of the tail."""
        if not self.is_behind or now < self.retry_at:
            return
        self.attempt(now, self._slice)

    def checkpoint(self, now: float) -> int | None:
        """Make what is applied durable and return its LSN; None when that failed."""
        return self.store.checkpoint_lsn if self.attempt(now, lambda: self.store.commit(full=True)) else None

    def attempt(self, now: float, action: Callable[[], object]) -> bool:
        try:
            action()
        except (StoreLocked, StorageFull) as e:
            self.retry_at = now + RETRY_S
            if isinstance(e, StorageFull):
                # The WAL's room is the first that can be had back, and a fold that then succeeds frees segments of the log.
                self.store.shrink()
            self._say("full" if isinstance(e, StorageFull) else "locked", e.message)
        except CannotFold as e:
            self._say("record", f"{e}. Folding has halted at LSN {self.store.applied_lsn}; the log is intact and keeps it")
        except (FuseeError, OSError) as e:
            kind = "store" if isinstance(e, StorageError) and "path" in e.fields else "log"
            self._say(kind, f"{e}. Folding has halted at LSN {self.store.applied_lsn}")
        else:
            if not self.is_halted:
                self._look_at_wal()
            return True
        self._batches = iter(())
        return False

    def _slice(self) -> None:
        store = self.store
        try:
            while not store.is_full and store.staged_lsn < self.through_lsn:
                batch = self._next()
                place = Place(batch.next.segment, batch.next.offset, batch.next.lsn)
                store.fold(batch.first_lsn, batch.body, place)
        finally:
            # Whatever stopped it, the batches before are good.
            store.commit()

    def _next(self) -> Batch:
        batch = next(self._batches, None)
        if batch is None:
            place = self.store.place
            self._batches = read_batches(self._directory, Position(*place) if place else None, self.through_lsn)
            batch = next(self._batches, None)
        if batch is None:
            raise StorageError(f"the log has no batch after LSN {self.store.staged_lsn}, although it is durable to {self.through_lsn}")
        return batch

    def _look_at_wal(self) -> None:
        size = self.store.wal_bytes()
        if size > WAL_BYTES_REPORTED:
            self._say("wal", f'"{self.store.path}-wal" has {size >> 20} MiB: a program keeps a read transaction open, end that')
        else:
            self._say("", "")

    def _say(self, kind: str, reason: str) -> None:
        if kind != self.trouble and not self.is_halted:
            self.trouble, self.reason = kind, reason
            self._report(kind, reason)
