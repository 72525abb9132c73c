# docs/protocol.md against the code: every example, every table.
from __future__ import annotations

import re
from pathlib import Path

import pytest

from fusee_mp.wire import messages, preface
from fusee_mp.wire.frames import decode_frame
from fusee_mp.wire.kinds import Kind

TEXT = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text("utf-8")
PREFACES = [line for block in re.findall(r"```preface\n(.*?)```", TEXT, re.DOTALL) for line in block.splitlines()]
EXAMPLES: list[tuple[str, str]] = [tuple(block.split("\n", 1)) for block in re.findall(r"```frame\n(.*?)\n```", TEXT, re.DOTALL)]
ROWS = re.findall(r"^\| (\d+) \| ([A-Z_]+) \| [^|]+ \| ([^|]+) \| [^|]+ \|$", TEXT, re.MULTILINE)


@pytest.mark.parametrize(("title", "data"), EXAMPLES, ids=[title.split("(")[0] for title, _ in EXAMPLES])
def test_an_example_decodes_to_its_title_and_encodes_to_its_bytes(title: str, data: str) -> None:
    frame = decode_frame(bytes.fromhex(data))
    message = messages.decode(frame)
    head = {"request": frame.request, "shard": frame.shard, "epoch": frame.epoch}
    shown = " ".join(f"{name}={value}" for name, value in head.items() if value)
    assert f"{message!r}  {shown}".rstrip() == title
    assert messages.encode(message, **head) == bytes.fromhex(data)


def test_every_kind_has_exactly_one_example() -> None:
    kinds = [decode_frame(bytes.fromhex(data)).kind for _, data in EXAMPLES]
    assert kinds == list(Kind)


def test_every_preface_example_decodes_and_encodes_and_all_kinds_are_shown() -> None:
    shown = []
    for line in PREFACES:
        data, _, name = line.partition("  ")
        found = preface.decode(bytes.fromhex(data))
        assert name == f"{found.kind.name} {'' if found.shard is None else found.shard}".rstrip()
        assert found.encode() == bytes.fromhex(data)
        shown.append(found.kind)
    assert shown == list(preface.ConnectionKind)


def test_the_tables_have_every_kind_with_its_number_and_fields() -> None:
    fields = {kind.KIND: ", ".join(kind.__struct_fields__) or "none" for kind in messages.Message.__subclasses__()}
    assert [(int(number), name, names) for number, name, names in ROWS] == [(kind.value, kind.name, fields[kind]) for kind in Kind]
