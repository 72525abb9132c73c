"""The log as JSON lines, alone and of a whole server."""
from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path

from fusee_mp.logs import JsonLines
from tests.server.tree import PATIENCE_S


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


def test_every_line_of_a_server_with_json_is_an_object(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fusee_mp.cli", "serve", str(tmp_path / "data"), "--shards", "2", "--listen", "127.0.0.1:0",
               "--log-format", "json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None and "ready on" in server.stdout.readline()
        server.terminate()
        _, said = server.communicate(timeout=PATIENCE_S)
    found = [json.loads(each) for each in said.splitlines()]
    assert found and all(each["message"] and each["time"].endswith("Z") for each in found)
    assert {each["process"] for each in found} >= {"router"}
