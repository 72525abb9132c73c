"""Workflows of several workers that speak with each other through one server (A1 to A16, A30, A32)."""
from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from fusee_mp import Cancelled, Client, Ctx, Worker, Workflow, workflow
from tests.server.loopback import Proxy, asynchronous, id_on, until
from tests.server.tree import Tree, serving

SHARDS = 4


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    with serving(tmp_path_factory.mktemp("workers") / "data", shards=SHARDS) as tree:
        yield tree


@pytest.fixture
def own_tree(tmp_path: Path) -> Iterator[Tree]:
    """One without the runs of other tests."""
    with serving(tmp_path / "data", shards=SHARDS) as tree:
        yield tree


class Site:
    """The workflows as one worker has them; `steps` counts the bodies that it ran."""

    def __init__(self) -> None:
        self.steps: Counter[str] = Counter()

    def workflows(self) -> list[Workflow[Any, Any]]:
        steps = self.steps

        async def double(id: str, value: int) -> int:
            steps[id] += 1
            return 2 * value

        @workflow("child")
        async def child(ctx: Ctx, value: int) -> int:
            return await ctx.step("double", double, ctx.workflow_id, value)

        @workflow("patient_child")
        async def patient_child(ctx: Ctx, value: int) -> int:
            doubled = await ctx.step("double", double, ctx.workflow_id, value)
            return doubled + int(await ctx.wait_for("go"))

        @workflow("parent")
        async def parent(ctx: Ctx, wanted: list[str]) -> int:
            kind, id = wanted
            return int(await ctx.child(kind, id, 7)) + 1

        @workflow("signaller")
        async def signaller(ctx: Ctx, to: str) -> str:
            await ctx.signal(to, "value", 42)
            return "sent"

        @workflow("canceller")
        async def canceller(ctx: Ctx, whom: str) -> None:
            await ctx.cancel(whom, "no longer wanted")

        @workflow("victim")
        async def victim(ctx: Ctx) -> int:
            return int(await ctx.wait_for("value"))

        @workflow("collector")
        async def collector(ctx: Ctx) -> list[int]:
            values = []
            while (value := await ctx.wait_for("value", timeout=1.5)) is not None:
                values.append(int(value))
            return values

        return [child, patient_child, parent, signaller, canceller, victim, collector]


@contextlib.asynccontextmanager
async def two_workers(tree: Tree) -> AsyncIterator[tuple[Worker, Worker, Site, Site]]:
    a_site, b_site = Site(), Site()
    async with (
        Worker.connect(tree.address, workflows=a_site.workflows(), max_shards=2, name="a") as a,
        Worker.connect(tree.address, workflows=b_site.workflows(), max_shards=2, name="b") as b,
    ):
        await until(lambda: len(a.held) + len(b.held) == SHARDS)
        yield a, b, a_site, b_site


@asynchronous
async def test_workers_share_the_shards_and_their_workflows_speak_with_each_other(tree: Tree) -> None:
    """A1 to A10."""
    async with two_workers(tree) as (a, b, a_site, b_site), Client.connect(tree.address) as client:
        assert len(a.held) == len(b.held) == 2 and set(a.held) | set(b.held) == set(range(SHARDS))  # A1
        for one, other, other_site in ((a, b, b_site), (b, a, a_site)):  # A3, with the roles swapped
            child = id_on(other.held, SHARDS)
            run = await client.start("parent", id_on(one.held, SHARDS), ["child", child])
            assert await run.result() == 15
            assert other_site.steps[child] == 1 and (a_site.steps + b_site.steps)[child] == 1  # A4

        target = await client.start("victim", id_on(a.held, SHARDS))
        sent = await client.start("signaller", id_on(b.held, SHARDS), target.id)
        assert await sent.result() == "sent" and await target.result() == 42  # A5

        victim = await client.start("victim", id_on(b.held, SHARDS, "cancelled"))
        await client.start("canceller", id_on(a.held, SHARDS), victim.id)
        with pytest.raises(Cancelled, match="no longer wanted"):  # A6
            await victim.result()

        listed = await client.list()
        assert {run.shard for run in listed} & set(a.held) and {run.shard for run in listed} & set(b.held)  # A7
        assert [run.shard for run in listed] == sorted(run.shard for run in listed)  # A8
        assert all(isinstance(run.id, str) and isinstance(run.shard, int) for run in listed)
        assert [run.id for run in await client.list({"type": "signaller"})] == [sent.id]  # A9


@asynchronous
async def test_a_signal_wait_ends_with_nothing_at_its_time_and_each_signal_counts_once(tree: Tree) -> None:
    """A30, A32."""
    async with two_workers(tree) as (a, b, _, _), Client.connect(tree.address) as client:
        collector = await client.start("collector", id_on(a.held, SHARDS))
        await (await client.start("signaller", id_on(b.held, SHARDS), collector.id)).result()
        assert await collector.result() == [42]


@asynchronous
async def test_a_standby_takes_exactly_what_a_hung_and_then_dead_worker_held(own_tree: Tree) -> None:
    """A5, A11 to A14: to send a signal is not to wait for whom it is for."""
    a_site, b_site, c_site, tree = Site(), Site(), Site(), own_tree
    async with contextlib.AsyncExitStack() as leaving, Proxy(tree.address) as proxy, Client.connect(tree.address) as client:
        a = await leaving.enter_async_context(Worker.connect(tree.address, workflows=a_site.workflows(), max_shards=2, name="a"))
        b = await leaving.enter_async_context(Worker.connect(proxy.address, workflows=b_site.workflows(), max_shards=2, name="b"))
        await until(lambda: len(a.held) == len(b.held) == 2)
        assert await client.execute("parent", id_on(a.held, SHARDS), ["child", id_on(a.held, SHARDS)]) == 15
        standby = asyncio.create_task(c_joins(tree, c_site))
        await until(lambda: "worker c/" in tree.log)
        b_held = b.held
        child, victim = id_on(b_held, SHARDS), await client.start("victim", id_on(b_held, SHARDS))
        proxy.freeze()
        parent = await client.start("parent", id_on(a.held, SHARDS), ["child", child])
        assert await client.execute("signaller", id_on(a.held, SHARDS), victim.id) == "sent"  # A5
        assert not standby.done() and b.held == b_held  # A11
        proxy.refuse()
        proxy.cut()
        c = await standby
        leaving.push_async_callback(c.close)
        await until(lambda: c.held == b_held)  # A12
        assert await parent.result() == 15  # A13
        assert b_site.steps[child] == 0 and c_site.steps[child] == 1
        assert await victim.result() == 42
        found = await c.engine.list({"type": "child"}, shards=c.held, limit=100)  # A14
        assert [run.id for run in found] == [child]
        assert set(a.held).isdisjoint(c.held) and b.held == []


async def c_joins(tree: Tree, site: Site) -> Worker:
    return await Worker.connect(tree.address, workflows=site.workflows(), max_shards=2, name="c")


@asynchronous
async def test_a_childs_result_goes_to_its_parents_new_holder(tree: Tree) -> None:
    """A15, A16."""
    a_site, b_site, c_site = Site(), Site(), Site()
    async with contextlib.AsyncExitStack() as leaving, Proxy(tree.address) as proxy, Client.connect(tree.address) as client:
        a = await leaving.enter_async_context(Worker.connect(proxy.address, workflows=a_site.workflows(), max_shards=2, name="a"))
        b = await leaving.enter_async_context(Worker.connect(tree.address, workflows=b_site.workflows(), max_shards=2, name="b"))
        await until(lambda: len(a.held) == len(b.held) == 2)
        a_held = a.held
        child = id_on(b.held, SHARDS)
        parent = await client.start("parent", id_on(a_held, SHARDS), ["patient_child", child])
        await until(lambda: b_site.steps[child])
        proxy.refuse()
        proxy.cut()
        c = await c_joins(tree, c_site)
        leaving.push_async_callback(c.close)
        await until(lambda: c.held == a_held)
        await client.handle(child).signal("go", 3)
        assert await parent.result() == 18
        assert b_site.steps[child] == 1 and c_site.steps[child] == 0
