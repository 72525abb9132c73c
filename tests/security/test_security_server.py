"""A server with TLS and tokens, and who gets how far with it."""
from __future__ import annotations

import asyncio
import os
import signal
import ssl
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from fusee_mp import (
    Client,
    Ctx,
    Denied,
    FuseeError,
    Limit,
    Rejected,
    ScheduleSpec,
    SyncClient,
    Unavailable,
    Worker,
    query,
    workflow,
)
from fusee_mp import signal as sig
from fusee_mp.core.calls import TerminateCall, encode_call
from fusee_mp.sdk.address import parse_address
from fusee_mp.sdk.client import ShardConnection
from fusee_mp.sdk.connection import connect
from fusee_mp.security.token import Proving, Scope, Token
from fusee_mp.wire import messages as m
from fusee_mp.wire.preface import ConnectionKind, Preface
from tests.processes import is_alive
from tests.security.certificates import TOKENS, Authority, write_secret
from tests.security.secured import RawTls, Safe
from tests.server.loopback import asynchronous, until
from tests.server.raw import Raw, RawClient, RawLease
from tests.server.tree import serving
from tests.server.tree import until as until_true

ANY, CONTROL = Preface(ConnectionKind.CLIENT_ANY), Preface(ConnectionKind.CONTROL)
GO, SEEN = sig("go", int), query("seen", returns=int)


@workflow("asked")
async def asked(ctx: Ctx) -> int:
    ctx.on_query(SEEN, lambda: 7)
    return await ctx.wait_for(GO) or 0


@pytest.fixture(scope="module")
def safe(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Safe]:
    safe = Safe(tmp_path_factory.mktemp("safe"))
    with safe.serving():
        yield safe


def working(safe: Safe) -> Any:
    return Worker.connect(safe.address, workflows=[asked], name="w", **safe.of("workers"))


async def refused(connecting: Any) -> FuseeError:
    """The error that connecting ends with."""
    try:
        async with connecting:
            raise AssertionError("it was let in")
    except FuseeError as error:
        return error


# Scopes.

CHANGES: list[Callable[[Client], Awaitable[Any]]] = [
    lambda client: client.start(asked, "x"),
    lambda client: client.execute(asked, "x"),
    lambda client: client.handle("open").signal(GO, 1),
    lambda client: client.handle("open").cancel(),
    lambda client: client.handle("open").terminate(),
    lambda client: client.handle("open").pause(),
    lambda client: client.handle("open").resume(),
    lambda client: client.handle("open").reset("s"),
    lambda client: client.handle("open").delete(),
    lambda client: client.handle("open").update("u"),
    lambda client: client.update_with_start("asked", "x", None, "u", None),
    lambda client: client.schedule("s", ScheduleSpec(workflow="asked", every="1h")),
    lambda client: client.schedule_handle("s").trigger(),
    lambda client: client.limit("api", Limit(concurrent=1)),
]


@asynchronous
async def test_a_token_goes_as_far_as_its_scope_and_no_further(safe: Safe) -> None:
    async with working(safe), Client.connect(safe.address, **safe.of("shop")) as shop:
        run = await shop.start(asked, "open")
        await shop.limit("api", Limit(concurrent=2))
        await shop.schedule("hourly", ScheduleSpec(workflow="asked", every="1h", paused=True))
        async with Client.connect(safe.address, **safe.of("wall")) as wall:
            for change in CHANGES:
                with pytest.raises(Denied, match="needs a token of scope client: this one has read"):
                    await change(wall)
            assert (await wall.status("open")).is_open and (await wall.describe("open")).journal and len(await wall.list()) == 1
            assert await wall.count() == 1 and await wall.limit_in_use("api") == 0 and await wall.handle("open").query(SEEN) == 7
            assert (await wall.schedule_handle("hourly").describe()).paused
            await run.signal(GO, 5)
            assert await wall.handle("open", asked).result() == 5
        assert isinstance(await refused(Worker.connect(safe.address, workflows=[asked], **safe.of("shop"))), Denied)


@asynchronous
async def test_a_call_that_hides_behind_the_name_of_a_read_is_refused(safe: Safe) -> None:
    async with working(safe), Client.connect(safe.address, **safe.of("shop")) as shop:
        run = await shop.start(asked, "hidden")
        wall = await connect(parse_address(safe.address).secured(**safe.of("wall"), cert=None, key=None), lambda: ShardConnection(ANY))
        await wall.greet(m.ClientHello("wall"), m.ClientWelcome)
        shard = (await run.status()).shard
        args = encode_call(TerminateCall("hidden", "", "r-1"))
        for method in ("query", "result", "schedule_look"):
            with pytest.raises(Rejected, match=f'the call "{method}" carries a call "terminate"'):
                await wall.ask(m.Call(method, args), shard)
        with pytest.raises(Denied):
            await wall.ask(m.Call("limit", msgspec.msgpack.encode(["api", [1, 0.0]])), shard)
        with pytest.raises(Denied):
            await wall.ask(m.Call("limit", b"\xc1"), shard)
        assert (await run.status()).is_open
        await run.terminate()
        wall.abort("done")


@pytest.mark.parametrize("name", ["shop", "wall"])
def test_a_lease_and_a_session_of_a_worker_need_the_scope_full(safe: Safe, name: str) -> None:
    with RawTls(safe, Preface(ConnectionKind.WORKER, 0)) as raw:
        raw.prove(safe.token(name))
        error = raw.ask(m.Lease("thief", "1", 0), m.Error)
        assert error.code == "denied" and "scope full" in error.message and "scope full" in raw.goodbye()
    with RawTls(safe, CONTROL) as raw:
        raw.prove(safe.token(name))
        assert raw.ask(m.Hello("thief", "1", []), m.Error).code == "denied"
        assert raw.ask(m.Status(), m.Status).facts["shards"][0]["worker"] != "thief/1"


def test_blocking_code_and_addresses_take_the_same_files(safe: Safe) -> None:
    with SyncClient.connect(safe.address, **safe.of("wall")) as client:
        assert client.status("nobody") is None
    with SyncClient.connect(f"{safe.address}?ca={safe.authority.ca}&token-file={safe.files['wall']}") as client:
        assert client.status("nobody") is None


# Proofs.


def test_before_the_proof_nothing_else_is_answered(safe: Safe) -> None:
    asks = ((ANY, m.ClientHello("c")), (ANY, m.Call("status", b"\x91\xa1x")), (CONTROL, m.Status()), (CONTROL, m.Ping(1)),
            (CONTROL, m.Hello("w", "1", [])), (Preface(ConnectionKind.WORKER, 0), m.Lease("w", "1", 0)), (ANY, m.Proof(bytes(32))))
    for preface, message in asks:
        with RawTls(safe, preface) as raw:
            raw.send(message, 7)
            assert "asks for a token" in raw.denied()


def test_a_name_that_there_is_not_is_answered_like_one_that_there_is(safe: Safe) -> None:
    for name in ("nobody", "shop"):
        with RawTls(safe, ANY) as raw:
            proving, answer = raw.challenge(Token(Scope.CLIENT, name, "x" * 40))
            assert len(answer.proof) == len(answer.nonce) == 32
            with pytest.raises(Denied):
                proving.check_server(answer.proof, answer.nonce)
            raw.send(m.Proof(proving.of_client(answer.nonce)))
            assert "the proof does not fit the token" in raw.denied()


def test_a_proof_for_another_channel_kind_or_connection_is_refused_and_so_is_the_servers_own(safe: Safe) -> None:
    token = safe.token("shop")
    with RawTls(safe, ANY) as raw:
        _, answer = raw.challenge(token)
        raw.send(answer)
        assert "does not fit" in raw.denied()
    for channel, preface in ((bytes(32), ANY.encode()), (None, CONTROL.encode())):
        with RawTls(safe, ANY) as raw:
            proving = Proving(token, preface, channel or raw.channel)
            answer = raw.ask(m.Challenge("shop", proving.nonce), m.Proof)
            raw.send(m.Proof(proving.of_client(answer.nonce)))
            assert "does not fit" in raw.denied()
    with RawTls(safe, ANY) as raw, RawTls(safe, ANY) as other:
        first, _ = raw.challenge(token)
        _, answer = other.challenge(token)
        raw.send(m.Proof(first.of_client(answer.nonce)))
        assert "does not fit" in raw.denied()


def test_two_challenges_and_a_nonce_of_another_length_end_the_connection(safe: Safe) -> None:
    with RawTls(safe, ANY) as raw:
        raw.challenge(safe.token("shop"))
        raw.send(m.Challenge("shop", bytes(32)))
        raw.denied()
    with RawTls(safe, ANY) as raw:
        raw.send(m.Challenge("shop", bytes(5)))
        assert "expected a nonce of 32 bytes" in raw.goodbye()


def test_what_comes_in_one_piece_with_the_proof_is_not_lost(safe: Safe) -> None:
    with RawTls(safe, ANY) as raw:
        proving, answer = raw.challenge(safe.token("shop"))
        hello, call = m.encode(m.ClientHello("c"), 1), m.encode(m.Call("tally", b"\x90"), 2)
        raw.sock.sendall(m.encode(m.Proof(proving.of_client(answer.nonce))) + hello + call[:40])
        raw.sock.sendall(call[40:])
        raw.expect(m.ClientWelcome)
        raw.expect(m.Reply)


class Impostor:
    """Listens and says what it is told to."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1 << 16)
        writer.write(self._answer)
        await reader.read()
        writer.close()


@asynchronous
async def test_a_server_that_does_not_prove_the_token_is_refused(safe: Safe) -> None:
    answers: list[tuple[bytes, type[FuseeError], str]] = [
        (m.encode(m.Proof(bytes(32), bytes(32))), Denied, "did not prove"),
        (m.encode(m.ClientWelcome("s", 1)), FuseeError, "expected PROOF"),
        (m.encode(m.Proof(b"", b"")), FuseeError, "nonce of 32 bytes"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n" * 9, FuseeError, "frame length"),
        (m.encode(m.Goodbye("the server stops")), Unavailable, "the server stops"), (b"\0" * 200, FuseeError, "frame length"),
    ]
    for answer, kind, said in answers:
        async with Impostor(answer) as address:
            error = await refused(Client.connect(address, token_file=safe.files["shop"]))
            assert isinstance(error, kind) and said in error.message, error


@asynchronous
async def test_a_server_without_tokens_is_refused_by_who_has_one(safe: Safe, tmp_path: Path) -> None:
    with serving(tmp_path / "data", shards=1) as tree:
        error = await refused(Client.connect(tree.address, token_file=safe.files["shop"]))
        assert isinstance(error, Denied) and "this server has no tokens" in error.message
        error = await refused(Client.connect(tree.address, ca=safe.authority.ca))
        assert isinstance(error, Unavailable) and "did not answer with TLS" in error.message


@asynchronous
async def test_without_its_token_or_with_another_secret_nobody_comes_in(safe: Safe, tmp_path: Path) -> None:
    error = await refused(Client.connect(safe.address, ca=safe.authority.ca))
    assert isinstance(error, Denied) and "token_file=" in error.message
    error = await refused(Worker.connect(safe.address, workflows=[asked], ca=safe.authority.ca))
    assert isinstance(error, Denied)
    other = write_secret(tmp_path / "token", f"client shop {'y' * 40}")
    error = await refused(Client.connect(safe.address, ca=safe.authority.ca, token_file=other))
    assert isinstance(error, Denied) and 'the token "shop"' in error.message
    await until(lambda: "it left before it proved its token 'shop'" in safe.log)


# TLS.


@asynchronous
async def test_the_server_must_show_a_certificate_of_the_ca_for_the_host(safe: Safe, tmp_path: Path) -> None:
    error = await refused(Client.connect(safe.address, ca=Authority(tmp_path, "other").ca, token_file=safe.files["shop"]))
    assert isinstance(error, Denied) and "certificate was not accepted (" in error.message
    wrong = Safe(tmp_path)
    wrong.cert, wrong.key = wrong.authority.issue("elsewhere", ("example.org",))
    with wrong.serving(shards=1):
        error = await refused(Client.connect(wrong.address, **wrong.of("shop")))
        assert isinstance(error, Denied) and "mismatch" in error.message


@asynchronous
async def test_who_does_not_speak_tls_is_told_to(safe: Safe) -> None:
    error = await refused(Client.connect(safe.address))
    assert isinstance(error, Denied) and "over TLS alone" in error.message
    with Raw(safe.address, CONTROL) as raw:
        raw.send(m.Status(), 1)
        assert "over TLS alone" in raw.goodbye()


def test_tls_is_1_3_and_gives_no_ticket(safe: Safe) -> None:
    old = ssl.create_default_context(cafile=safe.authority.ca)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises((ssl.SSLError, ConnectionError)):
        RawTls(safe, ANY, old)
    with RawTls(safe, ANY) as raw:
        raw.prove(safe.token("shop"))
        raw.ask(m.ClientHello("c"), m.ClientWelcome)
        assert raw.tls.version() == "TLSv1.3" and raw.tls.session is not None and not raw.tls.session.has_ticket


@asynchronous
async def test_with_a_ca_on_the_listener_who_connects_needs_a_certificate(tmp_path: Path) -> None:
    safe, others = Safe(tmp_path), Authority(tmp_path, "others")
    (mine, my_key), (foreign, foreign_key) = safe.authority.issue("client"), others.issue("foreign")
    with safe.serving(shards=1, tls_ca=str(safe.authority.ca)):
        async with Worker.connect(safe.address, workflows=[asked], cert=mine, key=my_key, **safe.of("workers")) as worker:
            assert worker.held == [0]
            error = await refused(Client.connect(safe.address, **safe.of("shop")))
            assert isinstance(error, Denied) and "asks for a certificate: connect with cert=" in error.message
            error = await refused(Client.connect(safe.address, cert=foreign, key=foreign_key, **safe.of("shop")))
            assert isinstance(error, Unavailable) and "does not accept the one of this side" in error.message, error.message


@asynchronous
async def test_certificates_alone_are_enough_where_there_are_no_tokens(tmp_path: Path) -> None:
    safe = Safe(tmp_path)
    mine, my_key = safe.authority.issue("client")
    given = {"ca": safe.authority.ca, "cert": mine, "key": my_key}
    with safe.serving(shards=1, tokens="", tls_ca=str(safe.authority.ca)):
        async with Worker.connect(safe.address, workflows=[asked], **given), Client.connect(safe.address, **given) as client:
            await client.start(asked, "a")
        error = await refused(Client.connect(safe.address, ca=safe.authority.ca))
        assert isinstance(error, Denied) and "with cert= and key=" in error.message
        cert, key = Authority(tmp_path, "another").issue("stranger")
        error = await refused(Client.connect(safe.address, ca=safe.authority.ca, cert=cert, key=key))
        assert "it does not accept the one of this side" in error.message


# Reading again.


@asynchronous
async def test_a_hang_up_renews_keys_and_ends_what_came_in_with_a_token_that_is_gone(tmp_path: Path) -> None:
    safe = Safe(tmp_path)
    with safe.serving(shards=1) as tree:
        async with working(safe) as worker, Client.connect(safe.address, **safe.of("shop")) as old:
            run = await old.start(asked, "a")
            result = asyncio.create_task(run.result())
            renewed = Authority(tmp_path, "new")
            for given, own in zip(renewed.issue("renewed"), (safe.cert, safe.key)):
                own.write_bytes(given.read_bytes())
            safe.files["tokens"].write_text(TOKENS.replace("client shop", "client till"))
            assert tree.router is not None
            tree.router.send_signal(signal.SIGHUP)
            await until(lambda: "were read again: TLS, tokens workers (full), till (client), wall (read)" in tree.log)
            with pytest.raises(FuseeError):  # the connection that it waits on has ended, and another one is not to be had
                await result
            with pytest.raises(Denied, match="certificate was not accepted"):  # nor did it read the new CA
                await old.status("a")
            assert isinstance(await refused(Client.connect(safe.address, **safe.of("shop"))), Denied)
            till = write_secret(tmp_path / "till", safe.files["shop"].read_text().replace("client shop", "client till"))
            async with Client.connect(safe.address, ca=renewed.ca, token_file=till) as client:
                await client.handle("a").signal(GO, 3)
                assert await client.handle("a").result() == 3
            assert worker.held == [0] and tree.log.count("joined") == 1, "who came in with a token that is still there stays"


@asynchronous
async def test_a_worker_whose_secret_was_renewed_comes_back_by_itself_with_the_new_one(tmp_path: Path) -> None:
    safe = Safe(tmp_path)
    with safe.serving(shards=1) as tree:
        async with working(safe) as worker, Client.connect(safe.address, **safe.of("shop")) as client:
            await client.start(asked, "a")
            tokens = safe.files["tokens"].read_text()
            secret = safe.token("workers").secret
            safe.files["tokens"].write_text(tokens.replace(secret, "y" * 40))
            safe.files["workers"].write_text(safe.files["workers"].read_text().replace(secret, "y" * 40))
            assert tree.router is not None
            tree.router.send_signal(signal.SIGHUP)
            await until(lambda: tree.log.count("joined") == 2 and worker.held == [0])
            await client.handle("a").signal(GO, 5)
            assert await client.handle("a").result() == 5


def test_no_hang_up_ends_a_server_that_reads_again_nor_its_processes(tmp_path: Path) -> None:
    safe = Safe(tmp_path)
    with safe.serving(shards=1) as tree:
        assert tree.router is not None
        for process in psutil.Process(tree.router.pid).children(recursive=True):
            process.send_signal(signal.SIGHUP)
        tree.router.send_signal(signal.SIGTERM)
        until_true(lambda: hung_up(tree.router) is not None)
        assert tree.router.returncode == 0 and tree.log.count("shard 0 is ready") == 1


def hung_up(process: Any) -> int | None:
    """Its exit code, when it has ended; else it is sent one more."""
    code: int | None = process.poll()
    if code is None:
        process.send_signal(signal.SIGHUP)
    return code


@asynchronous
async def test_files_that_cannot_be_used_change_nothing_and_a_process_that_starts_again_has_what_the_others_have(tmp_path: Path) -> None:
    safe = Safe(tmp_path)
    with safe.serving(shards=1) as tree:
        assert tree.router is not None
        for number, (name, text) in enumerate((("tokens", ""), ("tokens", "junk"), ("tokens", None)), 1):
            safe.files[name].write_text(text) if text is not None else safe.files[name].unlink()
            tree.router.send_signal(signal.SIGHUP)
            await until(lambda seen=number: tree.log.count("were not read again, those at hand stay in use") == seen)
        safe.cert.write_text("junk")
        tree.shard(0).kill()
        await until(lambda: tree.log.count("shard 0 is ready") == 2)
        async with Client.connect(safe.address, **safe.of("shop")) as client:
            assert await client.status("x") is None
        with Raw(safe.address, Preface(ConnectionKind.CLIENT_SHARD, 0)) as raw:
            raw.send(m.ClientHello("c"), 1)
            assert "over TLS alone" in raw.goodbye()


# Starting.


@pytest.mark.parametrize("missing", [("tls_cert", "tls_key"), ("tokens",), ("tls_cert", "tls_key", "tokens")], ids=len)
def test_beyond_this_machine_a_server_wants_tls_and_tokens_or_the_word(tmp_path: Path, missing: tuple[str, ...]) -> None:
    safe = Safe(tmp_path)
    without = dict.fromkeys(missing, "")
    with pytest.raises(AssertionError, match="expected the ready line"), safe.serving(listen=["0.0.0.0:0"], shards=1, **without):
        pass
    words = {2: "this one has no TLS:", 1: "this one has no tokens:", 3: "this one has no TLS and no tokens:"}[len(missing)]
    assert words in safe.log and "--insecure" in safe.log and not (tmp_path / "data").exists()
    with safe.serving(listen=["0.0.0.0:0"], shards=1, insecure=True, **without):
        pass


def test_beyond_this_machine_with_both_a_server_starts(tmp_path: Path) -> None:
    with Safe(tmp_path).serving(listen=["0.0.0.0:0", "[::1]:0"], shards=1):
        pass


def test_files_that_cannot_be_used_end_the_start_before_anything_is_made(tmp_path: Path) -> None:
    safe = Safe(tmp_path)
    safe.files["tokens"].chmod(0o644)
    with pytest.raises(AssertionError, match="expected the ready line"), safe.serving():
        pass
    assert f"chmod 600 {safe.files['tokens']}" in safe.log and not (tmp_path / "data").exists()


@asynchronous
async def test_a_unix_socket_is_guarded_by_its_mode_alone(tmp_path: Path) -> None:
    safe = Safe(tmp_path)
    for mode in (0o600, 0o660):
        path = tmp_path / f"socket-{mode:o}"
        before = os.umask(0o077)  # the mode is what was asked for, whatever the mask
        try:
            with safe.serving(shards=1, unix=str(path), unix_mode=mode):
                assert path.stat().st_mode & 0o777 == mode
                async with Worker.connect(f"unix:{path}", workflows=[asked]) as worker:
                    async with Client.connect(f"unix:{path}?token-file={safe.files['shop']}") as client:
                        await client.start(asked, f"a-{mode}")
                    assert worker.held == [0]
        finally:
            os.umask(before)


def test_a_hang_up_ends_a_server_that_has_nothing_to_read_again(tmp_path: Path) -> None:
    with serving(tmp_path / "data", shards=1) as tree:
        assert tree.router is not None
        below = tree.processes[1:]
        tree.router.send_signal(signal.SIGHUP)
        tree.router.wait(30)
        until_true(lambda: not any(map(is_alive, below)))


def test_clients_have_their_bound_and_leave_room_for_workers(tmp_path: Path) -> None:
    with serving(tmp_path / "data", shards=2, connections=4) as tree, RawClient(tree.address, 0) as one, RawClient(tree.address, 0):
        with Raw(tree.address, Preface(ConnectionKind.CLIENT_SHARD, 0)) as third:
            assert third.goodbye() == "shard 0 has 2 clients already, as many as it may (`serve --connections`): close some"
        with RawClient(tree.address, 1), RawLease(tree.address, "w", 0):
            pass
        one.close()

        def there_is_room() -> bool:
            with Raw(tree.address, Preface(ConnectionKind.CLIENT_SHARD, 0)) as again:
                again.send(m.ClientHello("again"), 1)
                frame = again.frame()
                return frame is not None and isinstance(m.decode(frame), m.ClientWelcome)

        until_true(there_is_room)


def test_a_connection_that_gets_no_lease_ends_and_takes_nobodys_place(safe: Safe) -> None:
    worker = Preface(ConnectionKind.WORKER, 0)
    with RawTls(safe, worker) as first:
        first.prove(safe.token("workers"))
        first.ask(m.Lease("w", "1", 0), m.Granted)
        for question, code, why in ((m.Lease("thief", "1", 0), "busy", "is held by another worker"),
                                    (m.Ping(1), "denied", "this connection begins with LEASE, by its preface")):
            with RawTls(safe, worker) as other:
                other.prove(safe.token("workers"))
                error = other.ask(question, m.Error)
                assert error.code == code and why in error.message and why in other.goodbye()
        first.send(m.Ping(3))
        assert first.expect(m.Pong)[1].stamp == 3
