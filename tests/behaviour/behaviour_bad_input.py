"""Workflows for bad input: one that takes text, one that stays open, one that takes anything, one that gives everything wrong."""
from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fusee_mp import Ctx, Retry, query, signal, update, workflow

GO = signal("go", int)
ADD = update("add", int, returns=int)
SAID = query("said", returns=list[int])
COUNT = query("count", int, returns=int)
FREE = "takes_anything"


@workflow
async def eats(ctx: Ctx, text: str) -> str:
    return text


@workflow
async def open_run(ctx: Ctx) -> int:
    said: list[int] = []

    def add(n: int) -> int:
        said.append(n)
        return len(said)

    ctx.on_update(ADD, add)
    ctx.on_update("free", lambda value: None)
    ctx.on_query(SAID, lambda: said)
    ctx.on_query(COUNT, said.count)
    ctx.on_query("free", lambda value: None)
    return await ctx.wait_for(GO)


@workflow(FREE)
async def takes_anything(ctx: Ctx, value: Any) -> None:
    return None


async def one() -> int:
    return 1


@workflow
async def bad_calls(ctx: Ctx) -> list[str]:
    """What each bad call of `ctx` raises, as "what: Error"."""
    said: list[str] = []

    async def tried(what: str, call: Callable[[], Awaitable[Any]]) -> None:
        try:
            found = await call()
        except Exception as e:
            said.append(f"{what}: {type(e).__name__}")
        else:
            said.append(f"{what}: nothing, {found!r}")

    for bad in ("", "x" * 1025, "a\0b", "\ud800", 7):
        await tried("child's ID", lambda bad=bad: ctx.child(eats, bad, "x"))
        await tried("signal's target", lambda bad=bad: ctx.signal(bad, GO, 1))
        await tried("cancel's target", lambda bad=bad: ctx.cancel(bad))
        await tried("step's name", lambda bad=bad: ctx.step(bad, one))
        await tried("signal's name", lambda bad=bad: ctx.wait_for(bad))
    for value in ({1}, object(), float("nan"), {1: 2}, "\ud800"):
        await tried("child's input", lambda value=value: ctx.child(FREE, "c", value))
        await tried("signal's value", lambda value=value: ctx.signal("x", "free", value))
        await tried("step's result", lambda value=value: ctx.step("s", lambda: value))
    await tried("input of another type", lambda: ctx.child(eats, "c", 7))
    await tried("negative sleep", lambda: ctx.sleep(-1))
    await tried("sleep of no duration", lambda: ctx.sleep("soon"))
    await tried("negative wait", lambda: ctx.wait_for(GO, timeout=-1))
    await tried("negative time-out", lambda: ctx.step("s", one, timeout=-1))
    await tried("negative total", lambda: ctx.step("s", one, total_timeout="-1s"))
    await tried("negative beat", lambda: ctx.step("s", one, heartbeat_timeout=-0.5))
    await tried("negative child time-out", lambda: ctx.child(eats, "c", "x", timeout=-1))
    await tried("unknown close", lambda: ctx.child(eats, "c", "x", close="no such"))
    await tried("negative attempts", lambda: ctx.step("s", one, retry=Retry(attempts=-1)))
    await tried("no priority", lambda: ctx.step("s", one, priority="high"))
    for mapping in ([1], {"a": {1}}, "text"):
        try:
            ctx.set_attributes(mapping)
        except Exception as e:
            said.append(f"attributes: {type(e).__name__}")
    return said
