"""Queries and updates through a server: the same answers as embedded, across workers and a server that is killed."""
from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from fusee_mp import Client, Ctx, Rejected, Worker, WorkflowFailed, query, signal, update, workflow
from tests.server.loopback import asynchronous, until
from tests.server.tree import Tree, serving

GO = signal("go", int)
PLUS = update("plus", int, returns=int)
TOTAL = query("total", returns=int)


@workflow("server_adder")
async def adder(ctx: Ctx, start: int) -> int:
    total, ends = start, False

    async def plus(n: int) -> int:
        nonlocal total
        more = await ctx.wait_for(GO)
        total += n + more
        return total

    def check(n: int) -> None:
        if n < 0:
            raise ValueError(f"{n} is less than nothing")

    def fail() -> None:
        raise KeyError("lost")

    def end() -> None:
        nonlocal ends
        ends = True

    ctx.on_query(TOTAL, lambda: total)
    ctx.on_update(PLUS, plus, check)
    ctx.on_update("fail", fail)
    ctx.on_update("end", end)
    await ctx.wait_until(lambda: ends)
    return total


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    with serving(tmp_path_factory.mktemp("handlers") / "data") as tree:
        yield tree


async def accepted(client: Client, id: str) -> bool:
    detail = await client.describe(id)
    return detail is not None and any(record.kind == "update" for record in detail.journal)


@asynchronous
async def test_updates_and_queries_go_through_a_server(tree: Tree) -> None:
    async with Worker.connect(tree.address, workflows=[adder]), Client.connect(tree.address) as client:
        run = await client.start(adder, "a", 1)
        for _ in range(2):
            await run.signal(GO, 10)
            assert await run.update(PLUS, 5, update_id="u-1") == 16
        assert await run.query(TOTAL) == 16
        with pytest.raises(Rejected, match="-1 is less than nothing"):
            await run.update(PLUS, -1)
        with pytest.raises(WorkflowFailed) as found:
            await run.update("fail")
        assert isinstance(found.value.__cause__, KeyError)
        await run.update("end")
        assert (await run.result(), await run.query(TOTAL), await run.update(PLUS, 5, update_id="u-1")) == (16, 16, 16)
        started = asyncio.create_task(client.update_with_start(adder, "b", 100, PLUS, 1))
        await until(lambda: client.status("b"))
        await client.handle("b").signal(GO, 0)
        assert (await started)[1] == 101


@asynchronous
async def test_an_update_in_flight_goes_on_with_the_next_worker(tree: Tree) -> None:
    async with Client.connect(tree.address) as client:
        async with Worker.connect(tree.address, workflows=[adder]):
            run = await client.start(adder, "c", 1)
            update = asyncio.create_task(run.update(PLUS, 5, update_id="u-1"))
            await until(lambda: accepted(client, "c"))
        async with Worker.connect(tree.address, workflows=[adder]):
            again = asyncio.create_task(run.update(PLUS, 5, update_id="u-1"))
            await run.signal(GO, 10)
            assert (await update, await again, await run.query(TOTAL)) == (16, 16, 16)


@asynchronous
async def test_an_update_in_flight_is_finished_after_the_server_was_killed(tmp_path: Path) -> None:
    """C16"""
    with serving(tmp_path / "data") as tree:
        async with Client.connect(tree.address) as client, Worker.connect(tree.address, workflows=[adder]):
            run = await client.start(adder, "d", 1)
            update = asyncio.create_task(run.update(PLUS, 5))
            await until(lambda: accepted(client, "d"))
            await asyncio.to_thread(tree.restart)
            await run.signal(GO, 10)
            assert await update == 16
            detail = await client.describe("d")
            assert detail is not None and [record.kind for record in detail.journal].count("update") == 1
