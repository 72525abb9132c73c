"""The tables of options are whole: every option of the code has its row, and no row is of one that there is not."""
from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path
from typing import get_args

from fusee_mp import Config, Engine, Retry
from fusee_mp.sdk.options import CallOptions
from fusee_mp.sdk.types import Status

FEATURES = Path(__file__).parents[2] / "docs" / "features"


def rows(page: str, section: str) -> list[str]:
    """The first cells of the tables under a heading."""
    text = (FEATURES / page).read_text("utf-8").split(f"\n## {section}\n")[1].split("\n## ")[0]
    return [name for line in text.splitlines() if (cell := re.match(r"\| (`.*?) \|", line)) for name in re.findall(r"`(\w+)`", cell[1])]


def test_every_field_of_config_has_its_row() -> None:
    assert rows("starting.md", "Fields of `Config`") == [field.name for field in dataclasses.fields(Config) if field.init]


def test_every_option_of_a_step_has_its_row() -> None:
    assert rows("steps.md", "Options") == list(CallOptions.__annotations__)


def test_every_field_of_retry_has_its_row_with_its_default() -> None:
    fields = [field for field in dataclasses.fields(Retry) if field.init]
    assert rows("steps.md", "Retrying") == [field.name for field in fields]
    text = (FEATURES / "steps.md").read_text("utf-8")
    for field in fields:
        shown = {"only": "all", "never": "none"}.get(field.name, f"`{field.default!r}`".replace("'", '"'))
        assert f"| `{field.name}` | {shown} |" in text


def test_every_status_has_its_row() -> None:
    assert rows("finding.md", "Statuses") == list(get_args(Status))


def test_every_option_of_a_start_has_its_row() -> None:
    options = [one.name for one in inspect.signature(Engine.start).parameters.values() if one.kind is one.KEYWORD_ONLY]
    assert rows("starting.md", "Options of `start` and `execute`") == options != []
