"""What needs no server: help, version, wrong use, nobody there."""
from __future__ import annotations

import configparser
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
    (["serve", "d", "--shards", "99999"], "1<=x<=1024"),
    (["serve", "d", "--shards", "0"], "1<=x<=1024"),
    (["worker", "m", "--name", ""], "worker name is empty"),
    (["start"], "WORKFLOW"),
    (["frobnicate"], "frobnicate"),
    (["worker", "m", "--turn-timeout", "5ms"], "at least 100 ms"),
    (["start", "agent", '{"topic": "x"}'], """fusee-mp start agent my-id '{"topic": "x"}'"""),
    (["run", "agent", "[1, 2]"], "fusee-mp run agent my-id '[1, 2]'"),
    (["start", "agent", '"x"', "--deadline", "5s"], """fusee-mp start agent my-id '"x"'"""),
    (["update", "a", "budget", "-5"], "fusee-mp update a budget -- -5"),
    (["schedule", "describe", "-daily", "--json"], "fusee-mp schedule describe -- -daily"),
])
def test_wrong_use_is_code_2_and_says_what_is_wrong(offline: Cli, arguments: list[str], words: str) -> None:
    answer = offline(*arguments)
    assert (answer.code, answer.out) == (2, "")
    assert words in answer.err and "Traceback" not in answer.err


def test_an_id_that_looks_like_an_input_may_have_an_input_behind_it(offline: Cli) -> None:
    answer = offline("start", "agent", '{"odd": "but allowed"}', "null", "--address", "unix:/nowhere/at/all")
    assert answer.code == 3


def test_a_misspelt_option_is_told_the_right_one_and_nothing_of_values(offline: Cli) -> None:
    answer = offline("status", "a", "--adress", "x")
    assert answer.code == 2 and "--address" in answer.err and "--" + " " not in answer.err


def test_what_is_typed_behind_two_dashes_is_a_value(offline: Cli) -> None:
    assert offline("update", "--address", "unix:/nowhere/at/all", "a", "budget", "--", "-5").code == 3


INTERRUPTED = """
import os, runpy, signal, sys
from importlib.abc import MetaPathFinder
class Interrupts(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == {at!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupts())
sys.argv = ["fusee-mp", "count", "--address", "unix:/nowhere/at/all"]
runpy.run_module("fusee_mp.cli", run_name="__main__")
"""


@pytest.mark.parametrize("at", ["click", "fusee_mp.cli.main", "fusee_mp.cli.count", "fusee_mp.sdk.client"])
def test_ctrl_c_while_modules_are_loaded_is_quiet(at: str) -> None:
    program = INTERRUPTED.format(at=at)
    done = subprocess.run([sys.executable, "-c", program], check=False, cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr.strip()) == (130, "", "")


def test_the_installed_command_is_the_quiet_one() -> None:
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    assert "fusee-mp = fusee_mp.cli.__main__:run" in settings["options.entry_points"]["console_scripts"]


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
    assert f"no server answers at {address}: nobody listens there. Start one" in answer.err and "fusee-mp serve" in answer.err


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
