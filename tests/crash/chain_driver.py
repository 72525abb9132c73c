"""A process that signals a chain and resets a run for as long as it lives. Each line that it prints was acknowledged."""
from __future__ import annotations

import asyncio
import sys

from fusee_mp import Config, Ctx, Engine, signal, workflow

GO = signal("go", int)


@workflow
async def chain(ctx: Ctx, counted: int) -> int:
    if await ctx.wait_for(GO) < 0:
        return counted
    await ctx.continue_as_new(chain, counted + 1)


async def one() -> int:
    return 1


@workflow
async def reset_often(ctx: Ctx) -> int:
    total = await ctx.step("first", one)
    await ctx.step("again", one)
    while (value := await ctx.wait_for(GO)) >= 0:
        total += value
    return total


async def main(directory: str, first: int) -> None:
    async with Engine.open(Config(dir=directory), workflows=[chain, reset_often]) as engine:
        runs = [await engine.start(chain, "chain", 0, on_running="use_existing"),
                await engine.start(reset_often, "reset", on_running="use_existing")]

        async def resets() -> None:
            while True:
                await runs[1].reset("again")

        if first < 0:
            for run in runs:
                await run.signal(GO, -1)
            print(*[await run.result() for run in runs], flush=True)
            return
        resetting = asyncio.create_task(resets())
        for n in range(first, 1_000_000):
            for run in runs:
                await run.signal(GO, 1, request_id=f"signal {n}, {run.id}")
            print(n, flush=True)
        await resetting


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
