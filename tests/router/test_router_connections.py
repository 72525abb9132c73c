"""Beginning connections: each goes where its preface says, and what is none is told so."""
from __future__ import annotations

import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from fusee_mp.bounds import ROUTER_GREETINGS_MAX
from fusee_mp.wire import messages as m
from fusee_mp.wire.preface import ConnectionKind, Preface
from tests.router.harness import ANY, CONTROL, Peer, Server, dial, serving, until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    base = tmp_path_factory.mktemp("server")
    with serving(base / "data", unix=str(base / "sock"), ping_ms=100, revoke_ms=1000) as server:
        yield server


def test_a_connection_for_a_shard_reaches_its_process_with_the_bytes_behind_the_preface(server: Server) -> None:
    for shard in (0, 1):
        with Peer(server.address, Preface(ConnectionKind.CLIENT_SHARD, shard).encode() + m.encode(m.Call("known", b""), 5)) as peer:
            assert f'"shard": {shard}' in peer.expect(m.Reply).value.decode()


def test_connections_for_any_shard_go_to_all_in_turn(server: Server) -> None:
    found = set()
    for _ in range(2):
        with Peer(server.address, ANY) as peer:
            found.add(peer.ask(m.Call("known", b""), m.Reply).value.partition(b'"shard": ')[2][:1])
    assert found == {b"0", b"1"}


def test_the_unix_socket_serves_as_the_tcp_port_does(server: Server) -> None:
    assert server.addresses[1].startswith("unix:")
    with Peer(server.addresses[1]) as peer:
        assert len(peer.ask(m.Status(), m.Status).facts["shards"]) == 2
    with Peer(server.addresses[1], ANY) as peer:
        assert peer.ask(m.Call("known", b""), m.Reply)


def test_a_preface_may_come_in_pieces(server: Server) -> None:
    with Peer(server.address, b"") as peer:
        peer.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in CONTROL.encode():
            peer.sock.sendall(bytes([byte]))
        assert peer.ask(m.Status(), m.Status)


def test_a_shard_that_does_not_exist_is_told_with_those_that_do(server: Server) -> None:
    with Peer(server.address, Preface(ConnectionKind.WORKER, 2)) as peer:
        assert peer.goodbye() == "the connection is for shard 2, and this server has shards 0 to 1"


@pytest.mark.parametrize(("sent", "said"), [
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500), "found a TLS handshake"),
    (b"SSH-2.0-OpenSSH_9.2p1\r\n", "found an SSH greeting"),
    (b"PROXY TCP4 1.2.3.4 1.2.3.4 5 6\r\n", "found a PROXY protocol header"),
    (b"\xf5fmp\r\n\x07\x00" + bytes(8), "expected protocol version 1, found 7"),
    (bytes(100_000), "found the bytes 00 00"),
])
def test_garbage_gets_one_goodbye_that_says_why_and_the_connection_ends(server: Server, sent: bytes, said: str) -> None:
    with Peer(server.address, sent) as peer:
        assert said in peer.goodbye()


@pytest.mark.parametrize("request_line", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"POST /api/runs HTTP/1.1\r\n\r\n" + bytes(5000)])
def test_an_http_request_gets_an_answer_that_says_what_the_port_is(server: Server, request_line: bytes) -> None:
    with dial(server.address) as sock:
        sock.sendall(request_line)
        answer = b"".join(iter(lambda: sock.recv(4096), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n") and f"Content-Length: {len(body)}".encode() in head
    assert body.count(b"\n") == 1 and b"fusee-mp protocol, not HTTP" in body


def test_descriptors_are_all_closed_after_a_thousand_connections_of_each_kind(tmp_path: Path) -> None:
    with serving(tmp_path / "data", ping_ms=100, revoke_ms=1000) as server:
        before = server.descriptors()
        in_shards = [server.known(shard)["descriptors"] for shard in (0, 1)]
        for start in (CONTROL.encode(), Preface(ConnectionKind.WORKER, 0).encode(), Preface(ConnectionKind.CLIENT_SHARD, 1).encode(),
                      ANY.encode(), b"GET / HTTP/1.0\r\n\r\n", bytes(16), CONTROL.encode()[:7], b""):
            for _ in range(20):
                peers = [dial(server.address) for _ in range(50)]
                for sock in peers:
                    sock.sendall(start)
                for sock in peers:
                    sock.close()
        until(lambda: server.descriptors() == before)
        # The one that asks is counted in both.
        until(lambda: [server.known(shard)["descriptors"] for shard in (0, 1)] == in_shards)


def test_half_prefaces_beyond_the_bound_make_the_oldest_go(server: Server) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 2 * ROUTER_GREETINGS_MAX)), hard))
    with Peer(server.address, b"\xf5fm") as oldest:
        others = []
        try:
            for _ in range(ROUTER_GREETINGS_MAX):
                sock = dial(server.address)
                sock.sendall(b"\xf5")
                others.append(sock)
            assert "have not said what they are for" in oldest.goodbye()
            assert server.status()["shards"]
        finally:
            for sock in others:
                sock.close()


def test_accepting_goes_on_after_descriptors_ran_out(tmp_path: Path) -> None:
    with serving(tmp_path / "data", shards=1, descriptors=64) as server:
        held = []
        try:
            for _ in range(100):
                held.append(dial(server.address))
            until(lambda: "accepting connections failed" in server.log)
        finally:
            for sock in held:
                sock.close()
        assert server.status()["shards"]
        assert server.known(0)
