"""Workers that are restarted in turn, in order, under load: no call fails, and no body runs twice. FUSEE_LONG=1 goes round ten times."""
from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from fusee_mp import Client
from tests.server.flows import effects
from tests.server.loopback import asynchronous, until
from tests.server.tree import Tree, serving
from tests.server.workers import WorkerProcess

SHARDS = 4
ROUNDS = 10 if os.environ.get("FUSEE_LONG") else 1
CONCURRENT = 12


class Load:
    """Clients that go from one run to the next until told to stop: steps, a timer, a signal, a child on any shard."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._is_over = False
        self._tasks = [asyncio.create_task(self._orders(number)) for number in range(CONCURRENT)]
        self.done = 0

    async def _orders(self, number: int) -> None:
        amount = 0
        while not self._is_over:
            amount += 1
            id = f"order-{number}-{amount}"
            run = await self._client.start("order", id, [f"parcel-of-{id}", amount])
            await run.signal("ship", 7)
            assert await run.result() == 1 + amount + 7 + 2 * amount
            self.done += 1

    async def finish(self) -> None:
        self._is_over = True
        await asyncio.gather(*self._tasks)

    async def more(self, count: int) -> None:
        """Wait until so many more runs have ended, all of them well."""
        wanted = self.done + count
        await until(lambda: self.done >= wanted or any(task.done() for task in self._tasks))
        for task in self._tasks:
            if task.done():
                task.result()


@pytest.mark.parametrize("most", [0, 2], ids=["one_holds_all", "each_holds_half"])
@asynchronous
async def test_a_rolling_restart_of_workers_fails_no_call_and_repeats_no_step(tmp_path: Path, most: int) -> None:
    path = tmp_path / "effects"
    # A lease that is not handed back would last for minutes.
    with serving(tmp_path / "data", shards=SHARDS, revoke_ms=300_000) as tree:
        workers = [WorkerProcess(tree.address, "w0", path, max_shards=most)]
        await until(lambda: " joined" in tree.log)  # the first holds what it may, the second the rest, or nothing yet
        workers.append(WorkerProcess(tree.address, "w1", path, max_shards=most))
        await until(lambda: tree.log.count(" joined") == 2)
        try:
            async with Client.connect(tree.address) as client:
                load = Load(client)
                await load.more(50)
                for number in [0, 1] * ROUNDS:
                    workers[number] = await restarted(tree, workers[number], path, most)
                    await load.more(20)
                await load.finish()
                assert await client.count({"status": "open"}) == 0
        finally:
            for worker in workers:
                worker.close()
    begun = Counter(effect.key for effect in effects(path))
    assert len(begun) == 4 * load.done and not {key: count for key, count in begun.items() if count > 1}


async def restarted(tree: Tree, old: WorkerProcess, path: Path, most: int) -> WorkerProcess:
    """The next start of a worker that held shards; it has joined."""
    await asyncio.to_thread(old.holds)
    old.signal(signal.SIGTERM)
    assert await asyncio.to_thread(old.wait) == 0, old.log
    old.close()
    joined = tree.log.count(" joined")
    worker = WorkerProcess(tree.address, old.name, path, max_shards=most)
    await until(lambda: tree.log.count(" joined") > joined)
    return worker
