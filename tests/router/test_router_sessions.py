"""Control connections: joining, leases handed out and taken back, liveness, and questions about the server."""
from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

import fusee_mp
from fusee_mp.bounds import CONTROL_FRAME_MS, CONTROL_UNREAD_BYTES_MAX
from fusee_mp.router.leases import LATE, REPLACED
from fusee_mp.router.sessions import Session
from fusee_mp.security.token import UNASKED
from fusee_mp.wire import messages as m
from fusee_mp.wire.frames import FrameDecoder, encode_frame
from fusee_mp.wire.preface import ConnectionKind, Preface
from fusee_mp.wire.unfinished import Unfinished
from fusee_mp.wire.unread import Unread
from tests.router.harness import Peer, Server, Worker, serving, until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("server") / "data", shards=4, ping_ms=100, revoke_ms=1000) as server:
        yield server


@pytest.fixture(autouse=True)
def nobody_is_left(server: Server) -> Iterator[None]:
    yield
    until(lambda: not server.status()["workers"] and not any(shard["worker"] or shard["assigned"] for shard in server.status()["shards"]))


def test_a_worker_is_welcomed_and_assigned_what_is_free(server: Server) -> None:
    with Worker(server.address, "w") as worker:
        assert (worker.welcome.shards, worker.welcome.ping_ms, worker.welcome.revoke_ms) == (4, 100, 1000)
        assert worker.welcome.server and worker.welcome.features == 0
        assert worker.lease_assigned() == [0, 1, 2, 3]
        assert [until(lambda shard=shard: server.shard(shard)["worker"]) for shard in range(4)] == ["w/1"] * 4


def test_two_workers_with_a_bound_of_two_hold_two_each_and_the_third_waits(server: Server) -> None:
    with Worker(server.address, "a", most=2) as a, Worker(server.address, "b", most=2) as b, Worker(server.address, "c", most=2) as c:
        assert a.lease_assigned() == [0, 1] and b.lease_assigned() == [2, 3]
        until(lambda: all(shard["worker"] for shard in server.status()["shards"]))
        c.send(m.Ping(9))
        assert c.expect(m.Pong).stamp == 9, "a standby hears of nothing else"
        a.__exit__(None, None, None)
        while len(c.leases) < 2:
            c.lease_assigned()
        assert sorted(c.leases) == [0, 1]


def test_a_new_instance_of_a_worker_takes_over_at_once_and_the_old_one_is_told(server: Server) -> None:
    with Worker(server.address, "w", "old") as old, Worker(server.address, "standby") as standby:
        assert old.lease_assigned() == [0, 1, 2, 3]
        until(lambda: all(shard["worker"] == "w/old" for shard in server.status()["shards"]))
        with Worker(server.address, "w", "new") as new:
            assert new.lease_assigned() == [0, 1, 2, 3]
            assert [old.expect(m.Revoke).shard for _ in range(4)] == [0, 1, 2, 3]
            assert old.goodbye() == REPLACED
            assert old.leases[2].expect(m.Revoked).reason == REPLACED
            assert until(lambda: [shard["epoch"] for shard in server.status()["shards"] if shard["worker"] == "w/new"])
            with Peer(server.address) as late:
                late.send(m.Hello("w", "old", []))
                assert isinstance(late.expect(m.Welcome), m.Welcome)
                assert late.goodbye() == REPLACED
        assert set(standby.assigned())


def test_leases_outlive_the_session_and_belong_to_it_again_when_the_worker_is_back(server: Server) -> None:
    with Worker(server.address, "w") as worker:
        worker.lease_assigned()
        until(lambda: all(shard["worker"] == "w/1" for shard in server.status()["shards"]))
        worker.sock.close()
        until(lambda: not server.status()["workers"])
        assert [shard["worker"] for shard in server.status()["shards"]] == ["w/1"] * 4
        with Worker(server.address, "w"):
            assert until(lambda: server.status()["workers"])[0]["held"] == [0, 1, 2, 3]


def test_a_worker_that_drains_gets_nothing_back_of_what_it_returns(server: Server) -> None:
    with Worker(server.address, "w") as worker:
        worker.lease_assigned()
        until(lambda: server.shard(3)["worker"])
        worker.send(m.Drain())
        for shard, lease in worker.leases.items():
            lease.send(m.Return())
            worker.send(m.Released(shard))
        until(lambda: not any(shard["worker"] for shard in server.status()["shards"]))
        with Worker(server.address, "next") as other:
            assert sorted(other.assigned()) == [0, 1, 2, 3]
        worker.send(m.Ping(1))
        assert worker.expect(m.Pong)


def test_a_silent_worker_is_closed_after_a_while_and_what_it_had_not_leased_goes_on(server: Server) -> None:
    with Worker(server.address, "silent") as silent, Worker(server.address, "other") as other:
        assert silent.assigned() == [0, 1, 2, 3]
        assert other.assigned() == [0, 1, 2, 3], "it answers PING while it waits, and the silent one does not"
        heard = [m.decode(frame) for frame in FrameDecoder().feed(b"".join(iter(lambda: silent.sock.recv(4096), b"")))]
        assert isinstance(heard[-1], m.Goodbye) and heard[-1].reason.startswith("nothing was heard for 1.")
        assert m.Revoke(0, LATE) not in heard


def test_time_in_which_the_router_was_held_up_is_nobodys_silence(server: Server) -> None:
    with Worker(server.address, "w") as worker:
        worker.lease_assigned()
        os.kill(server.process.pid, signal.SIGSTOP)
        with pytest.raises(TimeoutError):
            worker.sock.settimeout(1.5)
            while worker.sock.recv(4096):
                pass
        os.kill(server.process.pid, signal.SIGCONT)
        worker.sock.settimeout(30)
        worker.send(m.Ping(3))
        assert worker.expect(m.Pong).stamp == 3


def test_a_shard_whose_process_ends_is_assigned_again(server: Server) -> None:
    with Worker(server.address, "w") as worker:
        worker.lease_assigned()
        until(lambda: server.shard(2)["worker"])
        os.kill(server.shard(2)["pid"], signal.SIGKILL)
        assert worker.assigned() == [2]
        assert worker.leases[2].ended()
        assert worker.lease(2).epoch == 1


def test_status_says_what_is_known_of_shards_and_workers(server: Server) -> None:
    with Worker(server.address, "w", most=1, workflows=("checkout",)) as worker:
        worker.lease_assigned()
        facts = until(lambda: server.status() if server.shard(0)["worker"] else None)
        until(lambda: server.shard(0)["durable_lsn"] == 7)
        assert facts["server"] == worker.welcome.server and facts["version"] == fusee_mp.__version__ and facts["state"] == "serving"
        first = server.shard(0)
        assert first["state"] == "ready" and first["worker"] == "w/1" and first["epoch"] >= 1
        assert os.path.exists(f"/proc/{first['pid']}") and os.path.exists(f"/proc/{first['keeper_pid']}")
        assert {"shard", "durable_lsn", "applied_lsn", "restarts", "age_ms", "assigned"} <= set(first)
        assert facts["workers"] == [{
            "worker": "w", "instance": "1", "held": [0], "assigned": [], "max_shards": 1, "workflows": ["checkout"],
            "workflows_left_out": 0, "draining": False,
        }]
        assert worker.ask(m.Status(), m.Status).facts["workers"]


@pytest.mark.parametrize(("message", "said"), [
    (m.Hello("", "1", []), "rejected: worker name is empty"),
    (m.Hello("w", "1", [f"{number}" for number in range(1001)]), "a worker has at most 1,000 workflows, this one has 1,001"),
    (m.Hello("w", "1", ["\0"]), "workflow name '\\x00' has a NUL"),
    (m.Hello("w", "1/2", []), "an instance without a slash"),
    (m.Hello("w" * 511, "12", []), "at most 512 bytes together, these have 513"),
    (m.Drain(), "only a worker says that: say HELLO first"),
    (m.Lacking(0, ["x"]), "only a worker says that: say HELLO first"),
    (m.Released(0), "only a worker says that: say HELLO first"),
    (m.Lease("w", "1", 0), "a control connection takes no LEASE"),
    (m.Adopt(b""), "a control connection takes no ADOPT"),
])
def test_what_a_control_connection_does_not_take_ends_it_with_the_reason(server: Server, message: m.Message, said: str) -> None:
    with Peer(server.address) as peer:
        peer.send(message)
        assert said in peer.goodbye()


@pytest.mark.parametrize("again", [m.Hello("x", "1", []), m.Released(4), m.Lacking(4, ["x"])])
def test_what_a_worker_may_not_say_ends_its_session_with_the_reason(server: Server, again: m.Message) -> None:
    with Worker(server.address, "x", most=1) as worker:
        worker.assigned()
        worker.send(again)
        assert "HELLO once" in (reason := worker.goodbye()) or "this server has 4 shards" in reason


@pytest.mark.parametrize("data", [
    b"\xff" * 40, encode_frame(16, b"\x91\x05"), encode_frame(16, b"garbage"), b"\x00\x00\x7f\x00" + bytes(60),
])
def test_damaged_frames_end_a_session_with_the_reason_and_no_other(server: Server, data: bytes) -> None:
    with Worker(server.address, "w", most=1) as worker:
        worker.assigned()
        with Peer(server.address) as peer:
            peer.sock.sendall(data)
            assert peer.goodbye()
        assert worker.ask(m.Status(), m.Status)


def test_a_frame_of_a_later_version_is_skipped(server: Server) -> None:
    with Peer(server.address) as peer:
        peer.sock.sendall(encode_frame(250, b"whatever"))
        assert peer.ask(m.Status(), m.Status)


def test_a_peer_that_asks_and_does_not_read_is_ended(tmp_path: Path) -> None:
    with serving(tmp_path / "data", ping_ms=100, revoke_ms=60_000) as server, Peer(server.address) as peer:
        question = m.encode(m.Status(), 1) * 1000
        with pytest.raises(OSError):
            peer.sock.settimeout(20)
            while True:
                peer.sock.sendall(question)
        assert server.status()["shards"]


def test_connections_of_a_worker_go_to_their_shard(server: Server) -> None:
    with Worker(server.address, "w") as worker, Peer(server.address, Preface(ConnectionKind.WORKER, 1)) as lease:
        worker.assigned()
        assert lease.ask(m.Lease("w", "1", 1), m.Granted)
        until(lambda: server.shard(1)["worker"] == "w/1")


def test_a_frame_that_trickles_on_without_end_ends_its_session() -> None:
    """Any byte is a sign of life: without a time of its own a frame could be held for ever."""

    async def body() -> None:
        lost: list[str] = []
        bounds = Unfinished(1 << 20), Unread(1 << 20)
        session = Session(1, UNASKED, m.Welcome("s", 1, 1_000, 5_000), Nobody(), lambda session: lost.append("lost"), *bounds)  # type: ignore[arg-type]
        ours, theirs = socket.socketpair()
        await asyncio.get_running_loop().connect_accepted_socket(lambda: session, ours)
        frame = m.encode(m.Hello("w", "1", ["a" * 100] * 10))
        for at in range(CONTROL_FRAME_MS // 1_000):
            assert session.is_open, at
            session.data_received(frame[at:at + 1])
            session.heard_at += at + 1
            session.tick(1_000, at)
        assert not session.is_open
        theirs.setblocking(False)
        said = await asyncio.get_running_loop().sock_recv(theirs, 1 << 16)
        frames = FrameDecoder().feed(said)
        assert m.decode(frames[-1]) == m.Goodbye("a frame was not finished within 30 s")
        theirs.close()
        await asyncio.sleep(0.01)
        assert lost == ["lost"]

    asyncio.run(body())


class Nobody:
    """No desk."""


def test_those_who_ask_and_do_not_read_hold_a_bounded_amount_of_memory_together(tmp_path: Path) -> None:
    """Answers of about a MiB, to thirty who have asked for eight each."""
    with serving(tmp_path / "data", shards=1, ping_ms=60_000, revoke_ms=300_000) as server, ExitStack() as stack:
        worker = stack.enter_context(Peer(server.address))
        worker.ask(m.Hello("w", "1", [f"{number:04}" + "x" * 900 for number in range(1_000)]), m.Welcome)
        router = psutil.Process(server.process.pid)
        assert server.status()["workers"]
        before = router.memory_info().rss
        deaf = [stack.enter_context(Peer(server.address)) for _ in range(30)]
        for peer in deaf:
            peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            peer.sock.sendall(m.encode(m.Status(), 1) * 8)
        until(lambda: len(router.net_connections("tcp")) < len(deaf))  # some of them were ended
        assert server.status()["workers"] and router.memory_info().rss - before < 2 * CONTROL_UNREAD_BYTES_MAX
