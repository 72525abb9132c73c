"""Each row of docs/payloads.md holds: what it says comes back does, in that JSON; what it says is refused is, in those words."""
from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from fusee_mp import PayloadError
from fusee_mp.payload.converter import codec_of

PAGE = (Path(__file__).parents[2] / "docs" / "payloads.md").read_text("utf-8")


def names() -> dict[str, Any]:
    block = re.search(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert block is not None
    found: dict[str, Any] = {"__name__": __name__}
    exec(compile(block[1], "payloads.md", "exec", dont_inherit=True), found)
    return found


NAMES = names()


def rows(columns: int) -> list[list[str]]:
    split = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in PAGE.splitlines() if line.startswith("| `")]
    return [[cell.strip().strip("`") for cell in row] for row in split if len(row) == columns]


def test_the_tables_are_there() -> None:
    assert len(rows(3)) >= 35 and len(rows(4)) >= 15


@pytest.mark.parametrize(("annotation", "value", "shown"), rows(3))
def test_a_value_comes_back_equal_and_in_the_json_that_stands_there(annotation: str, value: str, shown: str) -> None:
    codec, sent = codec_of(eval(annotation, NAMES)), eval(value, NAMES)
    data, copy = codec.roundtrip(sent)
    assert json.loads(data) == json.loads(shown)
    for found in (copy, codec.decode(data), codec.decode(shown.encode())):
        assert type(found) is type(sent) and repr(found) == repr(sent)


@pytest.mark.parametrize(("annotation", "value", "said", "mend"), rows(4))
def test_a_value_is_refused_in_the_words_that_stand_there(annotation: str, value: str, said: str, mend: str) -> None:
    with pytest.raises(PayloadError, match=re.escape(said)):
        codec_of(eval(annotation, NAMES)).encode(eval(value, NAMES))
    assert mend
