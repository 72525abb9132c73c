# One shard's log: appends in, durable LSNs out.
#
# A batch is what arrived while the last flush ran; the first append after a pause is written in the loop's next turn, so that what
# arrives in one turn shares a flush. One batch is in flight at a time, hence a batch is written only when all before it are durable,
# and its being there proves them.
#
#   IDLE      nothing to do
#   BUSY      a turn of `_write_next` is scheduled, or a flush is under way
#   STARVED   a batch needs a segment that is not ready yet
#   DEAD      a write or flush failed, or the log is closed
#
# Rule 1: `durable_lsn` moves in `_durable` alone, after the flush of a whole batch, and never after a failure.
# Rule 2: after a failure nothing is written: what the disk holds is unknown until the next open reads it.
# Rule 3: every descriptor is closed in `_release`, on each path.
"""The log of one shard, open for appending."""
from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Iterable
from enum import Enum
from functools import partial
from itertools import count as counter
from pathlib import Path

from fusee_mp.errors import StorageError, StorageFull
from fusee_mp.log.beginning import Beginning, recover_and_begin
from fusee_mp.log.disk import Disk
from fusee_mp.log.flusher import Flusher
from fusee_mp.log.options import LogOptions, Position, Recovery
from fusee_mp.log.pending import Pending
from fusee_mp.log.policy import Metrics
from fusee_mp.log.recovery import Recovered
from fusee_mp.log.supply import Supply
from fusee_mp.log.tail import Tail


class Phase(Enum):
    IDLE = "idle"
    BUSY = "busy"
    STARVED = "starved"
    DEAD = "dead"


def random_salt() -> int:
    return secrets.randbits(64)


def _nothing(value: object) -> None:
    pass


class Log:
    """Append-only, one writer. Make one with `open`; `close` ends it on each path.

    `on_durable` is called on the loop with the durable LSN after each flush that moved it. `on_failed` is called once if a write or
    flush fails: nothing more is acknowledged, and the owner must exit and open anew.
    """

    def __init__(
        self, disk: Disk, options: LogOptions, found: Recovered, beginning: Beginning, loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float], salt: Callable[[], int],
    ) -> None:
        self.on_durable: Callable[[int], None] = _nothing
        self.on_failed: Callable[[BaseException], None] = _nothing
        self.metrics = Metrics()
        self.metrics.copied_batches = beginning.copied
        self._disk = disk
        self._options = options
        self._loop = loop
        self._clock = clock
        self._salt = salt
        self._tail = beginning.tail
        self._begun: Tail | None = None
        self._older = [(segment.number, segment.header.first_lsn, segment.size) for segment in beginning.kept]
        self.last_lsn = self.durable_lsn = self._tail.chain.first_lsn - 1
        self._durable_place = self._tail.number, self._tail.offset
        self.recovery = Recovery(self.last_lsn, found.epoch, found.torn, beginning.copied, self.durable_position)
        self._epoch = found.epoch
        self._phase = Phase.IDLE
        self._failure: BaseException | None = None
        self._pending = Pending(options.batch_bytes_max)
        self._flusher = Flusher(disk, options, loop, clock, self.metrics, self._fail)
        self._supply = Supply(
            disk, options, loop, lane=self._flusher.work_lane, next_number=self._tail.number + 1, spares=beginning.spares,
            on_ready=self._segment_ready, on_failed=self._fail,
        )
        self._checkpointed_lsn = 0
        self._pins: dict[int, int] = {}
        self._pin_ids = counter(1)
        self._sealed = True
        self._seal_timer: asyncio.TimerHandle | None = None
        self._last_durable_at = clock()
        self._is_closing = False
        self._drained: asyncio.Future[None] | None = None

    @classmethod
    def open(
        cls, directory: Path, options: LogOptions, *, proven_lsn: int, loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float] = time.monotonic, salt: Callable[[], int] = random_salt, disk: Disk | None = None,
        inherit: Iterable[int] = (),
    ) -> Log:
        """Recover the log and begin a new segment, all of it durable before this returns.

        `proven_lsn`: the store's applied LSN; records up to there were durable. `inherit`: descriptors that the helper process
        keeps open (the shard's lock). With a `disk` given everything runs inline in this process.
        Raises DamagedLog where acknowledged bytes are missing, StorageFull, StorageError where the disk fails.
        """
        if disk is None:
            directory.mkdir(parents=True, exist_ok=True)
            Disk(str(directory.parent)).flush_directory()
        real = disk or Disk(str(directory), options.emulated_flush_ms)
        found, beginning = recover_and_begin(directory, real, options, proven_lsn, salt)
        log = cls(real, options, found, beginning, loop, clock, salt)
        try:
            if disk is None:
                log._flusher.start_helper(directory, tuple(inherit))
            log._supply.start(real.names())
        except BaseException:
            log._release()
            raise
        return log

    # Appending.

    def append(self, records: bytes, count: int, epoch: int, *, running: bool = True) -> int:
        """Place `count` records, each a u32 length (LE) and its bytes, at the tail; return the LSN of the last.

        Not durable yet: wait for `durable_lsn` to reach the result before telling anyone. Raises StorageFull when there is no room,
        for new work (`running` False) while the reserve is not whole; the log is then unchanged. Raises StorageError once it is dead.
        """
        if self._is_closing or self._failure is not None:
            raise StorageError(f"the log in {self._disk.directory} takes no more records: {self._failure or 'it was closed'}")
        self._check(records, count, epoch)
        if self._supply.is_full:
            self._check_room(len(records), running)
        self._pending.add(records, count, epoch)
        self._epoch = epoch
        self.last_lsn += count
        self._wake()
        return self.last_lsn

    @property
    def durable_position(self) -> Position:
        """Where a reader goes on once it has everything up to `durable_lsn`."""
        return Position(*self._durable_place, self.durable_lsn)

    @property
    def pending_bytes(self) -> int:
        """Appended and not yet written: what a caller bounds to hold its peers back."""
        return self._pending.size

    @property
    def is_full(self) -> bool:
        """Whether new work is refused for want of space."""
        return self._supply.is_full

    def release_reserve(self) -> None:
        """For a keeper that met a full disk: let it have the reserve, and refuse new work until there is space again."""
        self._supply.release_reserve()

    def _check(self, records: bytes, count: int, epoch: int) -> None:
        if not 0 < len(records) <= self._options.append_bytes_max or count < 1:
            raise ValueError(
                f"an append has 1 to {self._options.append_bytes_max} bytes and at least one record, not {len(records)} and {count}"
            )
        if epoch < self._epoch:
            raise ValueError(f"an append under epoch {epoch} came after one under epoch {self._epoch}")

    def _check_room(self, size: int, running: bool) -> None:
        ready = self._supply.ready
        room = self._tail.size - self._tail.offset + (ready.size if ready else 0) - self._pending.size
        if running and room >= 2 * size:
            return
        free = self._disk.free_bytes()
        raise StorageFull(
            f"the disk of {self._disk.directory} is full ({free} bytes free), so {'this record' if running else 'new work'} is refused. "
            f"Free at least {2 * self._options.reserve_bytes + self._options.segment_bytes} bytes; work then resumes by itself.",
            free_bytes=free,
        )

    # Writing and flushing.

    def _wake(self) -> None:
        if self._phase is Phase.IDLE:
            self._phase = Phase.BUSY
            self._loop.call_soon(self._write_next)

    def _write_next(self) -> None:
        if self._phase is Phase.DEAD:
            return
        batch = self._pending.first()
        if batch is None:
            self._rest()
        elif self._tail.fits(batch.size):
            self._attempt(self._place)
        elif self._supply.ready is not None and self._supply.ready.fits(batch.size, self._options.block_bytes):
            self._attempt(self._begin_segment)
        else:
            self._starve()

    def _place(self) -> None:
        batch = self._pending.take()
        written = self._tail.place(batch.body(), batch.count, batch.epoch, acked=self._tail.chain.sequence - 1)
        self._sealed = not batch.count
        self.metrics.batches += 1
        self.metrics.records += batch.count
        self.metrics.flushed_bytes += written
        self._flusher.flush(self._tail, batch.count, self._durable)

    def _begin_segment(self) -> None:
        ready = self._supply.take()
        old = self._tail
        self._begun = Tail(
            self._disk, ready.number, salt=self._salt(), block_bytes=self._options.block_bytes, chain=old.chain, is_fresh=ready.is_fresh,
        )
        self._begun.write_header(0, acked=old.chain.sequence - 1)
        self._flusher.flush(self._begun, 0, partial(self._attempt, self._segment_begun))

    def _segment_begun(self) -> None:
        # Copy B goes to disk with the first batch, which nobody hears of before: so far copy A is enough.
        begun, old = self._begun, self._tail
        assert begun is not None
        begun.write_header(1, acked=old.chain.sequence - 1)
        self._begun = None
        self._older.append((old.number, old.first_lsn, old.size))
        self._tail = begun
        old.close()
        self.metrics.segments_begun += 1
        self._write_next()

    def _durable(self) -> None:
        moved = self.durable_lsn != self._tail.chain.first_lsn - 1
        self.durable_lsn = self._tail.chain.first_lsn - 1
        self._durable_place = self._tail.number, self._tail.offset
        self._last_durable_at = self._clock()
        if self._pending.first() is None:
            self._rest()
        elif self._flusher.is_inline:
            self._loop.call_soon(self._write_next)
        else:
            self._write_next()  # The disk works while the callback below does.
        if moved:
            self.on_durable(self.durable_lsn)

    def _starve(self) -> None:
        self._phase = Phase.STARVED
        self._supply.hurry()
        if self._is_closing and self._supply.is_full:
            self._finish_drain()

    def _segment_ready(self) -> None:
        if self._phase is Phase.STARVED:
            self._phase = Phase.BUSY
            self._loop.call_soon(self._write_next)

    # Sealing and closing.

    def _rest(self) -> None:
        self._phase = Phase.IDLE
        if self._is_closing and not self._sealed:
            self._seal()
        elif self._is_closing:
            self._finish_drain()
        elif not self._sealed and self._seal_timer is None:
            self._seal_timer = self._loop.call_later(self._options.seal_after_ms / 1000, self._seal_due)

    def _seal_due(self) -> None:
        self._seal_timer = None
        if self._phase is not Phase.IDLE or self._sealed:
            return
        left_s = self._options.seal_after_ms / 1000 - (self._clock() - self._last_durable_at)
        if left_s > 0.001:  # Less is rounding: a timer for it could be due at once, again and again.
            self._seal_timer = self._loop.call_later(left_s, self._seal_due)
        else:
            self._seal()

    def _seal(self) -> None:
        self._pending.seal(self._epoch)
        self._wake()

    async def close(self) -> None:
        """Flush what was appended, seal it, end the helper, close every descriptor.

        Raises StorageFull or StorageError where records could not be flushed; everything is closed all the same.
        """
        if self._is_closing:
            return
        self._is_closing = True
        try:
            if self._failure is None:
                await self._drain()
        finally:
            self._release()
        if self._failure is not None:
            raise StorageError(f"the log in {self._disk.directory} had failed before it was closed: {self._failure}") from self._failure
        if self.durable_lsn < self.last_lsn:
            raise StorageFull(f"records {self.durable_lsn + 1} to {self.last_lsn} found no room on the disk and were never acknowledged")

    def abandon(self) -> None:
        """Close every descriptor and end the helper at once, as a crash would: nothing more is flushed."""
        self._is_closing = True
        self._release()

    async def _drain(self) -> None:
        self._drained = self._loop.create_future()
        if self._phase is Phase.STARVED:
            self._phase = Phase.IDLE
        self._wake()
        await self._drained

    def _finish_drain(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def _release(self) -> None:
        self._phase = Phase.DEAD
        self._supply.close()
        self._pending.clear()
        self._flusher.close()
        if self._seal_timer is not None:
            self._seal_timer.cancel()
        for tail in (self._tail, self._begun):
            if tail is not None:
                tail.close()

    # Failing.

    def _attempt(self, action: Callable[[], None]) -> None:
        if self._phase is Phase.DEAD:
            return
        try:
            action()
        except OSError as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if self._failure is not None or self._phase is Phase.DEAD:
            return
        self._failure = error
        self._phase = Phase.DEAD
        self._pending.clear()
        self._finish_drain()
        self.on_failed(error)

    # Letting segments go.

    def checkpointed(self, lsn: int) -> None:
        """The store holds everything up to `lsn` durably: segments wholly at or below may go."""
        self._checkpointed_lsn = max(self._checkpointed_lsn, min(lsn, self.durable_lsn))
        self._retire()

    def pin(self, lsn: int) -> int:
        """Hold back every segment with a record at or after `lsn`, until `unpin` gets the result."""
        token = next(self._pin_ids)
        self._pins[token] = lsn
        return token

    def unpin(self, token: int) -> None:
        self._pins.pop(token, None)
        self._retire()

    @property
    def oldest_lsn(self) -> int:
        """The first LSN that the log still has, or will have if it is empty."""
        return self._older[0][1] if self._older else self._tail.first_lsn

    def _retire(self) -> None:
        through = min([self._checkpointed_lsn, *(lsn - 1 for lsn in self._pins.values())])
        while self._older and self._phase is not Phase.DEAD:
            number, _, size = self._older[0]
            end_lsn = self._older[1][1] if len(self._older) > 1 else self._tail.first_lsn
            if end_lsn - 1 > through:
                return
            del self._older[0]
            self.metrics.segments_retired += 1
            self._supply.retire(number, size)
