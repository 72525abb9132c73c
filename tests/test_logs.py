"""The log as JSON lines, alone and of a whole server."""
from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

import psutil

from fusee_mp.logs import JsonLines
from tests.cli.harness import running, serving


def line(**facts: object) -> dict[str, object]:
    return json.loads(JsonLines("router").format(logging.makeLogRecord(facts)))  # type: ignore[no-any-return]


def test_a_line_has_its_message_and_what_it_was_made_of() -> None:
    made = line(name="fusee_mp.router", levelname="INFO", msg="shard %d is held by %s", args=(3, "ann"), created=0.25, epoch=7)
    assert made == {
        "time": "1970-01-01T00:00:00.250Z", "level": "info", "process": "router", "logger": "fusee_mp.router",
        "message": "shard 3 is held by ann", "template": "shard %d is held by %s", "args": [3, "ann"], "epoch": 7,
    }


def test_values_that_are_no_json_and_tracebacks_are_text() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        made = line(msg="failed: %s", args=(Path("/x"),), levelname="ERROR", exc_info=sys.exc_info(), place=Path("/y"))
    assert made["message"] == "failed: /x" and made["args"] == ["/x"] and made["place"] == "/y"
    assert "ValueError: two" in str(made["exception"])


def test_every_line_of_a_server_and_its_workers_with_json_is_an_object(tmp_path: Path) -> None:
    """Of all their processes, and each names the one that it is of."""
    with serving(tmp_path / "data", "--log-format=json") as (server, address):
        with running("worker", "orders", f"--address={address}", "--processes=2", "--log-format=json") as workers:
            workers.line(), workers.line()
            psutil.Process(workers.pid).children()[0].kill()
            workers.line()
            told = workers.stop().err
        said = [json.loads(each) for each in (server.stop().err + told).splitlines()]
    assert all(each["message"] and each["time"].endswith("Z") and each["level"] for each in said)
    spoke = {each["process"].rstrip("0123456789") for each in said}
    assert {"router", "shard-", "supervisor"} <= spoke <= {"router", "shard-", "supervisor", "worker-"}
    assert any(each.get("template") == "shard %d: the lease of %s (epoch %d) ended: %s" for each in said)
