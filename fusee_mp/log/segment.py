# Reading segment files.
#
# A file `0000000000000007.seg` is a segment, or a spare that was about to become one or has just ceased to be; its header tells which.
# Reading is by `pread` through a window: a mapped file that somebody truncates kills its reader.
"""Names of segment files, their headers, and the walk from batch to batch."""
from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from fusee_mp.log.disk import Disk
from fusee_mp.log.format import (
    BATCH_HEADER_BYTES,
    BATCH_MAGIC,
    BATCHES_OFFSET,
    COPY_OFFSETS,
    FORMAT,
    HEADER_BYTES,
    BatchHeader,
    SegmentHeader,
    State,
    body_fault,
    unpack_batch_header,
    unpack_segment_header,
)

WINDOW_BYTES = 1 << 20
FILLING = "next.fill"
RESERVE = "reserve"
_SEGMENT_NAME = re.compile(r"(\d{16})\.seg")
_SPARE_NAME = re.compile(r"(\d{16})\.spare")


def segment_name(number: int) -> str:
    return f"{number:016d}.seg"


def spare_name(number: int) -> str:
    return f"{number:016d}.spare"


def numbers(names: list[str], pattern: re.Pattern[str] = _SEGMENT_NAME) -> list[int]:
    """The numbers of the segment files among `names`, ascending."""
    return sorted(int(match[1]) for name in names if (match := pattern.fullmatch(name)))


def spare_numbers(names: list[str]) -> list[int]:
    return numbers(names, _SPARE_NAME)


class File:
    """A file to read. Views of what `read` returns stay good for ever."""

    def __init__(self, disk: Disk, name: str, fd: int) -> None:
        self.name = name
        self.size = disk.size(fd)
        self._disk = disk
        self._fd = fd
        self._start = 0
        self._window = memoryview(b"")

    def read(self, offset: int, size: int) -> memoryview:
        """The bytes there; fewer where the file ends."""
        at = offset - self._start
        if at < 0 or at + size > len(self._window):
            self._start, at = offset, 0
            self._window = memoryview(self._read_all(offset, max(size, WINDOW_BYTES)))
        return self._window[at : at + size]

    def _read_all(self, offset: int, size: int) -> bytes:
        parts: list[bytes] = []
        while size > 0 and (part := self._disk.read(self._fd, size, offset)):
            parts.append(part)
            offset += len(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


@contextmanager
def opened(disk: Disk, name: str) -> Iterator[File]:
    fd = disk.open(name)
    try:
        yield File(disk, name, fd)
    finally:
        disk.close(fd)


def read_header(file: File, number: int) -> SegmentHeader | str:
    """The header that decides, or why there is none."""
    copies = [unpack_segment_header(bytes(file.read(offset, HEADER_BYTES))) for offset in COPY_OFFSETS]
    header = copies[0] or copies[1]
    if header is None:
        return "neither copy of the segment header is whole"
    if header.format != FORMAT:
        return f"the segment has format {header.format}, this version reads format {FORMAT}"
    if header.state == State.ACTIVE and header.number != number:
        return f"the header is that of segment {header.number}"
    return header


class Chain(NamedTuple):
    """What the next batch must continue."""

    sequence: int
    first_lsn: int
    parent: int
    epoch: int


def chain_after(batch: BatchHeader) -> Chain:
    return Chain(batch.sequence + 1, batch.first_lsn + batch.records, batch.checksum, batch.epoch)


def chain_of(header: SegmentHeader) -> Chain:
    return Chain(header.first_sequence, header.first_lsn, header.parent, header.epoch)


class StopKind(Enum):
    """Why a walk went no further."""

    END = "nothing follows"
    TORN = "what follows is not a whole batch"
    FOREIGN = "a whole batch follows that is not the next one"


@dataclass(frozen=True)
class Stop:
    kind: StopKind
    reason: str


@dataclass(frozen=True)
class Stored:
    """A whole batch in a file, from `offset` to `end`."""

    header: BatchHeader
    body: memoryview
    offset: int
    end: int


def read_batch(file: File, segment: SegmentHeader, offset: int, chain: Chain | None) -> Stored | Stop:
    """The batch at `offset`, if it is whole and continues `chain`; any whole one where that is None."""
    if offset + BATCH_HEADER_BYTES > segment.segment_bytes:
        return Stop(StopKind.END, "the segment is full")
    block = file.read(offset, BATCH_HEADER_BYTES)
    header = unpack_batch_header(block, segment.salt, segment.block_bytes)
    if header is None:
        return Stop(StopKind.TORN, "no whole batch header") if any(block) else Stop(StopKind.END, "no batch")
    if chain is not None and (reason := _misfit(header, chain)):
        return Stop(StopKind.FOREIGN, reason)
    rest = file.read(offset, header.length)[BATCH_HEADER_BYTES:]
    if reason := body_fault(header, rest):
        return Stop(StopKind.TORN, reason)
    return Stored(header, rest[: header.body_bytes], offset, offset + header.length)


def _misfit(batch: BatchHeader, chain: Chain) -> str | None:
    if batch.sequence != chain.sequence:
        return f"it has sequence {batch.sequence} where {chain.sequence} is next"
    if batch.first_lsn != chain.first_lsn:
        return f"it begins at LSN {batch.first_lsn} where {chain.first_lsn} is next"
    return None if batch.parent == chain.parent else "it does not name the batch before it as its parent"


def later_proof(file: File, segment: SegmentHeader, offset: int, sequence: int) -> BatchHeader | None:
    """A whole header after `offset` that proves batch `sequence` to have been acknowledged."""
    step = segment.block_bytes
    magic = memoryview(BATCH_MAGIC)
    for start in range(offset, min(file.size, segment.segment_bytes), WINDOW_BYTES):
        window = file.read(start, WINDOW_BYTES)
        for at in range(0, len(window), step):
            if window[at : at + 4] != magic:
                continue
            header = unpack_batch_header(window[at : at + BATCH_HEADER_BYTES], segment.salt, step)
            if header is not None and header.acked >= sequence:
                return header
    return None


assert BATCHES_OFFSET % max(COPY_OFFSETS) == 0
