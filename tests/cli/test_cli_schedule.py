"""The commands about schedules, against a real server and worker."""
from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest

from tests.cli.harness import Cli, until


def described(cli: Cli, id: str) -> Any:
    return cli("schedule", "describe", id, "--json").json


def test_a_schedule_is_made_shown_and_deleted(cli: Cli) -> None:
    made = cli("schedule", "create", "nightly", "--workflow", "order", "--input", '{"item": "lamp"}', "--cron", "0 2 * * *",
               "--timezone", "Europe/Berlin", "--overlap", "buffer_one", "--gap", "shift", "--fold", "both", "--jitter", "1m",
               "--catch-up", "1h")
    assert (made.code, made.out) == (0, 'schedule "nightly" is set\n')
    facts = described(cli, "nightly")
    assert facts["workflow"] == "order" and facts["input"] == {"item": "lamp"} and facts["started"] == 0 and not facts["paused"]
    assert (facts["overlap"], facts["gap"], facts["fold"], facts["jitter"], facts["catch_up"]) == ("buffer_one", "shift", "both", 60, 3600)
    assert facts["next"] == facts["next_times"][0] and len(facts["next_times"]) == 5
    assert all(datetime.fromisoformat(at).hour == 2 for at in facts["next_times"])
    assert "0 2 * * * (Europe/Berlin)" in cli("schedule", "describe", "nightly").out
    assert "nightly" in cli("schedule", "list").out
    assert "nightly" in [each["id"] for each in cli("schedule", "list", "--json").json]
    assert cli("schedule", "delete", "nightly").code == 0
    answer = cli("schedule", "describe", "nightly", "--json")
    assert answer.code == 1 and json.loads(answer.err)["error"]["code"] == "not_found"


def test_a_schedule_starts_workflows_rests_and_is_filled_in(cli: Cli) -> None:
    cli("schedule", "create", "often", "--workflow", "order", "--input", '{"item": "lamp"}', "--every", "50ms")
    until(lambda: described(cli, "often")["started"] >= 2)
    assert cli("schedule", "pause", "often").out == 'schedule "often" is paused\n'
    paused = described(cli, "often")
    assert paused["paused"] and paused["next"] is None
    filled = cli("schedule", "backfill", "often", "2020-01-01T00:00:00Z", "2020-01-01T00:00:01+00:00", "--json").json
    assert filled == {"id": "often", "started": 21}
    run = cli("schedule", "trigger", "often").out.strip()
    assert cli("result", run, "--timeout", "20s").out.strip() == '"1 lamp, paid"'
    assert described(cli, "often")["started"] == paused["started"] + 22
    assert cli("schedule", "resume", "often").code == 0
    until(lambda: described(cli, "often")["started"] > paused["started"] + 22)
    cli("schedule", "delete", "often")


@pytest.mark.parametrize("arguments", [
    ("create", "s", "--workflow", "order"), ("create", "s", "--workflow", "order", "--every", "1s", "--cron", "* * * * *"),
    ("create", "s", "--workflow", "order", "--cron", "61 * * * *"), ("create", "s", "--workflow", "order", "--every", "soon"),
    ("create", "s", "--workflow", "order", "--every", "1s", "--timezone", "Mars/Base"), ("create", "s", "--every", "1s"),
    ("create", "s", "--workflow", "order", "--every", "1s", "--input", "{"), ("backfill", "s", "yesterday", "2020-01-01T00:00:00Z"),
    ("backfill", "s", "2020-01-01T00:00:00", "2020-01-01T00:00:00Z"), ("explode", "s"),
])
def test_wrong_use_is_told_before_a_server_is_asked(offline: Cli, arguments: tuple[str, ...]) -> None:
    answer = offline("schedule", *arguments)
    assert answer.code == 2 and answer.err
