"""A process that is there and makes no progress is replaced, and what waited for it goes on."""
from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from fusee_mp import Client, Worker
from tests.server.flows import EFFECTS, WORKFLOWS
from tests.server.loopback import asynchronous, id_on, until
from tests.server.tree import Tree, is_alive, serving

SHARDS = 2
FROZEN, OTHER = 0, 1


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tree]:
    monkeypatch.setenv(EFFECTS, str(tmp_path / "effects"))
    with serving(tmp_path / "data", shards=SHARDS, silence_ms=1_500) as tree:
        yield tree


@asynchronous
async def test_a_frozen_shard_process_is_replaced_and_the_others_do_not_notice(tree: Tree) -> None:
    """G10: health is progress. Again and again, with calls under way."""
    async with Worker.connect(tree.address, workflows=WORKFLOWS, name="w") as worker, Client.connect(tree.address) as client:
        await until(lambda: len(worker.held) == SHARDS)
        for _ in range(2):
            waiter = await client.start("waiter", id_on(FROZEN, SHARDS))
            frozen = tree.shard(FROZEN)
            frozen.suspend()
            stuck = asyncio.create_task(client.execute("counter", id_on(FROZEN, SHARDS), 20))
            assert await client.execute("counter", id_on(OTHER, SHARDS), 20) == sum(range(20))
            assert not stuck.done()
            assert await stuck == sum(range(20))
            assert not is_alive(frozen) and tree.shard(FROZEN).pid != frozen.pid
            await waiter.signal("go", 3)
            assert await waiter.result() == 3
            assert worker.held == [FROZEN, OTHER]
        assert await client.count({"status": "open"}) == 0
