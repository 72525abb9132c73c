"""Where a connection waits while its shard process is down, in this process and with time made by hand."""
from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable

import pytest

from fusee_mp.bounds import ROUTER_FAREWELLS_MAX, ROUTER_GREETING_MS, ROUTER_WAITING_MAX, ROUTER_WAITING_MS
from fusee_mp.router.dispatch import Dispatch
from fusee_mp.router.greeting import Greetings
from fusee_mp.router.links import Links
from fusee_mp.security.farewell import Farewells
from fusee_mp.wire import messages as m
from fusee_mp.wire.frames import decode_frame
from fusee_mp.wire.preface import ConnectionKind, Preface


class Shards:
    """Takes sockets for the shards that are up, and closes them."""

    def __init__(self) -> None:
        self.up: set[int] = set()
        self.taken: list[tuple[int, bytes]] = []

    def adopt(self, shard: int, preface: bytes, sock: socket.socket) -> bool:
        if shard in self.up:
            self.taken.append((shard, preface))
            sock.close()
        return shard in self.up


def in_loop(act: Callable[[Dispatch, Shards, Farewells], None]) -> None:
    """Run with everything in place, and see to it that no descriptor stays open."""

    async def run() -> None:
        before = len(os.listdir("/proc/self/fd"))
        shards, farewells = Shards(), Farewells(asyncio.get_running_loop())
        dispatch = Dispatch(3, shards.adopt, farewells)
        act(dispatch, shards, farewells)
        dispatch.close("over")
        farewells.close()
        assert len(os.listdir("/proc/self/fd")) == before

    asyncio.run(run())


def goodbye(peer: socket.socket) -> str:
    with peer:
        peer.settimeout(10)
        message = m.decode(decode_frame(b"".join(iter(lambda: peer.recv(4096), b""))))
    assert isinstance(message, m.Goodbye)
    return message.reason


def test_connections_that_wait_are_handed_over_in_order_when_their_shard_is_up() -> None:
    def act(dispatch: Dispatch, shards: Shards, farewells: Farewells) -> None:
        peers = [socket.socketpair() for _ in range(4)]
        for (mine, _), shard, preface in zip(peers, (1, 2, None, 1), (b"a", b"b", b"c", b"d")):
            dispatch.take(mine, shard, preface)
        shards.up = {1}
        dispatch.retry()
        assert shards.taken == [(1, b"a"), (1, b"c"), (1, b"d")]
        shards.up = {2}
        dispatch.tick(1)
        assert shards.taken[3:] == [(2, b"b")]
        for _, other in peers:
            other.close()

    in_loop(act)


def test_a_connection_that_waited_too_long_is_told_so() -> None:
    def act(dispatch: Dispatch, shards: Shards, farewells: Farewells) -> None:
        (mine, other), (late, later) = socket.socketpair(), socket.socketpair()
        dispatch.take(mine, 0, b"")
        dispatch.tick(ROUTER_WAITING_MS - 1)
        dispatch.take(late, None, b"")
        dispatch.tick(1)
        assert goodbye(other) == "the process of shard 0 is being started: within 5 s it did not come up. Try again later"
        dispatch.tick(ROUTER_WAITING_MS - 1)
        assert "a shard process is being started" in goodbye(later)

    in_loop(act)


def test_no_more_than_the_bound_wait() -> None:
    def act(dispatch: Dispatch, shards: Shards, farewells: Farewells) -> None:
        peers = [socket.socketpair() for _ in range(ROUTER_WAITING_MAX + 1)]
        for mine, _ in peers:
            dispatch.take(mine, 0, b"")
        assert "connections wait already" in goodbye(peers[-1][1])
        dispatch.close("the server stops")
        assert goodbye(peers[0][1]) == "the server stops"
        late, later = socket.socketpair()
        dispatch.take(late, 0, b"")
        assert goodbye(later) == "the server stops"
        for _, other in peers:
            other.close()

    in_loop(act)


def test_a_peer_that_does_not_close_after_its_goodbye_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusee_mp.security.farewell.LINGER_MS", 100)

    async def run() -> None:
        farewells = Farewells(asyncio.get_running_loop())
        peers = [socket.socketpair() for _ in range(ROUTER_FAREWELLS_MAX + 1)]
        for mine, _ in peers:
            farewells.goodbye(mine, "no")
        assert peers[0][0].fileno() == -1, "the oldest gave way"
        assert peers[1][0].fileno() != -1
        assert goodbye(peers[1][1]) == "no", "with the end of the stream right behind it"
        async with asyncio.timeout(10):
            while any(mine.fileno() != -1 for mine, _ in peers):
                await asyncio.sleep(0.01)
        for _, other in peers:
            other.close()

    asyncio.run(run())


def test_no_byte_behind_the_preface_is_read() -> None:
    async def run() -> None:
        greeted: asyncio.Future[tuple[socket.socket, Preface, bytes]] = asyncio.get_running_loop().create_future()
        greetings = Greetings(asyncio.get_running_loop(), lambda *what: greeted.set_result(what), Farewells(asyncio.get_running_loop()))
        (mine, other), preface = socket.socketpair(), Preface(ConnectionKind.CLIENT_SHARD, 2)
        mine.setblocking(False)
        other.sendall(preface.encode()[:7])
        greetings.add(mine)
        other.sendall(preface.encode()[7:] + b"the first frame")
        async with asyncio.timeout(10):
            sock, found, data = await greeted
        assert (found, data, sock.recv(100)) == (preface, preface.encode(), b"the first frame")
        sock.close()
        other.close()

    asyncio.run(run())


@pytest.mark.parametrize(("sent", "found"), [(b"", "found none"), (b"GET ", "found 4 (47 45 54 20)")])
def test_a_peer_that_does_not_say_what_it_wants_is_told_what_was_expected(sent: bytes, found: str) -> None:
    async def run() -> None:
        farewells = Farewells(asyncio.get_running_loop())
        greetings = Greetings(asyncio.get_running_loop(), lambda *greeted: pytest.fail("it has no preface"), farewells)
        mine, other = socket.socketpair()
        mine.setblocking(False)
        other.sendall(sent)
        greetings.add(mine)
        greetings.tick(ROUTER_GREETING_MS - 1)
        greetings.tick(1)
        assert goodbye(other) == f"expected a preface of 16 bytes within 10 s, {found}"
        farewells.close()

    asyncio.run(run())


def test_links_that_could_not_be_made_are_made_later_and_leave_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[int, int, int, int]] = []

    def send(shard: int, message: m.Message, descriptors: tuple[int, ...]) -> None:
        assert isinstance(message, m.Ring)
        sent.append((shard, message.shard, message.generation, len(descriptors)))
        for descriptor in descriptors:
            os.close(descriptor)

    before = len(os.listdir("/proc/self/fd"))
    links = Links(send)  # type: ignore[arg-type]
    links.up(2)
    with monkeypatch.context() as patch:
        patch.setattr(socket, "socketpair", no_descriptors)
        links.up(0)
    assert sent == []
    links.link()
    assert sent == [(0, 2, 2, 3), (2, 0, 2, 3)]
    links.down(2)
    links.up(2)
    assert sent[2:] == [(0, 2, 3, 3), (2, 0, 3, 3)]
    assert len(os.listdir("/proc/self/fd")) == before


def no_descriptors(*_: object) -> int:
    raise OSError(24, os.strerror(24))
