"""The keeper of an engine in memory."""
from __future__ import annotations

import asyncio

import keeper_shard
import pytest
from keeper_shard import in_loop, until
from store_records import quiet, start, step

from fusee_mp.core import records as r
from fusee_mp.errors import Rejected, Unavailable
from fusee_mp.keeper.memory import MemoryKeeper

assert keeper_shard


def body(*records: r.Record) -> bytes:
    return b"".join(r.frame(r.encode(record)) for record in records)


@in_loop
async def test_a_question_sees_everything_published() -> None:
    keeper = MemoryKeeper()
    keeper.publish_records(1, body(start(), step()))
    keeper.publish_records(3, memoryview(body(quiet())))
    assert (await keeper.read("find", ("order-1",), min_lsn=3)).status == "suspended"
    assert [line.id for line in await keeper.read("list", ({"status": "suspended"},))] == ["order-1"]
    assert keeper.applied_lsn == 3 == await keeper.checkpoint() and keeper.lag == 0
    await keeper.close()


@in_loop
async def test_a_question_waits_for_its_lsn_or_its_timeout() -> None:
    keeper = MemoryKeeper()
    waiting = asyncio.create_task(keeper.read("find", ("order-1",), min_lsn=1))
    with pytest.raises(Unavailable, match="needs LSN 1, the tables are at 0"):
        await keeper.read("state", min_lsn=1, timeout=0.01)
    keeper.publish_records(1, body(start()))
    assert (await waiting).run == 1
    await keeper.close()


@in_loop
async def test_what_is_published_is_applied_without_anybody_asking() -> None:
    keeper = MemoryKeeper()
    applied: list[int] = []
    keeper.on_applied = applied.append
    keeper.publish_records(1, body(start()))
    await until(lambda: applied == [1])
    await keeper.close()


@in_loop
async def test_a_record_that_is_none_halts_folding_and_says_where() -> None:
    keeper = MemoryKeeper()
    keeper.publish_records(1, body(start()))
    keeper.publish_records(2, r.frame(b"\xc1"))
    keeper.publish_records(3, body(step()))
    assert (await keeper.read("state")).applied_lsn == 1 and "LSN 2 cannot be folded" in keeper.trouble
    with pytest.raises(Unavailable, match="LSN 2 cannot be folded"):
        await keeper.read("state", min_lsn=3)
    with pytest.raises(Rejected):
        await keeper.read("nonsense")
    await keeper.close()
    with pytest.raises(Unavailable, match="closed"):
        await keeper.read("state")
