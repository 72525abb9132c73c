"""The door by itself: times, bounds, who gives way. Real sockets, short times."""
from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from contextlib import suppress
from pathlib import Path

import pytest
import uvloop

from fusee_mp import bounds
from fusee_mp.errors import Rejected
from fusee_mp.security.caller import reach
from fusee_mp.security.credentials import Credentials
from fusee_mp.security.crowd import Crowd, host_of
from fusee_mp.security.door import CROWDED, NO_TOKENS, Door, Entry
from fusee_mp.security.farewell import Farewells
from fusee_mp.security.keys import KeyFiles, Keys
from fusee_mp.security.refusals import Refusals
from fusee_mp.security.token import UNASKED, Scope, Token
from fusee_mp.security.turns import Turns
from fusee_mp.wire import messages as m
from fusee_mp.wire.frames import FrameDecoder
from fusee_mp.wire.preface import ConnectionKind, Preface
from tests.security.certificates import Authority, write_tokens

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]
ANY = Preface(ConnectionKind.CLIENT_ANY).encode()
PING = m.encode(m.Ping(1))
FIRST = m.encode(m.ClientHello("c" * 1000))


class In(asyncio.Protocol):
    """What is behind the door: answers its first bytes with how many they were."""

    def __init__(self, house: House) -> None:
        self._house = house

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, object)
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]
        self._house.inside.append(self)

    def data_received(self, data: bytes) -> None:
        self._transport.write(m.encode(m.Pong(len(data))))

    def connection_lost(self, exc: Exception | None) -> None:
        self._house.inside.remove(self)

    def leave(self) -> None:
        self._transport.abort()


class Outside(asyncio.Protocol):
    """Who connects: waits for the first bytes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        self.heard: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self.heard.set_result(data)


class House:
    """A door with a listener before it."""

    def __init__(self, keys: Keys | None = None, most: int = 4096, room: int = 1000) -> None:
        self.loop = asyncio.get_running_loop()
        self.inside: list[In] = []
        self.tokens: list[Token] = []
        self.farewells = Farewells(self.loop)
        self.door = Door(self.loop, self.farewells, logging.getLogger("door"), keys)
        self._entry = Entry(self._make, lambda: "the house is full" if len(self.inside) >= room else "", Scope.READ, None, most)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._outside: list[socket.socket] = []

    def _make(self, token: Token) -> In:
        self.tokens.append(token)
        return In(self)

    async def knock(self, host: str = "127.0.0.1") -> socket.socket:
        """A connection from this address, its end outside; the other is at the door."""
        outside = socket.socket()
        outside.bind((host, 0))
        outside.connect(self._listening.getsockname())
        inner, _ = self._listening.accept()
        inner.setblocking(False)
        outside.setblocking(False)
        self._outside.append(outside)
        self.door.admit(inner, ANY, self._entry)
        await asyncio.sleep(0)
        return outside

    @property
    def port(self) -> int:
        return int(self._listening.getsockname()[1])

    async def open_once(self) -> None:
        """Let one in who connects by itself."""
        self._listening.setblocking(False)
        inner, _ = await self.loop.sock_accept(self._listening)
        assert await self.loop.sock_recv(inner, len(ANY)) == ANY
        self.door.admit(inner, ANY, self._entry)

    async def told(self, outside: socket.socket) -> list[m.Message]:
        """Everything that comes until the end."""
        decoder, said = FrameDecoder(), []
        with suppress(ConnectionResetError):  # It was ended with bytes of ours unread; what it said came before that.
            async with asyncio.timeout(10):
                while data := await self.loop.sock_recv(outside, 4096):
                    said += [m.decode(frame) for frame in decoder.feed(data)]
        return said

    async def ended(self, outside: socket.socket) -> str:
        """Why it was turned away."""
        last = (await self.told(outside))[-1]
        assert isinstance(last, m.Goodbye)
        return last.reason

    async def first(self, outside: socket.socket) -> m.Message:
        async with asyncio.timeout(10):
            return m.decode(FrameDecoder().feed(await self.loop.sock_recv(outside, 4096))[0])

    async def close(self) -> None:
        self.door.close("the server stops")
        for one in list(self.inside):
            one.leave()
        self.farewells.close()
        self._listening.close()
        for outside in self._outside:
            outside.close()
        async with asyncio.timeout(10):
            while self.inside:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.01)


@pytest.fixture(params=LOOPS, ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    for name in ("DOOR_TLS_MS", "DOOR_PROOF_MS", "DOOR_GREETING_MS"):
        monkeypatch.setattr(bounds, name, 200)

    def run(body) -> None:  # type: ignore[no-untyped-def]
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(body)

    return run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("door")
    Authority(folder).issue("server")
    write_tokens(folder)
    return folder


@pytest.fixture(scope="module")
def keys(folder: Path) -> Keys:
    return Keys.of(KeyFiles(f"{folder}/server.pem", f"{folder}/server.key", tokens=f"{folder}/tokens").read())


@pytest.fixture(scope="module")
def given(folder: Path) -> Credentials:
    return Credentials(f"{folder}/ca.pem", token_file=f"{folder}/shop.token")


def hello_of_tls() -> bytes:
    """The first bytes of a handshake."""
    outgoing = ssl.MemoryBIO()
    context = ssl.create_default_context()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="x").do_handshake()
    return outgoing.read()


def test_a_first_frame_lets_in_with_all_that_came_behind_it(run) -> None:  # type: ignore[no-untyped-def]
    async def body() -> None:
        house = House()
        outside = await house.knock()
        outside.sendall(PING[:10])
        await asyncio.sleep(0.05)
        outside.sendall(PING[10:] + b"more")
        answer = await house.first(outside)
        assert answer == m.Pong(len(PING) + 4) and house.tokens == [UNASKED] and len(house.door) == 0
        await asyncio.sleep(0.3)
        assert house.inside, "no time of the door follows it inside"
        await house.close()

    run(body())


def test_tls_and_a_proof_let_in_with_the_scope_of_the_token(run, keys: Keys, given: Credentials) -> None:  # type: ignore[no-untyped-def]
    async def body() -> None:
        house = House(keys)
        outside = Outside()
        admitting = asyncio.create_task(house.open_once())
        await reach("127.0.0.1", house.port, ANY, given, outside)
        await admitting
        outside.transport.write(PING + b"more")
        async with asyncio.timeout(10):
            assert await outside.heard == m.encode(m.Pong(len(PING) + 4))
        assert [(token.name, token.scope) for token in house.tokens] == [("shop", Scope.CLIENT)]
        outside.transport.abort()
        await house.close()

    run(body())


@pytest.mark.parametrize(("phase", "said"), [
    ("look", "make its TLS handshake"), ("tls", ""), ("proof", "prove its token"), ("greeting", "say what it wants")])
def test_a_phase_that_takes_too_long_ends_however_the_bytes_trickle(run, keys: Keys, phase: str, said: str) -> None:  # type: ignore[no-untyped-def]
    async def body() -> None:
        given = {"look": keys, "tls": keys, "proof": Keys(tokens=keys.tokens), "greeting": Keys()}[phase]
        house = House(given)
        outside = await house.knock()
        trickle = {"look": b"", "tls": hello_of_tls(), "proof": FIRST, "greeting": FIRST}[phase]

        async def drip() -> None:
            for byte in trickle:
                try:
                    outside.send(bytes([byte]))
                except OSError:
                    return
                await asyncio.sleep(0.02)

        dripping = asyncio.create_task(drip())
        if said:
            assert await house.ended(outside) == f"expected it to {said} within 0.2 s"
        else:
            with pytest.raises((ConnectionError, IndexError)):
                await house.told(outside)
                raise ConnectionError
        dripping.cancel()
        assert len(house.door) == 0 and house.door.refusals.count == 1 and not house.inside
        await house.close()

    run(body())


def test_beyond_the_bound_the_oldest_of_the_address_that_has_most_gives_way(run, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(bounds, "DOOR_PENDING_MAX", 4)
    monkeypatch.setattr(bounds, "DOOR_GREETING_MS", 10_000)

    async def body() -> None:
        house = House()
        alone = await house.knock("127.0.0.2")
        await asyncio.sleep(0.02)
        flood = [await house.knock() for _ in range(20)]
        for outside in flood[:17]:
            assert await house.ended(outside) == CROWDED
        assert len(house.door) == 4
        alone.sendall(PING)
        assert await house.first(alone) == m.Pong(len(PING))
        flood[-1].sendall(PING)
        assert await house.first(flood[-1]) == m.Pong(len(PING))
        await house.close()

    run(body())


def test_half_open_handshakes_give_way_and_leave_nothing(run, keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(bounds, "DOOR_PENDING_MAX", 8)
    monkeypatch.setattr(bounds, "DOOR_TLS_MS", 10_000)

    async def body() -> None:
        house, half, outsides = House(keys), hello_of_tls()[:60], []
        for _ in range(100):
            outsides.append(await house.knock())
            outsides[-1].sendall(half)
            await asyncio.sleep(0)
        async with asyncio.timeout(10):
            while len(house.door) > 8:
                await asyncio.sleep(0.01)
        house.door.close("the server stops")
        await asyncio.sleep(0.05)
        assert len(house.door) == 0
        for outside in outsides:
            with suppress(ConnectionError):
                await house.told(outside)
        await house.close()

    run(body())


def test_first_frames_that_hold_too_much_together_give_way(run, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(bounds, "DOOR_BYTES_MAX", 3000)
    monkeypatch.setattr(bounds, "DOOR_GREETING_MS", 10_000)

    async def body() -> None:
        house = House()
        outsides = [await house.knock() for _ in range(3)]
        for outside, size in zip(outsides, (900, 1000, 1020)):
            outside.sendall(FIRST[:size])
        await asyncio.sleep(0.05)
        outsides[0].sendall(FIRST[900:1001])
        assert await house.ended(outsides[2]) == CROWDED
        outsides[0].sendall(FIRST[1001:])
        assert await house.first(outsides[0]) == m.Pong(len(FIRST))
        await house.close()

    run(body())


def test_a_first_frame_over_its_bound_or_damaged_is_refused_with_the_reason(run, keys: Keys) -> None:  # type: ignore[no-untyped-def]
    async def body() -> None:
        house = House(most=500)
        for data, said in ((FIRST, "expected a frame length from 21 to 492"), (b"\0" * 50, "found 0"), (PING[:-1] + b"x", "CRC-32C")):
            outside = await house.knock()
            outside.sendall(data)
            assert said in await house.ended(outside)
        proving = House(Keys(tokens=keys.tokens))
        outside = await proving.knock()
        outside.sendall((bounds.PROOF_FRAME_BYTES_MAX + 1).to_bytes(4, "little"))
        assert "expected a frame length from 21 to 8184" in await proving.ended(outside)
        outside = await house.knock()
        outside.sendall(m.encode(m.Challenge("shop", bytes(32)), 5))
        assert await house.told(outside) == [m.Error("denied", NO_TOKENS), m.Goodbye(f"denied: {NO_TOKENS}")]
        await house.close()
        await proving.close()

    run(body())


def test_a_full_house_says_so_at_the_door_and_to_those_who_came_meanwhile(run) -> None:  # type: ignore[no-untyped-def]
    async def body() -> None:
        house = House(room=1)
        one, other = await house.knock(), await house.knock()
        one.sendall(PING)
        await house.first(one)
        other.sendall(PING)
        assert await house.ended(other) == await house.ended(await house.knock()) == "the house is full"
        await house.close()

    run(body())


def test_a_crowd_gives_way_by_address() -> None:
    crowd: Crowd[int] = Crowd()
    for member, host in enumerate("abbbca"):
        crowd.add(member, host)
    assert crowd.who_gives_way() == 1
    crowd.remove(1)
    crowd.remove(1)
    crowd.remove(2)
    assert crowd.who_gives_way() == 0 and len(crowd) == 4 and crowd.members() == [0, 3, 4, 5]


def test_an_ipv6_network_counts_as_one_address_and_a_unix_socket_as_one() -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as listening, socket.socket(socket.AF_INET6) as outside:
        outside.connect(listening.getsockname())
        inner, _ = listening.accept()
        assert host_of(inner) == "::/64"
        inner.close()
    one, other = socket.socketpair()
    assert host_of(one) == "unix"
    one.close()
    other.close()
    with socket.socket() as nowhere:
        assert host_of(nowhere) == ""


def test_the_log_has_the_first_refusal_and_then_their_number(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusee_mp.logs.QUIET_S", 0.05)

    async def body() -> None:
        refusals = Refusals(asyncio.get_running_loop(), logging.getLogger("door"))
        for number in range(1000):
            refusals.refused("10.0.0.1", f"reason {number}")
        async with asyncio.timeout(10):
            while len(caplog.messages) < 2:
                await asyncio.sleep(0.01)
        refusals.close()
        assert refusals.count == 1000

    with caplog.at_level(logging.INFO, "door"):
        asyncio.run(body())
    assert caplog.messages == [
        "a connection was refused: 10.0.0.1: reason 0", "999 more connections were refused within 0.05 s, the last: 10.0.0.1: reason 999"]


def test_the_tokens_of_a_file_may_be_many(tmp_path: Path) -> None:
    lines = "".join(f"client name-{number} {number:040d}\n" for number in range(4000))
    path = tmp_path / "tokens"
    path.touch(0o600)
    path.write_text(lines)
    found = Keys.of(KeyFiles(tokens=str(path)).read()).tokens
    assert found is not None and len(found) == 4000
    path.write_text(lines * 2)
    with pytest.raises(Rejected, match="over 262144 bytes"):
        KeyFiles(tokens=str(path)).read()


def test_turns_are_taken_at_a_pace_and_by_address(run, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    async def body() -> None:
        had: list[tuple[str, int]] = []
        turns: Turns[tuple[str, int]] = Turns(asyncio.get_running_loop(), 400, had.append)
        for number in range(250):
            turns.add(("flood", number), "flood")
        assert len(had) == 100, "a quarter of what a second has, at once"
        turns.add(("alone", 0), "alone")
        turns.remove(("flood", 249))
        async with asyncio.timeout(10):
            while len(turns):
                await asyncio.sleep(0.005)
        assert ("alone", 0) in had[100:104] and ("flood", 249) not in had and len(had) == 250
        turns.close()

    run(body())
