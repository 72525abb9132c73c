# The bytes of a segment file. docs/log-format.md repeats the tables below, and a test holds the two equal.
#
#   offset 0        segment header, copy A (512 bytes, zero-padded)
#   offset 4,096    segment header, copy B
#   offset 8,192    batches, back to back, each begins at a multiple of the block size
#
# A batch header has two parts. The shared part says what the batch is, and its CRC is the batch's *checksum*, which the next batch
# names as its parent: it would be the same bytes on every replica, and stays the same when a batch is copied to another file. The
# placement part says what holds for this file only.
#
# Rule 1: a batch belongs to a file only if its salt is that of the file's header. A file gets a new salt with every use, so what an
#         earlier use left behind never fits.
# Rule 2: a batch is whole if its magic, both CRCs and its length hold and its padding is zero. Nothing less is ever read.
# Rule 3: copy A of the segment header decides; copy B is looked at only where A is not whole.
"""Layouts of segment headers and batches, and the only code that packs and unpacks them."""
from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from fusee_mp.checksum import crc32c

FORMAT = 1
SEGMENT_MAGIC = b"FUSEESEG"
BATCH_MAGIC = b"FSB1"
SEAL = 1  # a flag: a batch without records, which proves that the one before it was acknowledged
HEADER_BYTES = 512
COPY_OFFSETS = (0, 4096)
BATCHES_OFFSET = 8192


class State(IntEnum):
    """What a segment file is in use for."""

    ACTIVE = 1
    SPARE = 2


class Field(NamedTuple):
    name: str
    code: str
    meaning: str


SEGMENT_FIELDS = (
    Field("magic", "8s", "`FUSEESEG`"),
    Field("format", "I", "1"),
    Field("state", "I", "1 active, 2 spare"),
    Field("number", "Q", "the number in the file's name; 0 in a spare"),
    Field("salt", "Q", "drawn anew for each use of the file"),
    Field("block_bytes", "I", "batches begin at multiples of this"),
    Field("parent", "I", "checksum of the batch before the first one"),
    Field("segment_bytes", "Q", "size of the file"),
    Field("first_sequence", "Q", "sequence of the first batch"),
    Field("first_lsn", "Q", "LSN of the first record"),
    Field("acked", "Q", "highest sequence known durable when this header was written"),
    Field("epoch", "Q", "lease epoch of the batch before the first one"),
    Field("crc", "I", "CRC-32C of all fields before it"),
)
PREFIX_FIELDS = (
    Field("magic", "4s", "`FSB1`"),
    Field("header_crc", "I", "CRC-32C of the header from byte 8"),
)
PLACEMENT_FIELDS = (
    Field("length", "I", "bytes of the batch with header and padding, a multiple of the block size"),
    Field("flags", "I", "1: a seal"),
    Field("salt", "Q", "the salt of the segment header"),
    Field("acked", "Q", "highest sequence that was durable when this batch was written"),
)
SHARED_FIELDS = (
    Field("sequence", "Q", "1, 2, 3, .. over the life of the log"),
    Field("view", "Q", "0; for replication"),
    Field("epoch", "Q", "lease epoch of all records of the batch"),
    Field("first_lsn", "Q", "LSN of the first record; of the next one in a seal"),
    Field("records", "I", "number of records"),
    Field("body_bytes", "I", "bytes after the header that are records"),
    Field("parent", "I", "checksum of the batch before"),
    Field("body_crc", "I", "CRC-32C of the body"),
)


def layout(*groups: tuple[Field, ...]) -> struct.Struct:
    """The little-endian struct of a field table."""
    return struct.Struct("<" + "".join(field.code for group in groups for field in group))


_SEGMENT = layout(SEGMENT_FIELDS)
_SEGMENT_CRC = struct.Struct("<I")
_PREFIX = layout(PREFIX_FIELDS)
_PLACEMENT = layout(PLACEMENT_FIELDS)
_SHARED = layout(SHARED_FIELDS)
_BATCH = layout(PREFIX_FIELDS, PLACEMENT_FIELDS, SHARED_FIELDS)
BATCH_HEADER_BYTES = _BATCH.size
_SHARED_OFFSET = _PREFIX.size + _PLACEMENT.size
_ZERO_HEADER = bytes(HEADER_BYTES - _SEGMENT.size)


class SegmentHeader(NamedTuple):
    """A whole segment header; the fields are those of SEGMENT_FIELDS."""

    magic: bytes
    format: int
    state: int
    number: int
    salt: int
    block_bytes: int
    parent: int
    segment_bytes: int
    first_sequence: int
    first_lsn: int
    acked: int
    epoch: int
    crc: int


class BatchHeader(NamedTuple):
    """A whole batch header; `checksum` is the CRC of its shared part."""

    magic: bytes
    header_crc: int
    length: int
    flags: int
    salt: int
    acked: int
    sequence: int
    view: int
    epoch: int
    first_lsn: int
    records: int
    body_bytes: int
    parent: int
    body_crc: int
    checksum: int

    @property
    def last_lsn(self) -> int:
        return self.first_lsn + self.records - 1


assert SegmentHeader._fields == tuple(field.name for field in SEGMENT_FIELDS)
assert BatchHeader._fields[:-1] == tuple(field.name for group in (PREFIX_FIELDS, PLACEMENT_FIELDS, SHARED_FIELDS) for field in group)
assert _SEGMENT.size <= HEADER_BYTES <= COPY_OFFSETS[1] and COPY_OFFSETS[1] + HEADER_BYTES <= BATCHES_OFFSET


def pack_segment_header(
    state: State, *, number: int = 0, salt: int = 0, block_bytes: int = 0, parent: int = 0, segment_bytes: int = 0,
    first_sequence: int = 0, first_lsn: int = 0, acked: int = 0, epoch: int = 0,
) -> bytes:
    """One copy of a segment header, padded to HEADER_BYTES."""
    fields = _SEGMENT.pack(
        SEGMENT_MAGIC, FORMAT, state, number, salt, block_bytes, parent, segment_bytes, first_sequence, first_lsn, acked, epoch, 0,
    )[: -_SEGMENT_CRC.size]
    return fields + _SEGMENT_CRC.pack(crc32c(fields)) + _ZERO_HEADER


SPARE_MARK = pack_segment_header(State.SPARE)


def unpack_segment_header(block: bytes) -> SegmentHeader | None:
    """The header in `block`, or None where there is no whole one."""
    if len(block) < HEADER_BYTES or block[:8] != SEGMENT_MAGIC or block[_SEGMENT.size : HEADER_BYTES] != _ZERO_HEADER:
        return None
    header = SegmentHeader._make(_SEGMENT.unpack_from(block))
    return header if header.crc == crc32c(block[: _SEGMENT.size - _SEGMENT_CRC.size]) else None


def batch_bytes(body_bytes: int, block_bytes: int) -> int:
    """What a batch with such a body takes in a file."""
    return -(-(BATCH_HEADER_BYTES + body_bytes) // block_bytes) * block_bytes


class Packed(NamedTuple):
    """A batch ready to be written: header, body, padding in this order."""

    header: bytes
    padding: bytes
    length: int
    checksum: int


def pack_batch(
    body: bytes, *, block_bytes: int, salt: int, acked: int, sequence: int, epoch: int, first_lsn: int, records: int, parent: int,
    view: int = 0,
) -> Packed:
    """The bytes around `body`. A batch without records is a seal."""
    length = batch_bytes(len(body), block_bytes)
    placement = _PLACEMENT.pack(length, 0 if records else SEAL, salt, acked)
    shared = _SHARED.pack(sequence, view, epoch, first_lsn, records, len(body), parent, crc32c(body))
    prefix = _PREFIX.pack(BATCH_MAGIC, crc32c(shared, crc32c(placement)))
    return Packed(prefix + placement + shared, bytes(length - BATCH_HEADER_BYTES - len(body)), length, crc32c(shared))


def unpack_batch_header(block: bytes | memoryview, salt: int, block_bytes: int) -> BatchHeader | None:
    """The batch header at the start of `block`, or None where there is no whole one of this use of the file."""
    if len(block) < BATCH_HEADER_BYTES or block[:4] != BATCH_MAGIC:
        return None
    raw = bytes(block[:BATCH_HEADER_BYTES])
    header = BatchHeader._make((*_BATCH.unpack(raw), crc32c(raw[_SHARED_OFFSET:])))
    if header.salt != salt or header.header_crc != crc32c(raw[_PREFIX.size :]):
        return None
    return header if header.length == batch_bytes(header.body_bytes, block_bytes) else None


def body_fault(header: BatchHeader, rest: memoryview) -> str | None:
    """Why the bytes after the header are not what it says, or None."""
    if len(rest) < header.length - BATCH_HEADER_BYTES:
        return "the file ends within the batch"
    if crc32c(rest[: header.body_bytes]) != header.body_crc:
        return "the body's checksum does not fit"
    if any(rest[header.body_bytes : header.length - BATCH_HEADER_BYTES]):
        return "the padding is not zero"
    return None
