"""What one hot shard, one slow client or one greedy client costs the others: nothing."""
from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from fusee_mp import Client, Ctx, Worker, bounds, workflow
from fusee_mp.core.calls import StartCall, encode_call
from fusee_mp.wire import messages as m
from tests.server.flows import EFFECTS, WORKFLOWS
from tests.server.loopback import asynchronous, id_on, until
from tests.server.raw import RawClient, RawLease
from tests.server.tree import Tree, serving

SHARDS = 2
HOT, COOL = 0, 1
MIB = 1 << 20


@workflow("sized")
async def sized(ctx: Ctx, value: str) -> int:
    return len(value)


@workflow("heap")
async def heap(ctx: Ctx) -> None:
    await ctx.wait_for("end")


spins = asyncio.Event()


async def is_spinning() -> bool:
    return spins.is_set()


@workflow("spinner")
async def spinner(ctx: Ctx) -> None:
    """One step after the other, for as long as the test wants."""
    while await ctx.step("spin", is_spinning):
        pass


ALL = [*WORKFLOWS, sized, heap, spinner]


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tree]:
    monkeypatch.setenv(EFFECTS, str(tmp_path / "effects"))
    with serving(tmp_path / "data", shards=SHARDS, revoke_ms=120_000) as tree:  # workers by hand do not ping
        yield tree


@asynchronous
async def test_calls_on_another_shard_are_answered_while_thousands_wait_on_a_hot_one(tree: Tree) -> None:
    """The hot shard's holder takes calls and answers none; then one comes that does, and all of them are answered."""
    with RawLease(tree.address, "by-hand", HOT) as stuck:
        async with Worker.connect(tree.address, workflows=ALL, name="real") as worker, Client.connect(tree.address) as busy:
            await until(lambda: worker.held == [COOL])
            ids = [id_on(HOT, SHARDS, "hot") for _ in range(3_000)]
            waiting = [asyncio.create_task(busy.execute("sized", id, "four")) for id in ids]
            await asyncio.to_thread(lambda: [stuck.expect(m.Call) for _ in ids])
            async with Client.connect(tree.address) as other:
                for client in (busy, other):
                    assert [await client.execute("counter", id_on(COOL, SHARDS), 3) for _ in range(20)] == [3] * 20
            with RawClient(tree.address, HOT) as raw:  # through the hot shard's process to the other's
                raw.call(StartCall(id_on(COOL, SHARDS), "sized", b'"four"', "one"), 1, COOL)
                await asyncio.to_thread(raw.expect, m.Reply)
            assert not any(task.done() for task in waiting)
            stuck.close()
            assert await asyncio.gather(*waiting) == [4] * len(ids)


@asynchronous
async def test_a_hot_shard_leaves_the_other_one_of_its_worker_its_turn(tree: Tree) -> None:
    """Two hundred runs that never pause, and a worker process that has both shards."""
    async with Worker.connect(tree.address, workflows=ALL, name="real") as worker, Client.connect(tree.address) as client:
        await until(lambda: worker.held == [HOT, COOL])
        spins.set()
        try:
            spinning = [asyncio.create_task(client.execute("spinner", id_on(HOT, SHARDS))) for _ in range(200)]
            await until(lambda: worker_steps(worker, HOT) > 2_000)
            for number in range(20):
                assert await client.execute("sized", id_on(COOL, SHARDS), "x" * number) == number
            assert not any(task.done() for task in spinning)
        finally:
            spins.clear()
        assert await asyncio.gather(*spinning) == [None] * 200


def worker_steps(worker: Worker, shard: int) -> int:
    return worker._runtimes[shard].metrics.attempts


@asynchronous
async def test_what_does_not_fit_the_queues_hears_busy_and_what_was_taken_is_carried_out(tree: Tree) -> None:
    """While nobody holds the shard, starts of 256 KiB are taken up to the bound; not one of those is lost, not one of the others is left
    behind."""
    async with Client.connect(tree.address) as client:
        args = [StartCall(id_on(HOT, SHARDS, "big"), "sized", b'"%s"' % (b"x" * (256 << 10)), f"q-{number}") for number in range(300)]
        with RawClient(tree.address, HOT) as raw:
            for request, call in enumerate(args):
                raw.call(call, request, HOT)
            frames = [await asyncio.to_thread(raw.expect, m.Error) for _ in range(300 - taken_at_most(args))]
            refused = {frame.request for frame, _ in frames}
            assert all(error.code == "busy" and "Nothing of this one was recorded" in error.message for _, error in frames)
            async with Worker.connect(tree.address, workflows=ALL, name="real"):
                answered = {(await asyncio.to_thread(raw.expect, m.Reply))[0].request for _ in range(300 - len(refused))}
                assert answered == set(range(300)) - refused
                await until(lambda: none_open(client))
                found = {run.id for run in await client.list({"type": "sized", "status": "ok"}, limit=1_000)}
        assert found == {call.id for request, call in enumerate(args) if request in answered}


def taken_at_most(calls: list[StartCall]) -> int:
    return bounds.CALLS_OF_ONE_BYTES_MAX // len(encode_call(calls[0]))


async def none_open(client: Client) -> bool:
    return await client.count({"status": "open"}) == 0


@asynchronous
async def test_a_client_that_asks_for_much_and_does_not_read_is_held_to_a_bound_and_holds_up_nobody(tree: Tree) -> None:
    """A journal of 12 MiB, asked for 500 times by somebody who reads nothing of it."""
    async with Worker.connect(tree.address, workflows=ALL, name="real"), Client.connect(tree.address) as client:
        run = await client.start("heap", id_on(HOT, SHARDS))
        for _ in range(4):
            await run.signal("lump", "y" * (3 * MIB))
        shard = tree.shard(HOT)
        assert len((await run.describe()).journal) == 5  # type: ignore[union-attr]
        before = shard.memory_info().rss
        with RawClient(tree.address, HOT) as deaf:
            deaf.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            for request in range(500):
                deaf.send(m.Call("describe", msgspec.msgpack.encode((run.id,))), request, HOT)
            most = before
            for number in range(100):
                assert await client.execute("sized", id_on(HOT, SHARDS), "x" * number) == number
                assert await client.count({"type": "heap"}) == 1
                most = max(most, shard.memory_info().rss)
        assert most - before < 2 * bounds.READS_AT_ONCE * 16 * MIB, f"{(most - before) // MIB} MiB more"
