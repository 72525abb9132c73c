"""What needs no server: help, version, wrong use, nobody there."""
from __future__ import annotations

import importlib
import json
import socket
import subprocess
import sys

import pytest

import fusee_mp
from fusee_mp.cli.main import COMMANDS
from tests.cli.harness import ROOT, Cli


def test_version_says_which(offline: Cli) -> None:
    assert offline("version").out.startswith(f"fusee-mp {fusee_mp.__version__} ")
    assert offline("version", "--json").json["fusee-mp"] == fusee_mp.__version__


def test_help_names_every_command_and_every_command_has_help(offline: Cli) -> None:
    out = offline("--help").out
    for name, text in COMMANDS.items():
        assert f"  {name}" in out
        assert text.split()[0] in offline(name, "--help").out


def test_every_command_speaks_json(offline: Cli) -> None:
    for name in COMMANDS:
        assert "--json" in offline(name, "--help").out, name


def test_every_command_has_a_module_of_its_name() -> None:
    for name in COMMANDS:
        assert importlib.import_module(f"fusee_mp.cli.{name}").command.name in (name, "command")


@pytest.mark.parametrize("arguments", [["version"], ["--help"], ["start", "--help"]])
def test_what_needs_no_server_loads_no_server(arguments: list[str]) -> None:
    program = f"""
import sys
from fusee_mp.cli.main import main
try:
    main({arguments!r})
except SystemExit:
    heavy = {{"asyncio", "uvloop", "sqlite3", "fusee_mp.runtime", "fusee_mp.sdk.client"}} & set(sys.modules)
    sys.exit(f"loaded {{heavy}}" if heavy else 0)
"""
    done = subprocess.run([sys.executable, "-c", program], check=False, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("arguments", "words"), [
    (["run", "order", "a", "{bad"], "expected JSON, found '{bad'"),
    (["run", "order", "a", "NaN"], "NaN is not JSON"),
    (["signal", "a", "approved", "yes"], "Text needs double quotes"),
    (["start", "order", "a", "1", "--attributes", "[1]"], "expected a JSON object"),
    (["start", "order", "a", "1", "--deadline", "soon"], "soon"),
    (["start", "order", "a", "1", "--on-running", "explode"], "explode"),
    (["start", "", "a"], "empty"),
    (["status", ""], "1 to 1024"),
    (["status", "a\0b"], "NUL"),
    (["list", "--where", '{"status": "odd"}'], "odd"),
    (["list", "--limit", "0"], "0"),
    (["status", "a", "--address", "nowhere:port"], "host:port"),
    (["status", "a", "--address", "host:1?colour=red"], "colour"),
    (["serve", "d", "--listen", "nonsense"], "HOST:PORT"),
    (["serve", "d", "--shards", "99999"], "1 to 1024"),
    (["start"], "WORKFLOW"),
    (["frobnicate"], "frobnicate"),
])
def test_wrong_use_is_code_2_and_says_what_is_wrong(offline: Cli, arguments: list[str], words: str) -> None:
    answer = offline(*arguments)
    assert (answer.code, answer.out) == (2, "")
    assert words in answer.err and "Traceback" not in answer.err


def test_wrong_use_with_json_is_json(offline: Cli) -> None:
    answer = offline("run", "order", "a", "{bad", "--json")
    assert (answer.code, json.loads(answer.err)["error"]["code"]) == (2, "usage")


@pytest.mark.parametrize("arguments", [
    ["status", "a"], ["start", "order"], ["run", "order"], ["result", "a"], ["describe", "a"], ["signal", "a", "b"], ["cancel", "a"],
    ["terminate", "a"], ["list"], ["count"], ["shards"], ["worker", "tests.cli.orders"], ["worker", "tests.cli.orders", "--processes", "2"],
])
def test_no_server_is_code_3_and_says_where_none_was_found(offline: Cli, arguments: list[str]) -> None:
    with socket.socket() as taken:  # Bound and not listening: nobody else gets the port, and nobody answers at it.
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        answer = offline(*arguments, "--address", address)
    assert (answer.code, answer.out) == (3, "")
    assert f"no server answers at {address}" in answer.err and "fusee-mp serve" in answer.err


def test_the_address_comes_from_the_environment_too(offline: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEE_ADDRESS", "unix:/nowhere/at/all")
    assert "unix:/nowhere/at/all" in offline("list").err
    monkeypatch.setenv("FUSEE_ADDRESS", "bad:port")
    assert offline("list").code == 2


def test_output_that_nobody_reads_any_more_is_no_traceback() -> None:
    command = subprocess.Popen([sys.executable, "-m", "fusee_mp.cli", "--help"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert command.stdout is not None and command.stderr is not None
    command.stdout.close()
    err = command.stderr.read()
    command.stderr.close()
    assert command.wait(30) in (0, 1) and err == b""
