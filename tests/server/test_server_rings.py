"""Workers and clients on the server's host: rings in place of the socket, and the socket where there are none."""
from __future__ import annotations

import array
import asyncio
import os
import signal
import socket
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from fusee_mp import Client, Ctx, Unavailable, Worker, step, workflow
from fusee_mp.bounds import RING_CONNECTIONS_MAX, RING_OFFERED_BYTES_MAX
from fusee_mp.ring import layout, link
from fusee_mp.ring.region import Region
from fusee_mp.ring.ring import RingReader, RingWriter
from fusee_mp.ring.transport import LinkTransport
from fusee_mp.sdk import same_host
from fusee_mp.wire import messages as m
from fusee_mp.wire.frames import decode_frame
from fusee_mp.wire.preface import ConnectionKind, Preface
from tests.server.raw import RawClient
from tests.server.tree import PATIENCE_S, Tree, until


@step
async def double(value: int) -> int:
    return 2 * value


@workflow
async def doubled(ctx: Ctx, value: int) -> int:
    return await double(value)


@workflow
async def long(ctx: Ctx, size: int) -> str:
    return await ctx.wait_for("go") + "x" * size


Body = Callable[[Tree, str], Awaitable[None]]


def play(tmp_path: Path, body: Body, **options: Any) -> None:
    path = tmp_path / "s"
    tree = Tree(tmp_path / "data", unix=str(path), **options)

    async def main() -> None:
        async with asyncio.timeout(3 * PATIENCE_S):
            await body(tree, f"unix:{path}")

    try:
        asyncio.run(_with(tree, main))
    finally:
        tree.close()


async def _with(tree: Tree, main: Callable[[], Awaitable[None]]) -> None:
    await asyncio.to_thread(tree.start)
    await main()


def transports(worker: Worker) -> list[Any]:
    return [home._transport for home in worker._homes.values()]


async def eventually(holds: Callable[[], Any], what: str) -> None:
    for _ in range(int(PATIENCE_S / 0.01)):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"never: {what}")


def test_a_worker_and_a_client_on_the_unix_socket_talk_over_rings(tmp_path: Path) -> None:
    async def body(tree: Tree, address: str) -> None:
        async with Worker.connect(address, workflows=[doubled, long]) as worker, Client.connect(address) as client:
            await eventually(lambda: len(worker.held) == 2, "both shards are held")
            assert all(isinstance(transport, LinkTransport) for transport in transports(worker))
            assert await asyncio.gather(*(client.execute(doubled, f"d{n}", n) for n in range(50))) == [2 * n for n in range(50)]
            runs = [await client.start(long, f"l{n}", 1_000_000) for n in range(4)]
            await asyncio.gather(*(run.signal("go", "y" * 1_000_000) for run in runs))
            for run in runs:
                assert len(await run.result()) == 2_000_000

    play(tmp_path, body)


def test_killing_either_side_is_noticed_and_survived(tmp_path: Path) -> None:
    async def body(tree: Tree, address: str) -> None:
        async with Worker.connect(address, workflows=[doubled]) as worker, Client.connect(address) as client:
            for number in range(3):
                assert await client.execute(doubled, f"before{number}", number) == 2 * number
                os.kill(tree.shard(number % 2).pid, signal.SIGKILL)
                assert await client.execute(doubled, f"after{number}", number) == 2 * number
            await eventually(lambda: len(worker.held) == 2, "both shards are held again")
            assert all(isinstance(transport, LinkTransport) for transport in transports(worker))

    play(tmp_path, body)


def test_a_worker_that_damages_its_ring_loses_its_lease_and_nobody_else_does(tmp_path: Path) -> None:
    async def body(tree: Tree, address: str) -> None:
        async with Worker.connect(address, workflows=[doubled], name="rude") as worker, Client.connect(tree.address) as client:
            await eventually(lambda: len(worker.held) == 2, "both shards are held")
            pids = [tree.shard(shard).pid for shard in (0, 1)]
            epochs = {shard: home.epoch for shard, home in worker._homes.items()}
            link = worker._homes[0]._transport._link  # type: ignore[union-attr]
            link._writer._words[layout.WORD_TAIL] = 3
            link._bell.ring()
            await eventually(lambda: 0 in worker._homes and worker._homes[0].epoch > epochs[0], "shard 0 is leased anew")
            assert await asyncio.gather(*(client.execute(doubled, f"d{n}", n) for n in range(8))) == [2 * n for n in range(8)]
            assert worker._homes[1].epoch == epochs[1]
            assert [tree.shard(shard).pid for shard in (0, 1)] == pids

    play(tmp_path, body)


def test_without_rings_the_same_connection_goes_on_over_the_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(ring_bytes: int) -> None:
        raise Unavailable("no rings on this platform")

    monkeypatch.setattr(same_host, "Offer", none)

    async def body(tree: Tree, address: str) -> None:
        async with Worker.connect(address, workflows=[doubled]) as worker, Client.connect(address) as client:
            assert await client.execute(doubled, "d", 4) == 8
            assert not any(isinstance(transport, LinkTransport) for transport in transports(worker))

    play(tmp_path, body)


def test_more_connections_than_there_are_rings_for_go_on_over_the_socket_and_all_end(tmp_path: Path) -> None:
    async def body(tree: Tree, address: str) -> None:
        shard = psutil.Process(tree.shard(0).pid)
        async with Worker.connect(address, workflows=[doubled]):
            before = shard.num_fds()
            clients = [await Client.connect(address) for _ in range(RING_CONNECTIONS_MAX + 5)]
            values = [await client.execute(doubled, f"d{number}", number) for number, client in enumerate(clients)]
            assert values == [2 * number for number in range(len(clients))]
            for client in clients:
                await client.close()
            await eventually(lambda: shard.num_fds() == before, "the shard process has closed all that was theirs")

    play(tmp_path, body, shards=1)


class Offering:
    """A client that offers rings by hand, and has copies of all that it shares."""

    def __init__(self, address: str, ring_bytes: int = 1 << 16, generation: int = 7) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(PATIENCE_S)
        self.sock.connect(address.removeprefix("unix:"))
        self.sock.sendall(Preface(ConnectionKind.CLIENT_SHARD, 0, offers_rings=True).encode())
        ours, self.theirs = link.regions(ring_bytes, generation)
        self.receiving, self.sending = (Region.attach(region, generation) for region in ours)
        self.writer, self.reader = RingWriter(self.sending), RingReader(self.receiving)

    def offer(self, says: bytes = struct.pack("<Q", 7)) -> m.Message:
        """What the server answers."""
        self.sock.sendmsg([says], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", self.theirs))])
        return m.decode(decode_frame(self.sock.recv(4096)))

    def ring(self) -> None:
        self.sock.send(b"\0")

    def close(self) -> None:
        self.sock.close()
        for region in (self.receiving, self.sending):
            region.detach()
        for descriptor in self.theirs:
            os.close(descriptor)


def test_a_client_that_hears_no_ring_holds_up_nobody(tmp_path: Path) -> None:
    async def body(tree: Tree, address: str) -> None:
        shard, rude = tree.shard(0), Offering(address)
        assert rude.offer() == m.Rings(True)
        rude.writer.try_write(m.encode(m.ClientHello("rude"), 1))
        for number in range(1, 600):
            rude.receiving.words[layout.WORD_READER_WAITS] = number  # never rung for this sleep
            assert rude.writer.try_write(m.encode(m.Ping(number)))
            rude.ring()
            async with asyncio.timeout(PATIENCE_S):
                while rude.reader.read() is None:
                    await asyncio.sleep(0)
            rude.reader.release()
        with RawClient(tree.address, 0):
            pass
        assert 100 < len(rude.sock.recv(4096)) < 500, "the line was full"
        rude.close()
        assert tree.shard(0).pid == shard.pid

    play(tmp_path, body, shards=1)


def test_rings_that_are_not_taken_are_refused_with_the_reason_and_cost_the_server_a_line(tmp_path: Path) -> None:
    def refused(address: str, says: bytes = struct.pack("<Q", 7), change: Callable[[list[int]], None] = list, **made: int) -> str:
        offering = Offering(address, **made)
        offering.theirs = list(offering.theirs)
        change(offering.theirs)
        said = offering.offer(says)
        assert isinstance(said, m.Goodbye)
        offering.close()
        return said.reason

    def without_one(theirs: list[int]) -> None:
        os.close(theirs.pop())

    def a_pipe(theirs: list[int]) -> None:
        without_one(theirs)
        there, here = os.pipe()
        os.close(here)
        theirs.append(there)

    async def body(tree: Tree, address: str) -> None:
        shard = psutil.Process(tree.shard(0).pid)
        before = shard.num_fds()
        assert "generation 8, found 7" in refused(address, struct.pack("<Q", 8))
        assert "expected the 2 descriptors of a ring pair" in refused(address, change=without_one)
        assert "sealed against resizing" in refused(address, change=a_pipe)
        assert f"over the {RING_OFFERED_BYTES_MAX} that are taken" in refused(address, ring_bytes=2 * RING_OFFERED_BYTES_MAX)
        await asyncio.to_thread(until, lambda: shard.num_fds() == before)
        assert "Traceback" not in tree.log and "a connection was refused: unix: expected a ring of generation 8" in tree.log

    play(tmp_path, body, shards=1)


@pytest.mark.parametrize("says", [b"", b"12345678", b"x"])
def test_a_preface_that_offers_rings_and_brings_none_ends_its_connection_alone(tmp_path: Path, says: bytes) -> None:
    async def body(tree: Tree, address: str) -> None:
        shard = psutil.Process(tree.shard(0).pid)
        before = shard.num_fds()
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(address.removeprefix("unix:"))
        sock.sendall(Preface(ConnectionKind.CLIENT_SHARD, 0, offers_rings=True).encode() + says)
        if says:
            sock.settimeout(PATIENCE_S)
            said = m.decode(decode_frame(await asyncio.to_thread(sock.recv, 4096)))
            assert said == m.Goodbye("expected the 2 descriptors of a ring pair behind the preface, found 0")
        sock.close()
        await asyncio.to_thread(until, lambda: shard.num_fds() == before)
        async with Worker.connect(address, workflows=[doubled]), Client.connect(address) as client:
            assert await client.execute(doubled, "d", 1) == 2

    play(tmp_path, body, shards=1)


def test_a_control_connection_offers_no_rings() -> None:
    assert same_host._offer(Preface(ConnectionKind.CONTROL)) is None
    assert m.encode(m.Rings(True)) != m.encode(m.Rings(False))
