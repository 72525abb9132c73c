"""Neighbouring versions: a peer that says less, or more, than this version does."""
from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from fusee_mp import Client, Ctx, Worker, workflow
from fusee_mp.sdk.connection import Connection
from fusee_mp.wire import messages as m
from fusee_mp.wire.frames import encode_frame
from fusee_mp.wire.kinds import Kind
from fusee_mp.wire.preface import ConnectionKind, Preface
from tests.server.raw import Raw, RawLease
from tests.server.tree import Tree, serving

LATER = encode_frame(250, b"\xc1 not even MessagePack")


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    with serving(tmp_path / "data", shards=2) as tree:
        yield tree


@workflow
async def quick(ctx: Ctx, value: int) -> int:
    return value


@pytest.mark.parametrize("said", [["w", "1", []], ["w", "1", ["quick"], 0, 0xFF, "9.0", {"more": "to come"}, 7]], ids=["earlier", "later"])
def test_a_worker_that_says_less_or_more_is_welcome_without_what_is_not_known_here(tree: Tree, said: list[object]) -> None:
    with Raw(tree.address, Preface(ConnectionKind.CONTROL)) as session:
        session.sock.sendall(LATER + encode_frame(Kind.HELLO, msgspec.msgpack.encode(said), 1) + LATER)
        _, welcome = session.expect(m.Welcome)
        assert welcome.features == 0 and welcome.shards == 2
        _, assigned = session.expect(m.Assign)
        assert assigned.shards == [0, 1]
        with RawLease(tree.address, "w", 0) as lease:
            lease.sock.sendall(LATER)
            lease.append()
            assert lease.durable(1).through >= 1


def test_a_client_of_a_later_version_is_answered(tree: Tree) -> None:
    with Raw(tree.address, Preface(ConnectionKind.CLIENT_SHARD, 0)) as client:
        hello = msgspec.msgpack.encode(["c", 0xFFFF, "9.0", [1, 2]])
        client.sock.sendall(encode_frame(Kind.CLIENT_HELLO, hello, 1) + LATER)
        assert client.expect(m.ClientWelcome)[1].shards == 2
        client.send(m.Call("count", b"\x90"), 2)
        assert client.expect(m.Reply)[0].request == 2


def test_what_a_later_server_says_besides_is_passed_over() -> None:
    class Heard(Connection):
        def __init__(self) -> None:
            super().__init__(Preface(ConnectionKind.CONTROL))
            self.kinds: list[int] = []

        def unasked(self, frame: m.Frame) -> None:
            self.kinds.append(frame.kind)

    async def main() -> None:
        here = Heard()
        here.is_open = True
        more = encode_frame(Kind.ELSEWHERE, msgspec.msgpack.encode([["x"], "and more"]))
        here.data_received(LATER + more + LATER + m.encode(m.Ping(3)))
        assert here.kinds == [Kind.ELSEWHERE, Kind.PING] and here.is_open

    asyncio.run(main())


def test_both_go_on_side_by_side(tree: Tree) -> None:
    async def main() -> None:
        async with Worker.connect(tree.address, workflows=[quick]), Client.connect(tree.address) as client:
            with Raw(tree.address, Preface(ConnectionKind.CONTROL)) as session:
                session.sock.sendall(LATER * 3)
                assert await client.execute(quick, None, 7) == 7

    asyncio.run(main())
