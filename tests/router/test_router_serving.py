"""A server from start to stop: addresses, ports and sockets that cannot be had, signals, draining, exit codes."""
from __future__ import annotations

import os
import signal
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from fusee_mp.errors import Unavailable
from fusee_mp.router.binding import bind_tcp, bind_unix, bound_address
from fusee_mp.wire import messages as m
from tests.router.harness import ANY, Peer, Server, Worker, alive, serving, starting, until


def test_twenty_servers_on_port_zero_get_twenty_ports(tmp_path: Path) -> None:
    """G18"""
    with ExitStack() as stack:
        servers = [stack.enter_context(starting(tmp_path / f"data-{number}", shards=1)) for number in range(20)]
        addresses = {server.ready().address for server in servers}
        assert len(addresses) == 20
        for server in servers:
            assert server.shard(0)["state"] == "ready"


def test_a_server_that_is_stopped_right_after_its_start_is_gone_soon(tmp_path: Path) -> None:
    """G18"""
    with starting(tmp_path / "data", unix=str(tmp_path / "sock"), fake=False) as server:
        until(lambda: (tmp_path / "sock").exists())
        assert server.terminate() == 0
        assert not (tmp_path / "sock").exists()


def test_a_stopped_server_leaves_nothing_and_starts_again(tmp_path: Path) -> None:
    for _ in range(2):
        with serving(tmp_path / "data", unix=str(tmp_path / "sock"), fake=False) as server:
            left = server.descendants()
            assert server.terminate() == 0
            assert not alive(left) and not (tmp_path / "sock").exists()
            assert "ERROR" not in server.log and "WARNING" not in server.log


def test_a_draining_server_waits_for_leases_to_be_handed_back(tmp_path: Path) -> None:
    with serving(tmp_path / "data", unix=str(tmp_path / "sock")) as server, Worker(server.address, "w") as worker:
        worker.lease_assigned()
        until(lambda: server.shard(1)["worker"])
        server.process.send_signal(signal.SIGTERM)
        worker.expect(m.Drain)
        for address in server.addresses:
            with pytest.raises(OSError):
                until(lambda address=address: Peer(address).ended())
        worker.leases[0].send(m.Return())
        assert worker.leases[0].ended()
        assert worker.ask(m.Status(), m.Status).facts["state"] == "stopping"
        assert server.process.poll() is None
        worker.leases[1].send(m.Return())
        assert worker.goodbye() == "the server stops"
        assert server.wait() == 0


def test_a_worker_that_hands_nothing_back_is_waited_for_as_long_as_the_grace_lasts(tmp_path: Path) -> None:
    with serving(tmp_path / "data", grace_ms=300) as server, Worker(server.address, "w") as worker:
        worker.lease_assigned()
        until(lambda: server.shard(1)["worker"])
        assert server.terminate() == 0
        assert worker.leases[0].expect(m.Revoked).reason == "stopping"
        assert "2 shards were not handed back within 300 ms" in server.log


def test_a_second_signal_ends_the_server_at_once(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as server, Worker(server.address, "w") as worker:
        worker.lease_assigned()
        until(lambda: server.shard(1)["worker"])
        left = server.descendants()
        server.process.send_signal(signal.SIGINT)
        worker.expect(m.Drain)
        server.process.send_signal(signal.SIGINT)
        assert server.wait() == 1
        until(lambda: not alive(left))


def test_a_pending_connection_is_told_that_the_server_stops(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as server, Worker(server.address, "w") as worker, Peer(server.address, b"\xf5") as peer:
        worker.lease_assigned()
        until(lambda: server.shard(1)["worker"])
        server.process.send_signal(signal.SIGTERM)
        assert peer.goodbye() == "the server stops"


def test_a_directory_that_another_server_has_is_named(tmp_path: Path) -> None:
    with serving(tmp_path / "data", shards=1) as first, starting(tmp_path / "data", shards=1) as second:
        assert second.wait() == 1
        assert f"is in use by process {first.process.pid}" in second.log


def test_a_new_directory_gets_a_shard_per_core_and_an_old_one_keeps_what_it_has(tmp_path: Path) -> None:
    with serving(tmp_path / "data", shards=0) as server:
        assert len(server.status()["shards"]) == min(len(os.sched_getaffinity(0)), 8)
        server.terminate()
    with serving(tmp_path / "old", shards=3) as server:
        server.terminate()
    with serving(tmp_path / "old", shards=0) as server:
        assert len(server.status()["shards"]) == 3
    with starting(tmp_path / "old", shards=4) as server:
        assert server.wait() == 1 and "has 3 shards, and 4 were asked for" in server.log


@pytest.mark.parametrize(("listen", "said"), [
    (["127.0.0.1:{taken}"], "port {taken} of 127.0.0.1 is in use"),
    (["127.0.0.1:0", "127.0.0.1:{taken}"], "cannot listen on 127.0.0.1:{taken}"),
    (["no.such.host.invalid:0"], 'the host "no.such.host.invalid" does not resolve'),
    (["192.0.2.1:0"], "no interface of this machine has the address"),
])
def test_an_address_that_cannot_be_had_is_named_before_any_process_is_started(tmp_path: Path, listen: list[str], said: str) -> None:
    """G18"""
    with socket.create_server(("127.0.0.1", 0)) as taken, ExitStack() as stack:
        port = taken.getsockname()[1]
        server = stack.enter_context(starting(tmp_path / "data", listen=[address.format(taken=port) for address in listen]))
        assert server.wait() == 1
        assert said.format(taken=port) in server.log
        assert not list((tmp_path / "data").glob("lives-*"))


def test_several_addresses_are_all_listened_on_and_all_told(tmp_path: Path) -> None:
    with serving(tmp_path / "data", listen=["127.0.0.1:0", "127.0.0.2:0"], unix=str(tmp_path / "sock")) as server:
        assert [address.partition(":")[0] for address in server.addresses] == ["127.0.0.1", "127.0.0.2", "unix"]
        for address in server.addresses:
            with Peer(address, ANY) as peer:
                assert peer.ask(m.Call("known", b""), m.Reply)


def test_a_port_that_needs_a_privilege_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, os.strerror(13))

    monkeypatch.setattr(socket.socket, "bind", refuse)
    with pytest.raises(Unavailable, match="port 80 of 127.0.0.1 needs a privilege.*Use a port from 1024 on"):
        bind_tcp("127.0.0.1:80")


def test_a_name_with_addresses_of_two_kinds_is_listened_on_at_one_port() -> None:
    sockets = bind_tcp("localhost:0")
    try:
        assert len({sock.getsockname()[1] for sock in sockets}) == 1
        assert all(bound_address(sock).startswith(("127.0.0.1:", "[::1]:")) for sock in sockets)
    finally:
        for sock in sockets:
            sock.close()


def test_the_unix_socket_of_a_dead_server_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "sock"
    with serving(tmp_path / "data", unix=str(path)) as server:
        server.process.kill()
        server.wait()
    assert path.is_socket()
    with serving(tmp_path / "data", unix=str(path)) as server, Peer(server.addresses[1]) as peer:
        assert peer.ask(m.Status(), m.Status)
    server_socket = bind_unix(path)
    server_socket.close()
    assert not path.exists()


def test_the_unix_socket_of_a_live_server_and_other_files_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "sock"
    live = bind_unix(path)
    with pytest.raises(Unavailable, match="another server listens there"):
        bind_unix(path)
    assert path.is_socket()
    live.close()
    path.write_text("precious")
    with pytest.raises(Unavailable, match="a file that is no socket is there"):
        bind_unix(path)
    assert path.read_text() == "precious"
    with pytest.raises(Unavailable, match="No such file or directory"):
        bind_unix(tmp_path / "missing" / "sock")


def test_a_server_does_not_remove_the_unix_socket_of_its_successor(tmp_path: Path) -> None:
    path = tmp_path / "sock"
    first = bind_unix(path)
    path.unlink()
    second = bind_unix(path)
    first.close()
    assert path.is_socket()
    second.close()


def test_a_failing_server_asks_its_workers_to_hand_back_before_it_ends(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as server, Worker(server.address, "w") as worker:
        worker.lease_assigned()
        until(lambda: server.shard(1)["worker"])
        server.misbehave(0, exit=78, words="damaged_log: gone")
        os.kill(server.shard(0)["pid"], signal.SIGKILL)
        while not isinstance(worker.expect(m.Message), m.Drain):
            pass
        worker.leases[1].send(m.Return())
        assert server.wait() == 1
        assert "fusee-mp: shard 0 cannot be served: gone" in server.log


def test_an_idle_server_costs_next_to_nothing(tmp_path: Path) -> None:
    with serving(tmp_path / "data", ping_ms=20, revoke_ms=1000) as server:
        assert ticks_of(server) < 25, "hundredths of a second, for what is fifty seconds of an idle server"


def ticks_of(server: Server) -> int:
    """The processor time of the router, in hundredths of a second, over 50 ticks."""

    def used() -> int:
        fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    with Peer(server.address) as peer:
        peer.ask(m.Ping(1), m.Pong)
        before = used()
        for _ in range(50):
            peer.sock.recv(4096)
            peer.send(m.Pong(0))
    return used() - before
