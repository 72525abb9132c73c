"""A workflow that uses every feature of steps. As a program, a worker with it: ADDRESS."""
from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from fusee_mp import Ctx, Retry, Worker, current_step, workflow

TOKEN_FILE = "FUSEE_TEST_TOKENS"
AGAIN = Retry(attempts=2, initial="1ms")


async def hand_out(token: str) -> None:
    with open(os.environ[TOKEN_FILE], "a") as file:
        file.write(token + "\n")
    if current_step().attempt == 1:
        raise ValueError("the post is closed")


async def reports() -> list[int | None]:
    here = current_step()
    if here.attempt == 1:
        here.heartbeat(3)
        await asyncio.sleep(60)
    return [None, here.progress(int)]


def process() -> int:
    return os.getpid()


async def breaks() -> int:
    if current_step().attempt < 3:
        raise ValueError("broken until resumed")
    return current_step().attempt


@workflow("all_features", on_exhausted="pause")
async def all_features(ctx: Ctx) -> dict[str, Any]:
    completed = await ctx.completion("ask", hand_out, returns=int, retry=AGAIN)
    return {
        "completed": completed,
        "progress": await ctx.step("report", reports, heartbeat_timeout="150ms", retry=AGAIN),
        "elsewhere": await ctx.step("process", process, pool="process") != await ctx.step("here", process),
        "resumed": await ctx.step("break", breaks, retry=AGAIN),
    }


@workflow("waiting")
async def waiting(ctx: Ctx) -> None:
    await ctx.wait_for("go")


async def work(address: str) -> None:
    async with Worker.connect(address, workflows=[all_features, waiting]) as worker:
        await worker.run(signals=True)


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1]))
