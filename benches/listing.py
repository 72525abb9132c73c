"""Lists and counts over many runs, asked of an engine while it runs steps.

    python benches/listing.py [RUNS] [SHARDS] [DIRECTORY]

Writes RUNS runs (default 1,000,000; nine in ten ended, one in a thousand failed, each with attributes) to the logs of a new directory as
their shards would, lets the keepers fold them, then opens an engine on it. Prints the time of the opening, of the first pages and of
counts, and, for the time in which these are asked, the longest stretch without a turn of the engine's loop and the rate of a
workflow of steps beside them. Wall time; name a directory on the disk that matters.
"""
from __future__ import annotations

import asyncio
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

from fusee_mp import Config, Ctx, Engine, workflow
from fusee_mp.core import records as r
from fusee_mp.core.placement import shard_of
from fusee_mp.log import LogOptions
from fusee_mp.log.data import DataDirectory
from fusee_mp.shardproc.host import HostOptions, ShardHost

LOT = 200
AHEAD = 100_000
ASKED = 20
FAR_MS = 1 << 42  # the sleepers sleep until 2109
WHERES: list[Any] = [
    None, {"status": "failed"}, {"status": "open"}, {"type": "type-3"}, {"type": "type-3", "status": "ok"}, {"customer": "c7"},
    {"amount": {"gte": 60, "lt": 200}, "status": "failed"}, {"amount": {"gte": 60, "lt": 200}}, {"customer": "nobody"},
    {"customer": {"in": ["c7", "c9"]}, "amount": {"gt": 498}}, {"customer": {"prefix": "c99"}, "type": "type-3"},
]


@workflow
async def steps(ctx: Ctx) -> None:
    while True:
        await ctx.step("one", one)


async def one() -> None:
    counted[0] += 1


counted = [0]


def run_records(run: int, id: str, at: int) -> list[r.Record]:
    attributes = f'{{"customer":"c{run % 1000}","amount":{run % 500}}}'.encode()
    start = r.Start(run, at, id, f"type-{run % 5}", b'{"n":1}', f"q-{id}", attributes=attributes)
    step = r.StepDone(run, at, "1", "charge", 1, "ok", b'{"ok":true}')
    if run % 10 == 0:
        return [start, step, r.Quiet(run, at, FAR_MS)]
    return [start, step, r.Done(run, at, "failed" if run % 1000 == 1 else "ok", b'{"ok":true}')]


def lots(shard: int, shards: int, runs: int) -> Iterator[list[bytes]]:
    draw, at, lot, run = random.Random(shard), 1_700_000_000_000, list[bytes](), 0
    while run < runs:
        id = f"order-{draw.getrandbits(64):016x}"
        if shard_of(id, shards) == shard:
            run, at = run + 1, at + 1
            lot += map(r.encode, run_records(run, id, at))
            if len(lot) >= LOT:
                yield lot
                lot = []
    yield lot


async def fill(directory: Path, shard: int, shards: int, runs: int) -> None:
    host = await ShardHost.open(directory, shard, HostOptions(LogOptions(), 30_000, True))
    await host.grant("bench", 1_700_000_000_000)
    for lot in lots(shard, shards, runs):
        lsn = host.append(b"".join(map(r.frame, lot)), len(lot))
        while lsn - host.applied_lsn > AHEAD or host.pending_bytes > 4 << 20:
            await asyncio.sleep(0.005)
    await host.until_durable(lsn)
    while host.applied_lsn < lsn:
        await asyncio.sleep(0.01)
    await host.close()


async def watch(longest: list[float]) -> None:
    """The longest time between two turns of the loop."""
    last = perf_counter()
    while True:
        await asyncio.sleep(0.001)
        longest[0] = max(longest[0], perf_counter() - last - 0.001)
        last = perf_counter()


async def ask(engine: Engine, label: str, make: Any) -> None:
    longest = [0.0]
    watching = asyncio.create_task(watch(longest))
    before, begun, times = counted[0], perf_counter(), []
    for _ in range(ASKED):
        at = perf_counter()
        await make()
        times.append((perf_counter() - at) * 1e3)
    rate = (counted[0] - before) / (perf_counter() - begun)
    watching.cancel()
    times.sort()
    shown = f"p50 {times[len(times) // 2]:8.1f} ms, worst {times[-1]:8.1f} ms, loop held up {longest[0] * 1e3:5.1f} ms, {rate:6.0f} steps/s"
    print(f"  {label:62s} {shown}", flush=True)


async def measure(directory: Path, runs: int) -> None:
    begun = perf_counter()
    async with Engine.open(Config(dir=directory), workflows=[steps]) as engine:
        print(f"open: {perf_counter() - begun:.2f} s")
        await engine.start(steps, "beside")
        await ask(engine, "nothing (one status)", lambda: engine.status("beside"))
        for where in WHERES:
            await ask(engine, f"list 100, {where}", lambda where=where: engine.list(where, limit=100))
        middle = (await engine.list(limit=1_000))[-1].cursor
        await ask(engine, "list 100, behind the 1,000th", lambda: engine.list(limit=100, after=middle))
        for where in (None, {"status": "open"}, {"type": "type-3", "status": "ok"}, {"customer": "c7"}, {"amount": {"gte": 60, "lt": 200}}):
            await ask(engine, f"count, {where}", lambda where=where: engine.count(where))


async def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    shards = int(sys.argv[2]) if len(sys.argv) > 2 else 2
    with tempfile.TemporaryDirectory(dir=sys.argv[3] if len(sys.argv) > 3 else None) as place:
        directory, begun = Path(place) / "data", perf_counter()
        DataDirectory.open(directory, shards).close()
        for shard in range(shards):
            await fill(directory, shard, shards, runs // shards)
        print(f"{runs} runs in {shards} shards written and folded in {perf_counter() - begun:.0f} s")
        await measure(directory, runs)


if __name__ == "__main__":
    asyncio.run(main())
