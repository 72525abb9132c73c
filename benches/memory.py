"""Memory of an engine that has run 50,000 short workflows and holds 2,000 idle ones of 1 MB of locals each, under a budget of 100 MB.

Bound: what the loaded runs take stays within the budget; the process's resident memory levels off instead of growing with the runs.
"""
from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import psutil
import uvloop

from benches.tree import folder
from fusee_mp import Config, Ctx, Engine, step, workflow

MIB = 1 << 20
SHORT, IDLE, LOCALS, BUDGET = 50_000, 2_000, MIB, 100 * MIB  # of locals, not of the process
AT_ONCE = 500


@step
async def double(value: int) -> int:
    return 2 * value


@workflow
async def short(ctx: Ctx, value: int) -> int:
    return await double(value)


@workflow
async def holds(ctx: Ctx, size: int) -> int:
    local = bytes(size)
    await ctx.wait_for("end")
    return len(local)


def resident_mib() -> float:
    return psutil.Process().memory_info().rss / MIB


async def measure(directory: Path) -> bool:
    config = Config(dir=directory, shards=2, memory_budget=BUDGET, park_after="1m")
    async with Engine.open(config, workflows=[short, holds]) as engine:
        print(f"opened                     {resident_mib():6.0f} MiB")
        marks = []
        for first in range(0, SHORT, AT_ONCE):
            await asyncio.gather(*(engine.execute(short, f"s{n}", n) for n in range(first, first + AT_ONCE)))
            if (first + AT_ONCE) % 10_000 == 0:
                marks.append(resident_mib())
                print(f"{first + AT_ONCE:6,} short runs done     {marks[-1]:6.0f} MiB")
        peak = 0.0
        for first in range(0, IDLE, 100):
            await asyncio.gather(*(engine.start(holds, f"h{n}", LOCALS) for n in range(first, first + 100)))
            peak = max(peak, resident_mib())
        async with asyncio.timeout(30):  # who is to leave does when its last record is in the store
            while (held := sum(len(runtime.by_number) for runtime in engine.runtimes)) * LOCALS > 1.1 * BUDGET:
                await asyncio.sleep(0.05)
        await asyncio.sleep(3)  # and the system has it back at the next look at what is quiet
        held = sum(len(runtime.by_number) for runtime in engine.runtimes)
        print(f"{IDLE:6,} idle runs of 1 MB  {resident_mib():6.0f} MiB, {held} of them loaded; most while they started {peak:.0f} MiB")
        await asyncio.gather(*(engine.handle(f"h{n}").signal("end") for n in range(0, IDLE, 40)))
        results = await asyncio.gather(*(engine.handle(f"h{n}").result() for n in range(0, IDLE, 40)))
        return results == [LOCALS] * len(results) and marks[-1] < marks[0] + 50


def main() -> int:
    with folder() as place:
        return 0 if uvloop.run(measure(place / "data")) else 1


if __name__ == "__main__":
    sys.exit(main())
