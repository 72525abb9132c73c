"""Steps under a limit of five, while the workers that run them, and the process that has the limit's table, are killed at random moments.

There are never more than five live permits, as the outside sees it and as the table says, and none is left at the end.

60 steps and 3 kills; with FUSEE_LONG=1 1,000 and 40. The seed of a run is printed, and FUSEE_SEED= takes it again.
"""
from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Final

import pytest

from fusee_mp import Client, Limit, shard_of
from fusee_mp.bounds import PERMIT_LEASE_MS
from tests.crash.permit_worker import LIMIT, Note, notes
from tests.crash.tormenting import Harried, background, harried
from tests.server.loopback import until
from tests.server.tree import Tree, serving

SHARDS: Final = 4
WORKERS: Final = 3
PERMITS: Final = 5
IS_LONG: Final = bool(os.environ.get("FUSEE_LONG"))
STEPS: Final = 1_000 if IS_LONG else 60
KILLS: Final = 40 if IS_LONG else 3
# Of so many kills one is of the process with the table; it may not die more often than three times in 30 s.
TABLE_EVERY: Final = 8 if IS_LONG else 3
# From the grant at the table to the body's beginning at the worker, on a busy machine.
ON_ITS_WAY_S: Final = 1.0


def lives(found: list[Note], killed_at: dict[int, float]) -> Iterator[tuple[float, float]]:
    """From when to when each body's permit was live: to its end, or, if its worker was killed, for at least a lease after it began."""
    begun: dict[tuple[str, int], float] = {}
    for note in found:
        if note.what == "begin":
            begun[note.key, note.pid] = note.at
        else:
            yield begun.pop((note.key, note.pid)), note.at
    for (_, pid), began in begun.items():
        yield began, max(killed_at[pid], began + PERMIT_LEASE_MS / 1000 - ON_ITS_WAY_S)


def most_at_once(intervals: list[tuple[float, float]]) -> int:
    """Where one ends as another begins, it is not counted twice."""
    changes = sorted([(begin, 1) for begin, _ in intervals] + [(end, -1) for _, end in intervals])
    return max(accumulate(change for _, change in changes))


def test_whatever_is_killed_a_limit_holds_and_no_permit_is_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seed = int(os.environ.get("FUSEE_SEED", time.time_ns() % 1_000_000))
    with capsys.disabled():
        print(f"\nseed {seed}")
    path = tmp_path / "holds"
    with serving(tmp_path / "data", shards=SHARDS) as tree:
        workers, in_table = asyncio.run(torture(tree, path, random.Random(seed)))
    killed_at = {pid: at for worker in workers for pid, at in worker.killed_at.items()}
    tables = KILLS // TABLE_EVERY
    found = notes(path)
    outside = most_at_once(list(lives(found, killed_at)))
    begun = sum(note.what == "begin" for note in found)
    with capsys.disabled():
        print(f"kills of workers {len(killed_at)}, of the table {tables}; steps {STEPS};", end=" ")
        print(f"bodies {begun}, of them cut short {2 * begun - len(found)};", end=" ")
        print(f"live permits at most {outside} seen outside, {max(in_table)} in the table; left at the end {in_table[-1]}")
    assert len(killed_at) == KILLS - tables and max(in_table) == PERMITS, "this was too little to show anything"
    assert outside <= PERMITS and in_table[-1] == 0


async def torture(tree: Tree, path: Path, draw: random.Random) -> tuple[list[Harried], list[int]]:
    """The workers, and what the table said was in use, from the first look to the last."""
    in_table: list[int] = []
    async with Client.connect(tree.address) as client, harried(WORKERS, tree.address, path, "tests.crash.permit_worker") as workers:
        await client.limit(LIMIT, Limit(concurrent=PERMITS))
        async with background(look(client, in_table)):
            async with background(kill(tree, workers, path, draw)), asyncio.timeout(300):
                results = await asyncio.gather(*(client.execute("holder", f"holder-{value}", value) for value in range(STEPS)))
            await until(lambda: in_table[-1] == 0)
            assert results == list(range(STEPS)) and await client.limit_waiting(LIMIT) == 0
    return workers, in_table


async def kill(tree: Tree, workers: list[Harried], path: Path, draw: random.Random) -> None:
    """At random moments of the work, one of the workers that hold a permit then, or the table."""
    for number, ended in enumerate(sorted(draw.sample(range(STEPS * 9 // 10), KILLS))):
        await until(lambda ended=ended: path.exists() and sum(note.what == "end" for note in notes(path)) >= ended)  # type: ignore[misc]
        busy = await until(lambda: holding(workers, notes(path)))
        if number % TABLE_EVERY == TABLE_EVERY // 2:
            tree.shard(shard_of(LIMIT, SHARDS)).kill()
        else:
            await draw.choice(busy).kill(0)


def holding(workers: list[Harried], found: list[Note]) -> list[Harried]:
    """Those in which a body runs."""
    running = Counter[int]()
    for note in found:
        running[note.pid] += 1 if note.what == "begin" else -1
    busy = {pid for pid, bodies in running.items() if bodies}
    return [worker for worker in workers if worker.process.pid in busy and worker.process.pid not in worker.killed_at]


async def look(client: Client, in_table: list[int]) -> None:
    while True:
        in_table.append(await client.limit_in_use(LIMIT))
        await asyncio.sleep(0.02)
