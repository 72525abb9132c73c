"""A keeper that hangs or dies stops nobody but who asks it (G10)."""
from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fusee_mp import Client, Unavailable, Worker
from tests.processes import is_alive
from tests.server.flows import EFFECTS, WORKFLOWS
from tests.server.loopback import asynchronous, id_on, until
from tests.server.tree import Tree, serving


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    with serving(tmp_path_factory.mktemp("keepers") / "data", shards=1) as tree:
        yield tree


@pytest.fixture(autouse=True)
def _effects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(EFFECTS, str(tmp_path / "effects"))


@asynchronous
async def test_a_shard_goes_on_while_its_keeper_is_frozen_and_reads_are_answered_when_it_thaws(tree: Tree) -> None:
    """G10"""
    async with Worker.connect(tree.address, workflows=WORKFLOWS) as worker, Client.connect(tree.address) as client:
        waiter = await client.start("waiter", None)
        keeper = tree.keeper(0)
        keeper.suspend()
        try:
            reading = asyncio.create_task(client.status(waiter.id))
            assert await client.execute("counter", None, 50) == sum(range(50))
            await waiter.signal("go", 4)
            assert await waiter.result() == 4
            assert worker.held == [0] and not reading.done()
        finally:
            keeper.resume()
        for status in (await reading, await client.status(waiter.id)):
            assert status is not None
        assert status is not None and status.status == "ok"


@pytest.mark.skipif(not os.environ.get("FUSEE_LONG"), reason="takes half a minute: FUSEE_LONG=1")
@asynchronous
async def test_reads_are_unavailable_in_bounded_time_and_a_keeper_that_stays_frozen_is_replaced(tree: Tree) -> None:
    """G10"""
    async with Worker.connect(tree.address, workflows=WORKFLOWS) as worker, Client.connect(tree.address) as client:
        keeper = tree.keeper(0)
        keeper.suspend()
        run = await client.start("counter", None, 5)
        assert await run.result() == 10
        with pytest.raises(Unavailable):
            await client.status(run.id)
        await until(lambda: "does not answer and is ended" in tree.log)
        status = await client.status(run.id)
        assert status is not None and status.status == "ok" and worker.held == [0]
        assert tree.keeper(0).pid != keeper.pid


@asynchronous
async def test_a_keeper_killed_again_and_again_under_load_loses_nothing(tree: Tree) -> None:
    async with Worker.connect(tree.address, workflows=WORKFLOWS) as worker, Client.connect(tree.address) as client:
        is_over = False
        results: list[int] = []
        seen: list[str] = []

        async def load() -> None:
            while not is_over:
                run = await client.start("counter", id_on(0, 1), 20)
                results.append(await run.result())
                status = await client.status(run.id)
                assert status is not None and status.status == "ok"
                seen.append(run.id)

        tasks = [asyncio.create_task(load()) for _ in range(8)]
        for number in range(20):
            done = len(seen)
            keeper = await asyncio.to_thread(tree.keeper, 0)
            keeper.kill()
            await until(lambda keeper=keeper: not is_alive(keeper))
            if number % 5 == 4:  # else the next is killed while it begins
                await until(lambda done=done: len(seen) > done)
        is_over = True
        await asyncio.gather(*tasks)
        assert results and set(results) == {sum(range(20))}
        assert await client.count({"type": "counter", "status": "ok"}) >= len(results)
        assert worker.held == [0]
