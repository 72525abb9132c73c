# Reading a log while another process writes it.
#
# The writer publishes how far the log is durable; everything up to there is whole and stays where it is until the reader's own
# checkpoint lets its segment go. So a batch that is not whole below that point is damage, never a matter of waiting.
"""Batches of a live log in order, for folding, copying and checking."""
from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fusee_mp.errors import DamagedLog, StorageError
from fusee_mp.log.disk import Disk
from fusee_mp.log.format import BATCHES_OFFSET, SegmentHeader, State
from fusee_mp.log.options import Position
from fusee_mp.log.segment import Chain, File, Stop, Stored, chain_after, chain_of, numbers, opened, read_batch, read_header, segment_name

_LENGTH = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Batch:
    """Records `first_lsn` to `first_lsn + count - 1`, written under one epoch; `next` is where reading goes on after them."""

    first_lsn: int
    count: int
    epoch: int
    body: memoryview
    next: Position

    @property
    def last_lsn(self) -> int:
        return self.first_lsn + self.count - 1


def read_batches(directory: Path, start: Position | None, through_lsn: int, *, disk: Disk | None = None) -> Iterator[Batch]:
    """Every batch after `start` whose last record is at or below `through_lsn`, which must be durable by word of the log's owner.

    A `start` of None begins with the oldest segment; one in a segment that is gone goes on by its LSN. Raises DamagedLog where a
    batch is missing or not whole, OSError where the disk does.
    """
    if through_lsn < 1:
        return
    disk = disk or Disk(str(directory))
    # All that is asked for was durable before this listing, so the listing has it.
    segments = _segments(disk)
    lsn = start.lsn if start is not None else segments[0][1].first_lsn - 1 if segments else 0
    for at, (number, header) in enumerate(segments):
        last_lsn = min(segments[at + 1][1].first_lsn - 1, through_lsn) if at + 1 < len(segments) else through_lsn
        if last_lsn <= lsn:
            continue
        if header.first_lsn > lsn + 1:
            raise _missing(segment_name(number), 0, lsn + 1, f"the segment begins at LSN {header.first_lsn}")
        yield from _read_segment(disk, number, header, start, lsn, last_lsn)
        lsn = last_lsn
    if lsn < through_lsn:
        raise _missing("(no segment)", 0, lsn + 1, "there is no segment that has it")


def split_records(body: bytes | memoryview) -> Iterator[memoryview]:
    """The records of a body, each without its length. Raises StorageError where lengths and body do not fit."""
    view = memoryview(body)
    at = 0
    while at < len(view):
        begin = at + _LENGTH.size
        if begin > len(view) or (at := begin + _LENGTH.unpack_from(view, at)[0]) > len(view):
            raise StorageError(f"a record ends at byte {at} of a body that has {len(view)}: its writer counted wrongly", bytes=len(view))
        yield view[begin:at]


def join_records(records: list[bytes]) -> bytes:
    """What `Log.append` takes and `split_records` splits."""
    return b"".join([part for record in records for part in (_LENGTH.pack(len(record)), record)])


def _segments(disk: Disk) -> list[tuple[int, SegmentHeader]]:
    """Active segments that count, oldest first. One that ceases to be while we look was below the reader's checkpoint."""
    found: list[tuple[int, SegmentHeader]] = []
    for number in numbers(disk.names()):
        try:
            with opened(disk, segment_name(number)) as file:
                header = read_header(file, number)
        except FileNotFoundError:
            continue
        if isinstance(header, str):
            raise _missing(segment_name(number), 0, 0, header)
        if header.state == State.ACTIVE:
            while found and header.first_sequence <= found[-1][1].first_sequence:
                found.pop()
            found.append((number, header))
    return found


def _read_segment(disk: Disk, number: int, header: SegmentHeader, start: Position | None, lsn: int, last_lsn: int) -> Iterator[Batch]:
    """Batches of one segment after `lsn` up to `last_lsn`."""
    is_start = start is not None and start.segment == number and start.offset >= BATCHES_OFFSET
    offset = start.offset if is_start and start is not None else BATCHES_OFFSET
    chain = None if is_start else chain_of(header)
    with opened(disk, segment_name(number)) as file:
        while lsn < last_lsn:
            stored = _next(file, header, offset, chain, lsn)
            if stored.header.last_lsn > last_lsn:
                return
            chain, offset = chain_after(stored.header), stored.end
            if stored.header.records and stored.header.last_lsn > lsn:
                lsn = stored.header.last_lsn
                yield Batch(stored.header.first_lsn, stored.header.records, stored.header.epoch, stored.body, Position(number, offset, lsn))


def _next(file: File, header: SegmentHeader, offset: int, chain: Chain | None, lsn: int) -> Stored:
    stored = read_batch(file, header, offset, chain)
    if isinstance(stored, Stop):
        raise _missing(file.name, offset, chain.first_lsn if chain else lsn + 1, stored.reason)
    if chain is None and stored.header.first_lsn != lsn + 1:
        raise _missing(file.name, offset, lsn + 1, f"a batch is there that begins at LSN {stored.header.first_lsn}")
    return stored


def _missing(file: str, offset: int, lsn: int, reason: str) -> DamagedLog:
    return DamagedLog(
        f"log file {file} should have the batch with LSN {lsn} at offset {offset}, which was durable: {reason}. "
        "Restore the directory from a backup, or the file from a copy.",
        file=file, offset=offset, lsn=lsn,
    )
