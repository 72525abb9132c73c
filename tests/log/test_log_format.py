from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusee_mp import bounds
from fusee_mp.log import disk, split_records
from fusee_mp.log.format import (
    BATCH_HEADER_BYTES,
    HEADER_BYTES,
    PLACEMENT_FIELDS,
    PREFIX_FIELDS,
    SEGMENT_FIELDS,
    SHARED_FIELDS,
    SPARE_MARK,
    Field,
    State,
    batch_bytes,
    body_fault,
    pack_batch,
    pack_segment_header,
    unpack_batch_header,
    unpack_segment_header,
)
from fusee_mp.log.reader import join_records

DOCUMENT = Path(__file__).parents[2] / "docs" / "log-format.md"
U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)

GOLDEN_SEGMENT = (
    "4655534545534547 01000000 01000000 0700000000000000 8877665544332211 00020000 44332211 0000000400000000"
    "2a00000000000000 e803000000000000 2900000000000000 0300000000000000"
)
GOLDEN_BATCH = (
    "00020000 00000000 8877665544332211 2900000000000000 2a00000000000000 0000000000000000 0300000000000000 e803000000000000"
    "02000000 0d000000 44332211"
)


def whole_batch(body: bytes, block_bytes: int = 512, **fields: int) -> bytes:
    defaults = {"salt": 1, "acked": 4, "sequence": 5, "epoch": 1, "first_lsn": 9, "records": 1, "parent": 3}
    packed = pack_batch(body, block_bytes=block_bytes, **(defaults | fields))
    return packed.header + body + packed.padding


def test_the_bytes_of_a_segment_header_never_change() -> None:
    header = pack_segment_header(
        State.ACTIVE, number=7, salt=0x1122334455667788, block_bytes=512, parent=0x11223344, segment_bytes=64 << 20, first_sequence=42,
        first_lsn=1000, acked=41, epoch=3,
    )
    assert header[: -HEADER_BYTES + 84].hex() == bytes.fromhex(GOLDEN_SEGMENT).hex() + "26057a16"
    assert not any(header[84:]) and len(header) == HEADER_BYTES


def test_the_bytes_of_a_batch_never_change() -> None:
    batch = whole_batch(
        join_records([b"one", b"tw"]),
        salt=0x1122334455667788, acked=41, sequence=42, epoch=3, first_lsn=1000, records=2, parent=0x11223344,
    )
    assert batch[:4] == b"FSB1"
    assert batch[8:76].hex() == bytes.fromhex(GOLDEN_BATCH).hex()
    assert (batch[4:8].hex(), batch[76:80].hex()) == ("266d0878", "0755b74a")
    assert batch[80:93].hex() == b"\x03\0\0\0one\x02\0\0\0tw".hex() and not any(batch[93:]) and len(batch) == 512


def test_the_document_has_the_tables_of_the_code() -> None:
    rows = re.findall(r"^\| (\d+) \| (\d+) \| `(\w+)` \| (.*) \|$", DOCUMENT.read_text(), re.MULTILINE)
    assert rows == [*_rows(SEGMENT_FIELDS), *_rows(PREFIX_FIELDS + PLACEMENT_FIELDS + SHARED_FIELDS)]


def _rows(fields: tuple[Field, ...]) -> list[tuple[str, str, str, str]]:
    rows, offset = [], 0
    for field in fields:
        size = struct.calcsize("<" + field.code)
        rows.append((str(offset), str(size), field.name, field.meaning))
        offset += size
    return rows


def test_the_helper_program_has_the_bounds_it_cannot_import() -> None:
    assert disk.FILL_PIECE_BYTES == bounds.LOG_FILL_PIECE_BYTES and disk.FILL_PAUSE_MS == bounds.LOG_FILL_PAUSE_MS


@given(st.binary(max_size=3000), st.sampled_from([512, 1024, 4096]), U64, U64, U64, U64, U64, U32, U32)
def test_a_batch_reads_back_as_it_was_written(
    body: bytes, block_bytes: int, salt: int, acked: int, sequence: int, epoch: int, first_lsn: int, records: int, parent: int,
) -> None:
    fields = {
        "salt": salt, "acked": acked, "sequence": sequence, "epoch": epoch, "first_lsn": first_lsn, "records": records, "parent": parent,
    }
    data = whole_batch(body, block_bytes, **fields)
    assert len(data) % block_bytes == 0 and len(data) == batch_bytes(len(body), block_bytes)
    header = unpack_batch_header(data, salt, block_bytes)
    assert header is not None and header._asdict().items() >= fields.items()
    assert body_fault(header, memoryview(data)[BATCH_HEADER_BYTES:]) is None
    assert bool(header.flags) == (records == 0)


@given(st.binary(max_size=1200), st.data())
def test_no_changed_byte_of_a_batch_goes_unseen(body: bytes, data: st.DataObject) -> None:
    good = whole_batch(body)
    at, change = data.draw(st.integers(0, len(good) - 1)), data.draw(st.integers(1, 255))
    bad = bytearray(good)
    bad[at] ^= change
    header = unpack_batch_header(bytes(bad), 1, 512)
    assert header is None or body_fault(header, memoryview(bad)[BATCH_HEADER_BYTES:]) is not None


@given(st.binary(max_size=600))
def test_arbitrary_bytes_are_never_a_header(noise: bytes) -> None:
    assert unpack_batch_header(b"FSB1" + noise, 1, 512) is None
    assert unpack_segment_header(b"FUSEESEG" + noise) is None


@given(st.integers(0, HEADER_BYTES - 1), st.integers(1, 255))
def test_no_changed_byte_of_a_segment_header_goes_unseen(at: int, change: int) -> None:
    bad = bytearray(SPARE_MARK)
    bad[at] ^= change
    assert unpack_segment_header(bytes(bad)) is None


def test_a_batch_of_another_use_of_the_file_is_not_whole() -> None:
    assert unpack_batch_header(whole_batch(b"x"), 2, 512) is None


def test_the_checksum_of_a_batch_does_not_depend_on_its_place() -> None:
    one = pack_batch(b"abc", block_bytes=512, salt=1, acked=3, sequence=5, epoch=1, first_lsn=9, records=1, parent=3)
    two = pack_batch(b"abc", block_bytes=4096, salt=2, acked=4, sequence=5, epoch=1, first_lsn=9, records=1, parent=3)
    assert one.checksum == two.checksum and one.header != two.header


@given(st.lists(st.binary(max_size=300), max_size=20))
def test_records_read_back_as_they_were_joined(records: list[bytes]) -> None:
    assert [bytes(record) for record in split_records(join_records(records))] == records


@pytest.mark.parametrize("size", [0, 79, 80, HEADER_BYTES - 1])
def test_a_short_block_is_no_header(size: int) -> None:
    assert unpack_segment_header(SPARE_MARK[:size]) is None
    assert unpack_batch_header(whole_batch(b"")[: min(size, 79)], 1, 512) is None
