"""The command about limits, against a real server."""
from __future__ import annotations

import pytest

from tests.cli.harness import Cli


def test_limits_are_defined_shown_and_changed(cli: Cli) -> None:
    assert cli("limits", "--json").json == []
    shown = cli("limits", "mail", "--concurrent", "5", "--per-second", "2.5")
    assert shown.code == 0 and shown.out.splitlines()[1].split() == ["mail", "5", "2.5", "0", "0", "0"]
    cli("limits", "bank", "--concurrent", "1")
    assert [one["name"] for one in cli("limits", "--json").json] == ["bank", "mail"]
    assert cli("limits", "mail", "--per-second", "10", "--json").json == [
        {"name": "mail", "concurrent": 0, "per_second": 10.0, "in_use": 0, "waiting": 0, "most": 0},
    ]
    missing = cli("limits", "post")
    assert missing.code == 1 and 'no limit has the name "post"' in missing.err


@pytest.mark.parametrize("arguments", [("--concurrent", "3"), ("mail", "--concurrent", "many"), ("mail", "--concurrent", "-1"),
                                       ("mail", "--per-second", "-0.5"), ("mail", "--per-second", "nan"), ("mail", "--per-second", "inf")])
def test_a_limit_that_cannot_be_is_wrong_use(cli: Cli, arguments: tuple[str, ...]) -> None:
    answer = cli("limits", *arguments)
    assert answer.code == 2 and answer.err
