"""Records in the body of a frame: each its length, u32 little-endian, and its bytes."""
from __future__ import annotations

import struct
from collections.abc import Iterable

from fusee_mp.errors import ProtocolError

_LENGTH = struct.Struct("<I")


def pack_records(records: Iterable[bytes]) -> bytes:
    """The records one after another, each behind its length."""
    pack = _LENGTH.pack
    return b"".join([part for record in records for part in (pack(len(record)), record)])


def unpack_records(data: bytes, count: int) -> list[bytes]:
    """The `count` records that `data` holds. Raises ProtocolError when it holds more, fewer or the part of one."""
    records: list[bytes] = []
    at, end, unpack = 0, len(data), _LENGTH.unpack_from
    while at + 4 <= end:
        start = at + 4
        at = start + unpack(data, at)[0]
        records.append(data[start:at])
    if at != end or len(records) != count:
        raise ProtocolError(f"expected {count} records in {end} bytes, found {len(records)} to byte {at}", found=len(records))
    return records
