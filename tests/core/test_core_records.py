"""The records of a log: their bytes are frozen, damage is refused, and docs/records.md says what they are."""
from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from core_records import FULL, SMALL, golden
from hypothesis import given
from hypothesis import strategies as st

from fusee_mp.core import records as r
from fusee_mp.core.schedule_changes import ScheduleChange

ROOT = Path(__file__).parents[2]
GOLDEN: dict[str, list[str]] = json.loads((ROOT / "tests" / "golden" / "records.json").read_text())
DOCUMENT = (ROOT / "docs" / "records.md").read_text("utf-8")
KINDS: tuple[Any, ...] = get_args(r.Record)


@pytest.mark.parametrize("kind", [*r.KIND.values(), "message"])
def test_a_kind_has_the_bytes_it_always_had(kind: str) -> None:
    assert golden()[kind] == GOLDEN[kind]


def test_the_golden_bytes_cover_every_kind() -> None:
    assert set(GOLDEN) == {*r.KIND.values(), "message"}


@pytest.mark.parametrize("record", SMALL + FULL, ids=lambda record: type(record).__name__)
def test_a_record_comes_back_equal(record: Any) -> None:
    data = r.encode(record)
    assert r.decode(data) == record and r.encode(r.decode(data)) == data


@pytest.mark.parametrize("record", SMALL, ids=lambda record: type(record).__name__)
def test_a_record_that_a_later_version_wrote_with_more_fields_is_read(record: Any) -> None:
    longer = msgspec.msgpack.encode([*msgspec.msgpack.decode(r.encode(record)), "new", None])
    assert r.decode(longer) == record


@pytest.mark.parametrize("record", FULL, ids=lambda record: type(record).__name__)
def test_a_record_without_its_last_fields_gets_their_defaults(record: Any) -> None:
    required = [field.name for field in msgspec.structs.fields(type(record)) if field.required]
    shorter = msgspec.msgpack.encode(msgspec.msgpack.decode(r.encode(record))[: 1 + len(required)])
    assert r.decode(shorter) == type(record)(*[getattr(record, name) for name in required])


@given(st.sampled_from(SMALL + FULL), st.data())
def test_damaged_bytes_are_refused_or_another_record(record: Any, data: st.DataObject) -> None:
    """The checksum of the batch finds damage; what comes past it must not do anything but raise ValueError."""
    damaged = bytearray(r.encode(record))
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        assert isinstance(r.decode(bytes(damaged)), KINDS)
    except ValueError as e:
        assert str(e)


@given(st.sampled_from(SMALL + FULL), st.data())
def test_cut_bytes_are_refused(record: Any, data: st.DataObject) -> None:
    whole = r.encode(record)
    with pytest.raises(ValueError, match="truncated|length"):
        r.decode(whole[: data.draw(st.integers(0, len(whole) - 1))])


@pytest.mark.parametrize("data", [b"", b"\x00", *map(msgspec.msgpack.encode, ([99, 1], {"$": 1}, []))])
def test_what_is_no_record_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        r.decode(data)


@given(st.lists(st.binary(max_size=40)))
def test_frames_stand_one_after_another(records: list[bytes]) -> None:
    data = b"".join(map(r.frame, records))
    assert r.unframe(data) == records
    if data:
        with pytest.raises(ValueError, match="end within"):
            r.unframe(data[:-1] if records[-1] else data + b"\x01")


def test_no_tag_is_given_twice_and_each_kind_is_of_one_sort() -> None:
    assert len({kind.__struct_config__.tag for kind in KINDS}) == len(KINDS)
    assert set(r.KIND) == set(KINDS)
    assert not set(r.OUTCOMES) & set(r.ASKED)
    assert set(r.OUTCOMES) == set(get_args(r.Outcome))
    assert set(get_args(r.RunRecord)) == {kind for kind in KINDS if "run" in kind.__struct_fields__}
    assert {kind for kind in KINDS if "no" in kind.__struct_fields__} == set(r.MESSAGES)


def sections() -> dict[str, tuple[int, str, list[str]]]:
    """Of docs/records.md: by kind its tag, its sort, its fields."""
    found = {}
    for heading in re.finditer(r"^### (\w+) \((\d+), (\w+)\)\n(.*?)(?=^##|\Z)", DOCUMENT, re.MULTILINE | re.DOTALL):
        fields = re.findall(r"^\| `(\w+)` \|", heading[4], re.MULTILINE)
        found[heading[1]] = (int(heading[2]), heading[3], fields)
    return found


def sort_of(kind: Any) -> str:
    if kind in r.OUTCOMES:
        return "outcome"
    return "asked" if kind in r.ASKED else "fact"


def test_the_document_has_every_kind_with_its_tag_its_sort_and_its_fields() -> None:
    assert sections() == {
        word: (kind.__struct_config__.tag, sort_of(kind), list(kind.__struct_fields__)) for kind, word in r.KIND.items()
    }


@pytest.mark.parametrize("part", [r.Source, r.Parent, r.Begin, r.End, r.Closing, ScheduleChange, r.Message])
def test_the_document_has_the_parts_of_records(part: Any) -> None:
    found = re.search(rf"^### {part.__name__}\n(.*?)(?=^##|\Z)", DOCUMENT, re.MULTILINE | re.DOTALL)
    assert found is not None
    assert re.findall(r"^\| `(\w+)` \|", found[1], re.MULTILINE) == list(part.__struct_fields__)


def test_the_document_says_what_is_no_part_of_a_journal() -> None:
    line = next(line for line in DOCUMENT.splitlines() if line.startswith("No part of a journal:"))
    assert set(re.findall(r"`(\w+)`", line)) == {r.KIND[kind] for kind in r.NOT_IN_JOURNAL}
