"""Workflows that can be asked and changed, and a process that is killed with one."""
from __future__ import annotations

import asyncio
import sys
from typing import Any

from behaviour_workflows import note

from fusee_mp import Ctx, Engine, query, signal, step, update, workflow

ITEMS = query("items", returns=list[str])
COUNT = query("count", str, returns=int)
ADD = update("add", str, returns=int)
CLOSE = update("close", returns=None)
GO = signal("go", int)
PLUS = update("plus", int, returns=int)


@step
async def store(item: str) -> str:
    await note(item)
    return item


@workflow
async def cart(ctx: Ctx) -> list[str]:
    """Collects items until it is closed."""
    items: list[str] = []
    closed = False

    async def add(item: str) -> int:
        items.append(await store(item))
        return len(items)

    def check(item: str) -> None:
        if not item.strip():
            raise ValueError("an item has a name")
        if closed:
            raise RuntimeError("the cart is closed")

    def close() -> None:
        nonlocal closed
        closed = True

    ctx.on_query(ITEMS, lambda: items)
    ctx.on_query(COUNT, lambda item: items.count(item))
    ctx.on_update(ADD, add, check)
    ctx.on_update(CLOSE, close)
    await ctx.wait_until(lambda: closed)
    return items


@workflow
async def adder(ctx: Ctx, start: int) -> int:
    """Each update waits for a signal and adds both. The run ends with the first, and waits for those it accepted."""
    total = start

    async def plus(n: int) -> int:
        nonlocal total
        more = await ctx.wait_for(GO)
        total += n + more
        return total

    ctx.on_update(PLUS, plus)
    ctx.on_query("total", lambda: total)
    await ctx.wait_until(lambda: total != start)
    return total


@workflow
async def increments(ctx: Ctx, start: int) -> int:
    """D8, D9: ends when somebody says so."""
    total = start

    def inc(n: int) -> int:
        nonlocal total
        total += n
        return total

    def check(n: int) -> None:
        if n < 0:
            raise ValueError(f"{n} is less than nothing")

    ctx.on_update("inc", inc, check)
    ctx.on_query("total", lambda: total)
    await ctx.wait_for(GO)
    return total


@workflow
async def counter(ctx: Ctx, until: int) -> int:
    """Ends at a count that updates bring about: what is accepted is counted."""
    handled = 0

    def tick() -> int:
        nonlocal handled
        handled += 1
        return handled

    ctx.on_update("tick", tick)
    ctx.on_query("handled", lambda: handled)
    await ctx.wait_until(lambda: handled >= until)
    return handled


@workflow
async def clumsy(ctx: Ctx) -> str:
    """Handlers, queries and validators that do what they should not."""
    event, lock = asyncio.Event(), asyncio.Queue[int]()
    waiting = asyncio.create_task(lock.get())

    async def breaks() -> None:
        await store("before")
        raise KeyError("lost")

    async def waits() -> str:
        try:
            await event.wait()
        finally:
            await store("cleaned up")
        return "woken"

    def spins() -> int:
        n = 0
        while True:
            n += 1

    ctx.on_update("breaks", breaks)
    ctx.on_update("waits", waits)
    ctx.on_update("exits", lambda: sys.exit("out"))
    ctx.on_update("steps in validator", lambda: None, lambda: store("never"))
    ctx.on_query("raises", lambda: {}["missing"])
    ctx.on_query("calls a step", lambda: store("never"))
    ctx.on_query("calls ctx", lambda: ctx.sleep(1))
    ctx.on_query("sets attributes", lambda: ctx.set_attributes(a=1))
    ctx.on_query("makes a task", lambda: asyncio.create_task(asyncio.sleep(1)))
    ctx.on_query("wakes", lambda: lock.put_nowait(1))
    ctx.on_query("draws", lambda: ctx.random().random())
    ctx.on_query("is fine", lambda: [ctx.workflow_id, str(ctx.now().year > 2000)])
    ctx.on_query("spins", spins)
    rng = ctx.random()
    ctx.on_query("draws by a side door", lambda: rng.random())
    await ctx.wait_for(GO)
    waiting.cancel()
    return f"{rng.random()}"


@workflow
async def no_query_here(ctx: Ctx) -> None:
    async def asks() -> int:
        return 1

    ctx.on_query("asks", asks)


ALL: Any = [cart, adder, increments, counter, clumsy, no_query_here]


async def killed(directory: str) -> None:
    """An adder with an accepted update, whose process is then killed by who started it."""
    async with Engine.open(directory, workflows=ALL) as engine:
        run = await engine.start(adder, "a", 5)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(run.update(PLUS, 10, update_id="u-1"))
            while not any(record.kind == "update" for record in (await run.describe()).journal):  # type: ignore[union-attr]
                await asyncio.sleep(0.005)
            print("accepted", flush=True)


if __name__ == "__main__":
    asyncio.run(killed(sys.argv[1]))
