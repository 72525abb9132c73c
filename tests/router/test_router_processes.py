"""The life of the shard processes: started, restarted, given up, and never left behind."""
from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from fusee_mp.wire import messages as m
from fusee_mp.wire.preface import ConnectionKind, Preface
from tests.router.harness import Peer, Server, Worker, alive, serving, starting, until


def linked(server: Server, shards: int) -> list[dict[str, list[int]]]:
    """Every shard process's links, once each has an open one to every other."""

    def look() -> list[dict[str, list[int]]]:
        found = [server.known(shard)["links"] for shard in range(shards)]
        return found if all(len(links) == shards - 1 and all(is_open for _, is_open in links.values()) for links in found) else []

    return until(look)


def test_a_killed_shard_process_is_started_again_and_linked_anew_with_a_higher_generation(tmp_path: Path) -> None:
    with serving(tmp_path / "data", shards=3, ping_ms=100, revoke_ms=1000) as server:
        before = linked(server, 3)
        assert sorted(generation for links in before for generation, _ in links.values()) == [1, 1, 2, 2, 3, 3]
        descriptors, pid = server.descriptors(), server.shard(1)["pid"]
        os.kill(pid, signal.SIGKILL)
        until(lambda: server.shard(1)["state"] == "ready" and server.shard(1)["pid"] != pid)
        after = linked(server, 3)
        assert after[0]["1"][0] > 3 and after[0]["1"] == after[1]["0"] and after[2]["1"] == after[1]["2"]
        assert after[0]["2"] == before[0]["2"]
        assert "from 1 over" in str(until(lambda: [line for line in server.known(0)["heard"] if line.endswith(str(after[0]["1"][0]))]))
        assert server.shard(1)["restarts"] == 1 and server.shard(0)["restarts"] == 0
        assert f"process {pid} was killed by SIGKILL" in server.log
        until(lambda: server.descriptors() == descriptors)


def test_a_connection_waits_while_its_shard_process_is_started_again(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as server:
        pid = server.known(0)["pid"]
        server.misbehave(0, slow_ms=300)
        os.kill(pid, signal.SIGKILL)
        until(lambda: not psutil.pid_exists(pid))
        assert server.known(0)["pid"] != pid


def test_a_process_that_does_not_answer_is_killed_and_started_again(tmp_path: Path) -> None:
    with serving(tmp_path / "data", ping_ms=50, silence_ms=300) as server:
        pid = server.shard(0)["pid"]
        server.misbehave(0, deaf=True)
        until(lambda: f"process {pid} is killed: it has not answered for 0." in server.log)
        server.misbehave(0)
        until(lambda: server.shard(0)["state"] == "ready" and server.shard(0)["pid"] != pid)


def test_a_stopped_process_is_killed_and_started_again(tmp_path: Path) -> None:
    with serving(tmp_path / "data", ping_ms=50, silence_ms=300) as server:
        pid = server.shard(0)["pid"]
        os.kill(pid, signal.SIGSTOP)
        until(lambda: server.shard(0)["state"] == "ready" and server.shard(0)["pid"] != pid)


def test_a_shard_whose_store_does_not_follow_is_named(tmp_path: Path) -> None:
    with serving(tmp_path / "data", ping_ms=50, silence_ms=300) as server:
        assert until(lambda: server.shard(1)["applied_lsn"]) == 7
        server.misbehave(1, stuck=True)
        until(lambda: server.shard(1)["applied_lsn"] == 1)
        until(lambda: server.shard(1)["state"] == "stalled")
        server.misbehave(1)
        until(lambda: server.shard(1)["state"] == "ready")
        assert "makes no progress" in server.log and server.shard(1)["restarts"] == 0


def test_a_process_that_dies_again_and_again_ends_the_server_with_the_cause(tmp_path: Path) -> None:
    with starting(tmp_path / "data") as server:
        server.misbehave(1, exit=9, words="storage: the disk is on fire")
        assert server.wait() == 1
        assert "the process of shard 1 ended 5 times within 30 s" in server.log
        assert "exited with code 9 (storage: the disk is on fire)" in server.log
        assert (server.directory / "lives-1").read_text() == "5"


def test_a_process_that_dies_a_few_times_at_first_does_not_keep_the_server_from_becoming_ready(tmp_path: Path) -> None:
    with starting(tmp_path / "data") as server:
        server.misbehave(0, exit=1, times=3)
        server.ready()
        assert server.shard(0)["restarts"] == 3


@pytest.mark.parametrize(("words", "code", "said"), [
    ("damaged_log: shard-001/log/7.seg has a gap at LSN 12", 70, "shard-001/log/7.seg has a gap at LSN 12"),
    ("", 78, "exited with code 78"),
])
def test_a_cause_that_a_restart_does_not_mend_ends_the_server_at_once(tmp_path: Path, words: str, code: int, said: str) -> None:
    with starting(tmp_path / "data") as server:
        server.misbehave(1, exit=code, words=words)
        assert server.wait() == 1
        assert f"shard 1 cannot be served: {said}" in server.log
        assert (server.directory / "lives-1").read_text() == "1"


@pytest.mark.parametrize("fake", [True, False])
def test_nobody_is_left_when_the_router_is_killed(tmp_path: Path, fake: bool) -> None:
    with serving(tmp_path / "data", fake=fake) as server:
        left = server.descendants()
        assert len(left) >= 4, "two shard processes and what each has started"
        server.process.kill()
        server.wait()
        until(lambda: not alive(left))


def test_nothing_below_a_killed_shard_process_is_left(tmp_path: Path) -> None:
    with serving(tmp_path / "data", fake=False) as server:
        shard = psutil.Process(server.shard(0)["pid"])
        below = shard.children(recursive=True)
        assert below
        shard.kill()
        until(lambda: not alive(below))
        until(lambda: server.shard(0)["state"] == "ready" and server.shard(0)["restarts"] == 1)


def test_a_shard_process_is_told_everything_it_needs_and_inherits_nothing_else(tmp_path: Path) -> None:
    with serving(tmp_path / "data", segment_bytes=1 << 26, flush="inline", ping_ms=700, revoke_ms=2000) as server:
        known = server.known(1)
        told = known["options"]
        assert told.pop("control") > 2
        with Worker(server.address, "w", most=1) as worker:
            assert told == {
                "data": str(tmp_path / "data"), "shard": 1, "shards": 2, "parent": server.process.pid, "server": worker.welcome.server,
                "log": {"segment_bytes": 1 << 26, "flush": "inline", "awake_processes": 2}, "ping_ms": 700, "revoke_ms": 2000,
                "checkpoint_interval_ms": 30_000, "payload_bytes_max": 4 << 20, "core": None, "is_secured": False, "connections": 8192,
            }
        targets = {os.readlink(f"/proc/{known['pid']}/fd/{number}") for number in (0, 1)}
        assert targets == {"/dev/null"}
        assert os.getsid(known["pid"]) == known["pid"]


def test_connections_for_any_shard_pass_by_one_that_is_down(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as server:
        server.misbehave(0, slow_ms=60_000)
        os.kill(server.shard(0)["pid"], signal.SIGKILL)
        until(lambda: server.shard(0)["state"] != "ready")
        for _ in range(3):
            with Peer(server.address, Preface(ConnectionKind.CLIENT_ANY)) as peer:
                assert b'"shard": 1' in peer.ask(m.Call("known", b""), m.Reply).value
