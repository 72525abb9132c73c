"""A process to be killed: an engine on a directory, and clients that say on stdout what was acknowledged to them.

python crash_driver.py DIR NOTES FIRST LAST [UNFINISHED-ID ..]: drive the unfinished runs, then new ones from number FIRST to LAST, or,
when LAST is -, for ever. What was begun before the last kill is asked again, under the same request IDs.
"""
from __future__ import annotations

import asyncio
import os
import random
import sys
from itertools import chain
from typing import Any

from fusee_mp import Config, Ctx, Engine, current_step, signal, workflow

GO = signal("go", int)
AT_ONCE = 12
NOTES = sys.argv[2]


async def note(text: str) -> None:
    """A side effect under an idempotency key, on disk before the step ends."""
    fd = os.open(NOTES, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(fd, f"{current_step().key}\t{text}\n".encode())
        os.fsync(fd)
    finally:
        os.close(fd)


async def roll() -> int:
    return random.randrange(1 << 30)


@workflow
async def doubles(ctx: Ctx, n: int) -> int:
    drawn = await ctx.step("roll", roll)
    await ctx.step("child's", note, f"{n} {drawn}")
    return 2 * n


@workflow
async def transfers(ctx: Ctx, n: int) -> list[int | None]:
    """What later steps are given depends on what earlier ones drew: a step that ran ahead of records that were then lost is found out."""
    drawn = await ctx.step("roll", roll)
    await ctx.step("first", note, f"{n} {drawn}")
    await ctx.sleep("3ms")
    got = await ctx.wait_for(GO)
    doubled = await ctx.child(doubles, f"{ctx.workflow_id}/child", drawn)
    await ctx.all([ctx.step("second", note, f"{drawn} {got} {doubled} {i}") for i in range(3)])
    extra = await ctx.wait_for(GO, timeout=0)
    return [drawn, got, doubled, extra]


def say(*words: Any) -> None:
    os.write(1, f"{' '.join(map(str, words))}\n".encode())


async def drive(engine: Engine, id: str) -> None:
    n = int(id.removeprefix("r"))
    run = await engine.start(transfers, id, n, request_id=f"start {id}")
    say("started", id)
    await run.signal(GO, n, request_id=f"signal {id}")
    say("signalled", id)
    say("result", id, *await run.result())


async def main() -> None:
    directory, _, first, last, *unfinished = sys.argv[1:]
    config = Config(dir=directory, shards=2, park_after="50ms", checkpoint_interval="200ms")
    async with Engine.open(config, workflows=[transfers, doubles]) as engine:
        say("open")
        ids = chain(unfinished, (f"r{n}" for n in range(int(first), int(last) if last != "-" else 1 << 40)))

        async def client() -> None:
            for id in ids:
                await drive(engine, id)

        await asyncio.gather(*[client() for _ in range(AT_ONCE)])
        say("all done")


if __name__ == "__main__":
    asyncio.run(main())
