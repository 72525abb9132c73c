"""Signals that a hand-driven worker sends to runs of a real one: the bytes of an outbox entry, what comes twice, what comes too late."""
from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from fusee_mp import Client, Ctx, Worker, workflow
from fusee_mp.core import records as r
from tests.server.loopback import asynchronous, id_on, until
from tests.server.raw import RawLease
from tests.server.tree import Tree, serving

SHARDS = 2


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    # The hand-driven worker does not ping.
    with serving(tmp_path / "data", shards=SHARDS, revoke_ms=120_000) as tree:
        yield tree


@workflow("collector")
async def collector(ctx: Ctx) -> list[int]:
    """Every value until none comes for 1.5 s."""
    values: list[int] = []
    while (value := await ctx.wait_for("value", timeout=1.5)) is not None:
        values.append(int(value))
    return values


def entry(number: int, to: str, value: bytes) -> bytes:
    """Message `number` of shard 0 to shard 1."""
    return r.encode_message(r.Message(0, number, "sender", r.encode(r.Send(1, 1_000, "1", 1, number, "signal", to, "value", value))))


def test_the_entry_of_a_signal_is_these_bytes() -> None:
    """A28: the sender's shard, the number, the sender's ID, and the record: its kind (10), run, time, operation, the shard it goes to, the
    number again, the word, whom it is for, the signal's name and its JSON payload."""
    record = b"\x9c\x0a\x01\xcd\x03\xe8\xa11\x01\x07\xa6signal\xa6target\xa5value\xc4\x0242\xa0\x00"
    assert entry(7, "target", b"42") == b"\x94\x00\x07\xa6sender\xc4" + bytes([len(record)]) + record


@asynchronous
async def test_an_entry_that_comes_twice_is_acknowledged_twice_and_applied_once(tree: Tree) -> None:
    """A29, A30, A31, A32: and one under an epoch that the sender does not have never arrives."""
    with RawLease(tree.address, "by-hand", 0) as hand:
        async with Worker.connect(tree.address, workflows=[collector], name="real") as real, Client.connect(tree.address) as client:
            await until(lambda: real.held == [1])
            run = await client.start("collector", id_on(1, SHARDS))
            for _ in range(2):
                hand.relay(1, 1, entry(1, run.id, b"42"))
                assert await asyncio.to_thread(hand.acknowledged) == (0, hand.epoch, 1)
            for by in (-1, 1):
                hand.relay(1, 2, entry(2, run.id, b"13"), epoch=hand.epoch + by)
            hand.relay(1, 2, entry(2, run.id, b"43"))
            assert await asyncio.to_thread(hand.acknowledged) == (0, hand.epoch, 2)
            assert await run.result() == [42, 43]


@asynchronous
async def test_entries_out_of_order_are_taken_in_order_and_each_once(tree: Tree) -> None:
    """A29, A30: what comes too early is not acknowledged, and is taken when it comes again."""
    with RawLease(tree.address, "by-hand", 0) as hand:
        async with Worker.connect(tree.address, workflows=[collector], name="real") as real, Client.connect(tree.address) as client:
            await until(lambda: real.held == [1])
            run = await client.start("collector", id_on(1, SHARDS))
            one, two, three = (entry(number, run.id, b"%d" % number) for number in (1, 2, 3))
            hand.relay(1, 3, three)
            hand.relay(1, 2, two)
            hand.relay(1, 1, one, two)
            assert (await asyncio.to_thread(hand.acknowledged))[2] == 2
            hand.relay(1, 1, one, two, three)
            await asyncio.to_thread(acknowledged_through, hand, 3)
            assert await run.result() == [1, 2, 3]


@asynchronous
async def test_what_was_applied_stays_applied_once_for_the_next_holder(tree: Tree) -> None:
    """A30: the sender, which heard of no acknowledgment, sends again to whoever holds the shard then."""
    with RawLease(tree.address, "by-hand", 0) as hand:
        async with Client.connect(tree.address) as client:
            async with Worker.connect(tree.address, workflows=[collector], name="first") as first:
                await until(lambda: first.held == [1])
                run = await client.start("collector", id_on(1, SHARDS))
                hand.relay(1, 1, entry(1, run.id, b"42"))
                await asyncio.to_thread(acknowledged_through, hand, 1)
            hand.relay(1, 1, entry(1, run.id, b"42"))
            async with Worker.connect(tree.address, workflows=[collector], name="second"):
                await asyncio.to_thread(acknowledged_through, hand, 1)
                assert await run.result() == [42]


def acknowledged_through(hand: RawLease, number: int) -> None:
    while hand.acknowledged()[2] < number:
        pass
