"""The commands about what runs wait for: complete, pause, resume."""
from __future__ import annotations

from tests.cli.harness import Cli, until


def handed_out(cli: Cli, id: str) -> str:
    """The token of the run's completion, once its sender has it."""
    def look() -> str:
        pending = cli("describe", id, "--json").json["pending"]
        return str(pending[0]["progress"] or "") if pending else ""
    return until(look)


def test_complete_gives_a_run_its_value_once(cli: Cli) -> None:
    cli("start", "delivery", "delivery-1")
    token = handed_out(cli, "delivery-1")
    assert cli("complete", token, '"at the door"', "--json").json == {"id": "delivery-1"}
    assert cli("result", "delivery-1", "--timeout", "20s").out.strip() == '"at the door since Monday"'
    again = cli("complete", token, '"elsewhere"')
    assert again.code == 1 and "ended as ok" in again.err


def test_a_damaged_token_is_refused_without_asking_a_run(cli: Cli) -> None:
    answer = cli("complete", "fc1_nonsense")
    assert answer.code == 1 and "expected a token" in answer.err


def test_a_paused_run_says_why_and_goes_on_when_it_is_resumed(cli: Cli) -> None:
    cli("start", "delivery", "delivery-2")
    token = handed_out(cli, "delivery-2")
    assert cli("pause", "delivery-2", "for the night").code == 0
    cli("complete", token, '"in the garden"')
    shown = until(lambda: found if (found := cli("status", "delivery-2", "--json").json)["status"] == "paused" else None)
    assert shown is not None and shown["is_open"]
    assert "for the night" in cli("describe", "delivery-2").out
    assert cli("resume", "delivery-2").code == 0
    assert cli("result", "delivery-2", "--timeout", "20s").out.strip() == '"in the garden since Monday"'
