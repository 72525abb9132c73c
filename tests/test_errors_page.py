"""docs/errors.md has what people need who meet an error."""
from __future__ import annotations

import re
from pathlib import Path

import pytest

from fusee_mp import bounds, errors

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "errors.md").read_text()
SECTIONS = {title: body for title, body in re.findall(r"^## (\S+)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)}


def every_error() -> list[type[errors.FuseeError]]:
    found, waiting = [], [errors.FuseeError]
    while waiting:
        kinds = waiting.pop().__subclasses__()
        found += [kind for kind in kinds if kind.__module__ == errors.__name__]
        waiting += kinds
    return found


@pytest.mark.parametrize("kind", every_error(), ids=lambda kind: kind.__name__)
def test_every_error_has_a_section_that_names_it_and_says_what_to_do(kind: type[errors.FuseeError]) -> None:
    assert errors.BY_CODE[kind.code] is kind
    body = SECTIONS[kind.code]
    assert body.strip().startswith(f"`{kind.__name__}`.")
    assert re.search(r"\*\*What to do\.\*\* \S", body)


def test_there_is_no_section_for_a_code_that_nobody_raises() -> None:
    assert set(SECTIONS) - {"Failures"} == set(errors.BY_CODE)


def test_the_page_and_the_bounds_agree() -> None:
    for bound in (bounds.FAILURE_MESSAGE_CHARS_MAX, bounds.FAILURE_TRACEBACK_CHARS_MAX, bounds.FAILURE_NODES_MAX):
        assert f"{bound:,}" in SECTIONS["Failures"]
