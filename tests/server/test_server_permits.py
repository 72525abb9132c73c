"""Permits of step limits between workers and tables: what is said, what is kept, and what a table that is started again knows."""
from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fusee_mp import Client, Ctx, Limit, Worker, shard_of, workflow
from fusee_mp.bounds import PERMIT_LEASE_MS
from fusee_mp.checksum import crc32c
from fusee_mp.core.permits import CLIENT_SHIFT, Granted, LimitSpec
from fusee_mp.core.waitqueue import DEFAULT, Priority
from fusee_mp.errors import StorageError
from fusee_mp.sdk.remote_limits import RemoteLimits
from fusee_mp.shardproc.limits import FILE, LimitTable
from fusee_mp.wire import messages as m
from fusee_mp.wire.frames import decode_frame, encode_frame
from fusee_mp.wire.kinds import Kind
from tests.server.loopback import asynchronous, id_on, until
from tests.server.tree import Tree, serving

SHARDS = 3
LIMIT = "one"
HOME = shard_of(LIMIT, SHARDS)


class Bodies:
    """What runs at the moment, and what may end."""

    def __init__(self) -> None:
        self.running: set[str] = set()
        self.most = 0
        self.may_end = asyncio.Event()

    async def hold(self, id: str) -> None:
        self.running.add(id)
        self.most = max(self.most, len(self.running))
        try:
            await self.may_end.wait()
        finally:
            self.running.discard(id)


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    with serving(tmp_path / "data", shards=SHARDS) as tree:
        yield tree


@asynchronous
async def test_a_permit_outlives_the_table_that_gave_it(tree: Tree) -> None:
    """E18: the grace of a restart is for whoever is gone; whoever is there says what it holds."""
    bodies = Bodies()

    @workflow("holder")
    async def holder(ctx: Ctx) -> None:
        await ctx.step("hold", bodies.hold, ctx.workflow_id, limit=LIMIT)

    async with Worker.connect(tree.address, workflows=[holder], name="w", grace="1s") as worker, Client.connect(tree.address) as client:
        await until(lambda: len(worker.held) == SHARDS)
        await client.limit(LIMIT, Limit(concurrent=1))
        elsewhere = set(range(SHARDS)) - {HOME}
        first = await client.start("holder", id_on(elsewhere, SHARDS))
        await until(lambda: first.id in bodies.running)
        epoch_gone = tree.shard(HOME)
        epoch_gone.kill()
        await until(lambda: len(worker.held) < SHARDS)
        await until(lambda: len(worker.held) == SHARDS)
        others = [await client.start("holder", id_on(shard, SHARDS)) for shard in range(SHARDS)]
        await until(lambda: waiting(client, SHARDS))  # the grace is over: the table queues
        await asyncio.sleep(PERMIT_LEASE_MS / 1000)  # and what nobody renewed would have ended
        assert bodies.running == {first.id} and await client.limit_in_use(LIMIT) == 1
        bodies.may_end.set()
        for run in (first, *others):
            await run.result()
        assert bodies.most == 1
        await until(lambda: unused(client))


async def unused(client: Client) -> bool:
    return await client.limit_in_use(LIMIT) == 0


async def waiting(client: Client, count: int) -> bool:
    return await client.limit_waiting(LIMIT) == count


def test_a_table_that_is_opened_again_knows_what_was_defined_and_nothing_that_was_granted(tmp_path: Path) -> None:
    """E16, E17"""
    table = LimitTable(tmp_path)
    asyncio.run(table.define(LIMIT, LimitSpec(1)))
    assert table.permits.acquire(LIMIT, 1, 1, now_ms=0) == Granted(1)
    again = LimitTable(tmp_path)
    assert again.permits.spec(LIMIT) == LimitSpec(1) and again.permits.in_use(LIMIT, 0) == 0
    assert again.permits.acquire(LIMIT, 2, 1, now_ms=0) == Granted(1)
    assert LimitTable(tmp_path / "new").permits.names() == []


@pytest.mark.parametrize("damage", [
    lambda data: data[:5], lambda data: b"XML1" + data[4:], lambda data: data[:-1] + bytes([data[-1] ^ 1]), lambda data: b"",
    lambda data: of(b'{"one":{"concurrent":-1}}'), lambda data: of(b'{"one":7}'), lambda data: of(b"{"),
], ids=["short", "magic", "checksum", "empty", "a_spec_that_cannot_be", "no_spec", "no_json"])
def test_damaged_definitions_are_an_error_at_the_open(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    """E16, E24"""
    asyncio.run(LimitTable(tmp_path).define(LIMIT, LimitSpec(1)))
    file = tmp_path / FILE
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(StorageError, match=f"damaged limit definitions: {re.escape(str(file))}"):
        LimitTable(tmp_path)


def of(body: bytes) -> bytes:
    """A file with this body, undamaged."""
    return b"FML1" + crc32c(body).to_bytes(4, "little") + body


@asynchronous
async def test_a_priority_goes_with_the_ask_alone_and_is_the_default_where_it_is_absent() -> None:
    """E22"""
    said: list[m.PermitSay] = []
    limits = RemoteLimits(asyncio.get_running_loop(), 0, SHARDS, lambda say, home: said.append(say))
    first = limits.ask(LIMIT, Priority(5, "big", 2), lambda: None, lambda: None)
    limits.answered(m.PermitAnswer("granted", LIMIT, first))
    limits.ask(LIMIT, DEFAULT, lambda: None, lambda: None)
    await until(lambda: any(say.what == "renew" for say in said))
    limits.release(first)
    limits.close()
    assert said[0] == m.PermitSay("ask", LIMIT, first, 5, "big", 2)
    others = said[1:]
    assert {say.what for say in others} == {"ask", "renew", "release"}
    assert {Priority(say.level, say.fairness, say.weight) for say in others} == {DEFAULT}
    short = m.decode(decode_frame(encode_frame(Kind.PERMIT_SAY, b"\x93\xa3ask\xa3one\x07")))
    assert short == m.PermitSay("ask", "one", 7)


@asynchronous
async def test_tickets_name_their_shard_and_the_next_is_asked_for_as_soon_as_one_is_granted() -> None:
    """E2, E19: a table that was started again knows of no ticket but those that are asked for."""
    said: list[m.PermitSay] = []
    limits = RemoteLimits(asyncio.get_running_loop(), 2, SHARDS, lambda say, home: said.append(say))
    first, second = (limits.ask(LIMIT, DEFAULT, lambda: None, lambda: None) for _ in range(2))
    assert (first, second) == ((2 << CLIENT_SHIFT) + 1, (2 << CLIENT_SHIFT) + 2)
    said.clear()
    limits.answered(m.PermitAnswer("granted", LIMIT, first))
    assert said == [m.PermitSay("ask", LIMIT, second)]
    limits.close()
