"""Workflows whose step bodies leave a trace outside: a line in a file that is only ever appended to, on disk before the body returns.

As a program, a worker with them: ADDRESS NAME MAX_SHARDS EFFECTS-FILE.
"""
from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fusee_mp import Ctx, Worker, Workflow, current_step, workflow

EFFECTS = "FUSEE_TEST_EFFECTS"


def boot_time() -> float:
    """Seconds on the clock that goes on while a process is frozen; the same in all processes."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Effect(NamedTuple):
    """A body's beginning, as the outside saw it."""

    key: str
    input: Any
    pid: int
    at: float


async def act(value: Any) -> Any:
    """A step body: the effect is the line."""
    at = boot_time()
    line = json.dumps(Effect(current_step().key, value, os.getpid(), at)) + "\n"
    fd = os.open(os.environ[EFFECTS], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(fd, line.encode())
        os.fdatasync(fd)
    finally:
        os.close(fd)
    return value


def effects(path: Path) -> list[Effect]:
    """What happened so far; the last line may be in the middle of being written."""
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [Effect(*json.loads(line)) for line in lines]


@workflow("counter")
async def counter(ctx: Ctx, steps: int) -> int:
    total = 0
    for number in range(steps):
        total += await ctx.step("act", act, number)
    return total


@workflow("waiter")
async def waiter(ctx: Ctx) -> int:
    """Waits for a signal, and does one thing before and one after."""
    await ctx.step("before", act, 0)
    value = int(await ctx.wait_for("go"))
    return int(await ctx.step("after", act, value))


@workflow("idle")
async def idle(ctx: Ctx) -> int:
    return int(await ctx.wait_for("go"))


@workflow("sleeper")
async def sleeper(ctx: Ctx, seconds: float) -> str:
    await ctx.sleep(seconds)
    return "awake"


@workflow("lasting")
async def lasting(ctx: Ctx, seconds: float) -> float:
    return float(await ctx.step("last", last, seconds))


async def last(seconds: float) -> float:
    await act(seconds)
    await asyncio.sleep(seconds)
    return seconds


@workflow("parcel")
async def parcel(ctx: Ctx, weight: int) -> int:
    packed = await ctx.step("pack", act, weight)
    return int(packed) * 2


@workflow("order")
async def order(ctx: Ctx, item: list[Any]) -> int:
    """Steps, a timer, a signal, and a child on whatever shard its ID has: ends with 1 + amount + shipped + 2 * amount."""
    child, amount = item
    first = await ctx.step("reserve", act, 1)
    second = await ctx.step("charge", act, amount)
    await ctx.sleep(0.02)
    shipped = int(await ctx.wait_for("ship"))
    third = await ctx.child("parcel", child, amount)
    await ctx.step("notify", act, [first, second, shipped, third])
    return int(first) + int(second) + shipped + int(third)


WORKFLOWS: list[Workflow[Any, Any]] = [counter, waiter, idle, sleeper, lasting, parcel, order]


async def work(address: str, name: str, max_shards: int, workflows: Sequence[Workflow[Any, Any]]) -> None:
    async with Worker.connect(address, workflows=workflows, max_shards=max_shards, name=name, grace="2s") as worker:
        print("holds", worker.held, flush=True)
        await worker.run(signals=True)


def main(workflows: Sequence[Workflow[Any, Any]], file: str) -> None:
    """Be a worker with these workflows, which find the path of the file they write to in the environment, by this name."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s worker %(levelname)s %(message)s")
    os.environ[file] = sys.argv[4]
    asyncio.run(work(sys.argv[1], sys.argv[2], int(sys.argv[3]), workflows))


if __name__ == "__main__":
    main(WORKFLOWS, EFFECTS)
