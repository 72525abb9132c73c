"""A server under load whose processes are killed at random moments, and what must be true afterwards.

1. Nothing acknowledged is missing: starts, signals. Each has the effect of one, however often it had to be sent.
2. A result once reported is the same whenever it is asked for.
3. The outside never sees two inputs under one idempotency key: no body ran ahead of records that were then lost.
4. When the killing ends, every run comes to its end.

12 kills; with FUSEE_LONG=1 200. The seed of a run is printed, and FUSEE_SEED= takes it again.
"""
from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from fusee_mp import Client, FuseeError
from tests.server.flows import effects
from tests.server.tree import Tree, serving
from tests.server.workers import WorkerProcess

SHARDS: Final = 3
CONCURRENT: Final = 16
IS_LONG: Final = bool(os.environ.get("FUSEE_LONG"))
ROUNDS: Final = 200 if IS_LONG else 12
# The router gives up on a shard process that dies more often within 30 s.
SHARD_KILLS_MAX: Final = 3


@dataclass
class Seen:
    """What clients were told."""

    started: set[str] = field(default_factory=set)
    signalled: dict[str, int] = field(default_factory=dict)
    results: dict[str, int] = field(default_factory=dict)
    expected: dict[str, int] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)


class Load:
    """Clients that place orders, ship them and wait for their results, until told to stop placing more."""

    def __init__(self, client: Client, draw: random.Random) -> None:
        self.seen = Seen()
        self._client, self._draw = client, draw
        self._count = 0
        self._is_over = False
        self._tasks = [asyncio.create_task(self._place_orders()) for _ in range(CONCURRENT)]

    async def finish(self) -> None:
        """Place no more, and wait for those that were placed."""
        self._is_over = True
        await asyncio.gather(*self._tasks)

    async def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _place_orders(self) -> None:
        while not self._is_over:
            self._count += 1
            id, amount, shipped = f"order-{self._count}", self._draw.randrange(1000), self._draw.randrange(1000)
            try:
                await self._place(id, amount, shipped)
            except FuseeError as e:
                self.seen.refused.append(f"{id}: {e.code}: {e}")

    async def _place(self, id: str, amount: int, shipped: int) -> None:
        seen = self.seen
        seen.expected[id] = 1 + amount + shipped + 2 * amount
        run = await self._client.start("order", id, [f"parcel-of-{id}", amount])
        seen.started.add(id)
        await run.signal("ship", shipped)
        seen.signalled[id] = shipped
        seen.results[id] = int(await run.result())


class Killer:
    """Kills one process a round, and puts back what does not come back by itself."""

    def __init__(self, tree: Tree, path: Path, draw: random.Random) -> None:
        self._tree, self._path, self._draw = tree, path, draw
        self._addresses = tree.address, f"unix:{tree.directory.parent / 's'}"  # one over TCP, one over rings
        self.workers = [WorkerProcess(address, f"w{number}", path, max_shards=2) for number, address in enumerate(self._addresses)]
        self.killed: Counter[str] = Counter()
        self._shard_kills: dict[int, deque[float]] = {shard: deque(maxlen=SHARD_KILLS_MAX) for shard in range(SHARDS)}

    def close(self) -> None:
        for worker in self.workers:
            worker.close()

    def strike(self) -> None:
        kinds = [("router", self._router), ("shard", self._shard), ("keeper", self._keeper), ("worker", self._worker)]
        kind, kill = self._draw.choice(kinds)
        kill()
        self.killed[kind] += 1

    def _router(self) -> None:
        self._tree.restart()
        for kills in self._shard_kills.values():
            kills.clear()

    def _shard(self) -> None:
        shard = self._draw.randrange(SHARDS)
        kills = self._shard_kills[shard]
        if len(kills) == SHARD_KILLS_MAX and time.monotonic() - kills[0] < 31:
            return self._keeper()
        kills.append(time.monotonic())
        self._tree.shard(shard).kill()

    def _keeper(self) -> None:
        self._tree.keeper(self._draw.randrange(SHARDS)).kill()

    def _worker(self) -> None:
        self.workers[self._draw.randrange(len(self.workers))].signal(signal.SIGKILL)

    def look_after_workers(self) -> None:
        """Start again what has ended: killed, or begun when there was no server."""
        for number, old in enumerate(self.workers):
            if old.process.poll() is not None:
                old.close()
                self.workers[number] = WorkerProcess(self._addresses[number], old.name, self._path, max_shards=2)


def test_whatever_is_killed_nothing_acknowledged_is_lost_or_done_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """G10, G12: no shard stays behind, no run stays with a worker that is gone."""
    seed = int(os.environ.get("FUSEE_SEED", time.time_ns() % 1_000_000))
    with capsys.disabled():
        print(f"\nseed {seed}")
    path = tmp_path / "effects"
    with serving(tmp_path / "data", shards=SHARDS, unix=str(tmp_path / "s")) as tree:
        killer = Killer(tree, path, random.Random(seed))
        try:
            seen, found = asyncio.run(run_all(tree, killer, random.Random(seed + 1)))
        finally:
            killer.close()
    doubled = two_inputs(path)
    wrong = {id: (seen.expected[id], result) for id, result in seen.results.items() if result != seen.expected[id]}
    with capsys.disabled():
        kills = ", ".join(f"{kind} {count}" for kind, count in sorted(killer.killed.items()))
        print(f"rounds {ROUNDS} ({kills}); orders {len(seen.started)}; lost acknowledgements {len(found.lost)};", end=" ")
        print(f"changed results {len(found.changed)}; keys with two inputs {len(doubled)}; stuck runs {len(found.stuck)};", end=" ")
        print(f"repeated messages {len(found.repeated)}; wrong results {len(wrong)}; refused {len(seen.refused)}")
    assert len(seen.results) >= ROUNDS, "the load was too small to show anything"
    assert not (found.lost or found.changed or found.stuck or found.repeated or doubled or wrong or seen.refused), (
        found, doubled, wrong, seen.refused[:5],
    )


@dataclass
class Found:
    """What was not as it must be."""

    lost: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)


async def run_all(tree: Tree, killer: Killer, draw: random.Random) -> tuple[Seen, Found]:
    async with Client.connect(tree.address) as client:
        load = Load(client, draw)
        looking_after = asyncio.create_task(look_after(killer))
        try:
            for _ in range(ROUNDS):
                await asyncio.sleep(draw.random() * 0.6)  # the moment is the point
                await asyncio.to_thread(killer.strike)
            async with asyncio.timeout(60):
                await load.finish()
        except TimeoutError:
            pass
        finally:
            await load.cancel()
        found = await look(client, load.seen)
        looking_after.cancel()
        return load.seen, found


async def look_after(killer: Killer) -> None:
    while True:
        killer.look_after_workers()
        await asyncio.sleep(0.05)


async def look(client: Client, seen: Seen) -> Found:
    """Ask again for everything."""
    found = Found()
    for id in sorted(seen.started):
        detail = await client.describe(id)
        if detail is None:
            found.lost.append(f"start of {id}")
            continue
        kinds = Counter(record.kind for record in detail.journal)
        if id in seen.signalled and not kinds["signal"]:
            found.lost.append(f"signal to {id}")
        if max(kinds["signal"], kinds["child"], kinds["child_done"]) > 1:
            found.repeated.append(f"{id}: {dict(kinds)}")
        if detail.is_open:
            found.stuck.append(f"{id}: {dict(kinds)}")
        elif id in seen.results and await client.handle(id).result() != seen.results[id]:
            found.changed.append(id)
    open_runs = await client.list({"status": "open"}, limit=1000)
    found.stuck += [run.id for run in open_runs if run.id not in seen.expected]
    return found


def two_inputs(path: Path) -> dict[str, set[str]]:
    inputs: dict[str, set[str]] = defaultdict(set)
    for effect in effects(path):
        inputs[effect.key].add(repr(effect.input))
    return {key: several for key, several in inputs.items() if len(several) > 1}
