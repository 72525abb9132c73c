"""Workflows whose journals are kept for ever: what they do may not change. A new use of asyncio gets a workflow of its own."""
from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import Any

from fusee_mp.errors import ChildFailed
from fusee_mp.sdk.ctx import Ctx
from fusee_mp.sdk.definitions import Workflow, workflow
from fusee_mp.sdk.handles import signal
from fusee_mp.sdk.retry import Retry

GO = signal("go", int)


async def work(name: str) -> str:
    """A step that takes longer the higher the number at the end of its name."""
    number = int("".join(filter(str.isdigit, name)) or "0")
    await asyncio.sleep(number / 4)
    if "bad" in name:
        raise ValueError(name)
    return name


def do(ctx: Ctx, name: str) -> Awaitable[str]:
    return ctx.step(name, work, name)


@workflow
async def gathered(ctx: Ctx) -> list[str]:
    return await asyncio.gather(*(do(ctx, f"s{9 - i}") for i in range(6)))


@workflow
async def gathered_with_failure(ctx: Ctx) -> list[str]:
    seen: list[str] = []

    async def one(name: str) -> None:
        try:
            seen.append(await do(ctx, name))
        finally:
            seen.append(f"end of {name}")

    try:
        await asyncio.gather(one("s4"), one("bad2"), one("s1"), one("s8"))
    except ValueError as e:
        seen.append(f"caught {e}")
    await do(ctx, "after")
    return seen


@workflow
async def task_group(ctx: Ctx) -> list[str]:
    seen: list[str] = []

    async def one(name: str) -> None:
        try:
            await do(ctx, name)
        finally:
            seen.append(name)
            await do(ctx, f"undo {name}")

    try:
        async with asyncio.TaskGroup() as group:
            for name in ("s5", "s3", "bad2", "s7", "s1"):
                group.create_task(one(name))
    except* ValueError as e:
        seen += [str(error) for error in e.exceptions]
    return seen


@workflow
async def timeouts(ctx: Ctx) -> list[str]:
    seen: list[str] = []
    try:
        async with asyncio.timeout(3):
            try:
                async with asyncio.timeout(0.5):
                    await do(ctx, "s9")
            except TimeoutError:
                seen.append("inner")
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + 60):
                await do(ctx, "s40")
    except TimeoutError:
        seen.append("outer")
    async with asyncio.timeout(3600):
        seen.append(await do(ctx, "after"))
    return seen


@workflow
async def waited_for(ctx: Ctx) -> list[str]:
    async def slow() -> str:
        return await asyncio.wait_for(do(ctx, "s9"), 3600)

    seen = list(await asyncio.gather(slow(), do(ctx, "s2"), asyncio.wait_for(do(ctx, "s1"), 3600)))
    try:
        await asyncio.wait_for(do(ctx, "s8 too long"), 0.5)
    except TimeoutError:
        seen.append("timeout")
    seen.append(await do(ctx, "after"))
    return seen


@workflow
async def waited_first(ctx: Ctx) -> list[str]:
    seen: list[str] = []
    tasks = {asyncio.create_task(ctx.step(f"s{i}", work, f"s{i}"), name=f"s{i}") for i in range(8)}
    while tasks:
        done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        seen += [task.get_name() for task in done]
        for task in list(tasks)[:1]:
            await do(ctx, f"look {task.get_name()}")
    return seen


@workflow
async def completed_in_order(ctx: Ctx) -> list[str]:
    tasks = [asyncio.create_task(ctx.step(f"s{7 - i}", work, f"s{7 - i}")) for i in range(6)]
    return [await next_one for next_one in asyncio.as_completed(tasks)]


@workflow
async def queued(ctx: Ctx) -> list[str]:
    queue: asyncio.Queue[int | None] = asyncio.Queue(2)
    seen: list[str] = []

    async def worker(name: str) -> None:
        while (item := await queue.get()) is not None:
            seen.append(await do(ctx, f"{name} {item % 3}"))

    workers = [asyncio.create_task(worker(name)) for name in ("a", "b", "c")]
    for item in range(8):
        await queue.put(item)
    for _ in workers:
        await queue.put(None)
    await asyncio.gather(*workers)
    return seen


@workflow
async def guarded(ctx: Ctx) -> list[str]:
    gate, lock, go = asyncio.Semaphore(2), asyncio.Lock(), asyncio.Event()
    seen: list[str] = []

    async def one(i: int) -> None:
        async with gate:
            seen.append(await do(ctx, f"s{i % 4}"))
        await go.wait()
        async with lock:
            seen.append(await do(ctx, f"locked {i}"))

    tasks = [asyncio.create_task(one(i)) for i in range(6)]
    await ctx.sleep("1h", "before the start")
    go.set()
    await asyncio.gather(*tasks)
    return seen


@workflow
async def shielded(ctx: Ctx) -> list[str]:
    inner = asyncio.ensure_future(do(ctx, "s9"))
    seen: list[str] = []
    try:
        async with asyncio.timeout(0.5):
            await asyncio.shield(inner)
    except TimeoutError:
        seen.append("timeout")
    seen.append(await inner)
    await asyncio.gather(*(asyncio.sleep(delay) for delay in (3, 1, 0, 2)))
    return seen


@workflow
async def generated(ctx: Ctx) -> list[str]:
    seen: list[str] = []

    async def names() -> AsyncIterator[str]:
        try:
            for i in range(5):
                yield await do(ctx, f"g{i}")
        finally:
            seen.append(await do(ctx, "clean up"))

    async for name in names():
        seen.append(name)
        if name == "g2":
            break
    seen.append(await do(ctx, "after"))
    return seen


@workflow
async def small(ctx: Ctx, name: str) -> str:
    return await do(ctx, name)


@workflow
async def everything(ctx: Ctx) -> list[Any]:
    """All that is no asyncio."""
    seen: list[Any] = [await ctx.wait_for(GO), await ctx.wait_for(GO, timeout="1d", default=-1)]
    seen += await ctx.all([ctx.child(small, f"{ctx.workflow_id}/{i}", f"s{i}") for i in range(4)], limit=2)
    handle = await ctx.start_child(small, f"{ctx.workflow_id}/bad", "bad1")
    try:
        await handle.result()
    except ChildFailed as e:
        seen.append(type(e).__name__)
    try:
        await ctx.step("bad", work, "bad", retry=Retry(attempts=3, jitter=0))
    except ValueError as e:
        seen.append(str(e))
    ctx.set_attributes(stage="nearly done")
    await ctx.signal("nobody", GO, 1)
    seen += [ctx.now().isoformat(), ctx.random().random(), str(ctx.uuid4())]
    return seen


@workflow
async def cancelled(ctx: Ctx) -> None:
    try:
        await do(ctx, "s99")
    finally:
        await do(ctx, "clean up")


@workflow
async def failed(ctx: Ctx) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(ctx.step("bad1", work, "bad1"))
        group.create_task(ctx.step("s9", work, "s9"))


WORKFLOWS: list[Workflow[Any, Any]] = [
    gathered, gathered_with_failure, task_group, timeouts, waited_for, waited_first, completed_in_order, queued, guarded, shielded,
    generated, small, everything, cancelled, failed,
]
