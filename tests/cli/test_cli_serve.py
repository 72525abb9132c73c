"""The server as a command: its ready line, its signals, and what stops it from starting."""
from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.cli.harness import PATIENCE_S, ROOT, Cli, Running, running, serving, until
from tests.processes import is_alive


def test_one_ready_line_names_the_bound_addresses(tmp_path: Path) -> None:
    listeners = ("--listen=127.0.0.1:0", "--listen=127.0.0.1:0", f"--unix={tmp_path}/s")
    with running("serve", str(tmp_path / "data"), *listeners, "--shards=1") as server:
        line = server.line()
        found = re.fullmatch(rf"fusee-mp \S+ ready on 127\.0\.0\.1:(\d+) 127\.0\.0\.1:(\d+) unix:{tmp_path}/s \(pid {server.pid}\)", line)
        assert found and found[1] != found[2], line
        answer = server.stop()
        assert (answer.code, answer.out) == (0, "")


def test_the_ready_line_has_a_unix_socket_as_any_directory_can_name_it_and_behind_it_is_all_there_is_to_know(
    tmp_path: Path, offline: Cli,
) -> None:
    with running("serve", "data", "--listen=127.0.0.1:0", "--unix=s", "--shards=2", cwd=tmp_path) as server:
        line = server.line()
        assert f" unix:{tmp_path}/s (pid" in line
        shards = offline("shards", "--json", f"--address=unix:{tmp_path}/s").json["shards"]
        assert [shard["state"] for shard in shards] == ["ready", "ready"]
        assert all(psutil.pid_exists(shard["keeper_pid"]) for shard in shards)


def test_shard_processes_stay_on_the_processors_that_are_named(tmp_path: Path, offline: Cli) -> None:
    usable = sorted(os.sched_getaffinity(0))
    with serving(tmp_path / "data", f"--cores={usable[-1]}") as (_, address):
        shards = offline("shards", "--json", f"--address={address}").json["shards"]
        assert [os.sched_getaffinity(shard["pid"]) for shard in shards] == [{usable[-1]}] * 2


def test_the_log_level_holds_for_the_shard_processes_too(tmp_path: Path) -> None:
    with serving(tmp_path / "quiet", "--log-level=warning") as (server, address):
        with running("worker", "orders", f"--address={address}") as worker:
            worker.line()  # It leaves at the end of this block, which a shard process notes at the level of info.
        assert server.stop().err == ""


def test_a_port_in_use_is_named_with_what_to_do(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        answer = Running("serve", str(tmp_path / "data"), f"--listen=127.0.0.1:{port}").end()
    assert (answer.code, answer.out) == (1, "")
    assert f"port {port}" in answer.err and "is in use" in answer.err and "another port" in answer.err and "Traceback" not in answer.err


def test_a_directory_in_use_is_told_in_the_form_that_was_asked_for(tmp_path: Path) -> None:
    with serving(tmp_path / "data", shards=1):
        again = ("serve", str(tmp_path / "data"), "--listen=127.0.0.1:0")
        one = Running(*again, "--json").end()
        error = json.loads(one.err.splitlines()[-1])["error"]
        assert one.code == 1 and error["code"] == "storage" and "is in use" in error["message"]
        other = Running(*again, "--json", "--log-format", "json").end()
        said = [json.loads(line) for line in other.err.splitlines()]
        assert other.code == 1 and said[-1]["level"] == "critical" and said[-1]["code"] == "storage" and "is in use" in said[-1]["message"]


@pytest.mark.parametrize("options", [["--log-format=json", "--cores=x"], ["--log-format", "json", "--tls-cert=x"]])
def test_wrong_use_is_a_line_of_a_log_in_json(tmp_path: Path, options: list[str]) -> None:
    answer = Running("serve", str(tmp_path / "data"), *options).end()
    assert answer.code == 2 and json.loads(answer.err)["code"] == "usage", answer.err


@pytest.mark.parametrize("listens", [["--listen=127.0.0.1:PORT"], ["--listen=127.0.0.1:0", "--unix=/nowhere/at/all/s"]])
def test_a_server_that_cannot_listen_leaves_no_directory_behind(tmp_path: Path, listens: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        answer = Running("serve", str(tmp_path / "new" / "data"), *(word.replace("PORT", port) for word in listens)).end()
    assert (answer.code, list(tmp_path.iterdir())) == (1, []), answer.err


def test_a_server_that_cannot_listen_leaves_a_directory_that_was_there(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    assert Running("serve", str(tmp_path / "data"), "--listen=127.0.0.1:0", "--unix=/nowhere/at/all/s").end().code == 1
    assert list(tmp_path.iterdir()) == [tmp_path / "data"] and not list((tmp_path / "data").iterdir())


def test_a_unix_socket_may_be_in_the_new_directory(tmp_path: Path, offline: Cli) -> None:
    with serving(tmp_path / "data", f"--unix={tmp_path}/data/s", shards=1):
        assert offline("count", f"--address=unix:{tmp_path}/data/s").out == "0\n"


def test_a_directory_in_use_is_refused_and_names_who_has_it(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as (server, _):
        answer = Running("serve", str(tmp_path / "data"), "--listen=127.0.0.1:0").end()
        assert answer.code == 1 and f"in use by process {server.pid}" in answer.err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_in_order(tmp_path: Path, number: signal.Signals) -> None:
    with serving(tmp_path / "data") as (server, _):
        family = psutil.Process(server.pid).children(recursive=True)
        server.process.send_signal(number)
        assert server.end().code == 0
    until(lambda: not any(map(is_alive, family)))


@pytest.mark.parametrize("processes", [1, 2, 4, 6])
def test_ctrl_c_while_it_starts_ends_it_and_whatever_it_had_started(tmp_path: Path, processes: int) -> None:
    """G18: at the moment at which so many processes are there."""
    server = Running("serve", str(tmp_path / "data"), "--listen=127.0.0.1:0", "--shards=2")
    family = until(lambda: len(found := psutil.Process(server.pid).children(recursive=True)) >= processes and found)
    assert family
    server.process.send_signal(signal.SIGINT)
    assert server.end().code == 0
    until(lambda: not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in family))


def test_what_was_started_is_there_after_a_restart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for is_first in (True, False):
        with serving(tmp_path / "data") as (server, address), running("worker", "orders", f"--address={address}") as worker:
            worker.line()
            cli = Cli(capsys, address)
            if is_first:
                assert cli("start", "approval", "survivor", "--address", address).code == 0
                for process in [*psutil.Process(server.pid).children(recursive=True), psutil.Process(server.pid)]:
                    process.kill()
                server.end()
            else:
                assert cli("signal", "survivor", "approved", "true", "--address", address).code == 0
                assert cli("result", "survivor", "--address", address, "--json").json["result"] == "approved"


def test_a_server_that_is_to_die_with_its_parent_does(tmp_path: Path) -> None:
    # A parent that only starts the server, passes its line on, and waits to be killed.
    program = f"""
import os, subprocess, sys, time
server = subprocess.Popen([sys.executable, "-m", "fusee_mp.cli", "serve", {str(tmp_path / "data")!r}, "--listen=127.0.0.1:0", "--json",
                           f"--parent={{os.getpid()}}"], stderr=subprocess.DEVNULL)
time.sleep(600)
"""
    parent = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    family = [psutil.Process(json.loads(parent.stdout.readline())["pid"])]
    family += family[0].children(recursive=True)
    assert len(family) > 1
    parent.kill()
    parent.wait(PATIENCE_S)
    parent.stdout.close()
    until(lambda: not any(map(is_alive, family)))


def test_a_parent_that_is_gone_already_is_noticed(tmp_path: Path) -> None:
    answer = Running("serve", str(tmp_path / "data"), f"--parent={os.getppid()}").end()
    assert (answer.code, answer.out) == (0, "")
    assert not (tmp_path / "data").exists()
