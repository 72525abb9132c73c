"""The commands that reset and delete, and how a server is told what to keep."""
from __future__ import annotations

from tests.cli.harness import Cli


def test_reset_goes_on_before_a_step(cli: Cli) -> None:
    cli("run", "order", "reset-1", '{"item": "lamp"}')
    answer = cli("reset", "reset-1", "pay", "--json")
    assert answer.json == {"id": "reset-1", "step": "pay", "occurrence": 1}
    assert cli("result", "reset-1").out == '"1 lamp, paid"\n'
    assert cli("count", "--where", '{"id": "reset-1"}').out.strip() == "2"


def test_reset_to_a_step_that_is_not_there_says_which_are(cli: Cli) -> None:
    cli("run", "order", "reset-2", '{"item": "lamp"}')
    answer = cli("reset", "reset-2", "pya")
    assert answer.code == 1 and 'Its steps are "pay"' in answer.err
    assert cli("reset", "reset-2", "pay", "--occurrence", "0").code == 2


def test_delete_forgets_an_ended_run_and_refuses_an_open_one(cli: Cli) -> None:
    cli("run", "order", "delete-1", '{"item": "lamp"}')
    assert cli("delete", "delete-1").code == 0
    assert cli("status", "delete-1").code == 1
    cli("start", "approval", "delete-2")
    answer = cli("delete", "delete-2")
    assert answer.code == 1 and "has not ended" in answer.err
