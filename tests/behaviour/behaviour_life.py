"""Workflows that continue as new, are reset, and have children that outlive a run. Each side effect is a line of CALLS."""
from __future__ import annotations

import asyncio
from typing import Any

from fusee_mp import Ctx, Retry, Workflow, current_step, signal, update

GO = signal("go", int)
STOP = signal("stop")
ADD = update("add", int, returns=int)
CALLS: list[tuple[str, str]] = []
BROKEN: list[str] = []
TOKENS: list[str] = []


async def call(text: str) -> int:
    """How often it was called by now."""
    CALLS.append((text, current_step().key))
    if text in BROKEN:
        raise ValueError(f"{text} is broken")
    return len([True for called, _ in CALLS if called == text])


def called(text: str) -> list[str]:
    """The idempotency keys of these calls."""
    return [key for found, key in CALLS if found == text]


async def send(token: str) -> None:
    TOKENS.append(token)


# Chains.


async def countdown(ctx: Ctx, so_far: list[int]) -> int:
    """Sums 1 to 5, one a run; its journal stays short."""
    if ctx.journal_size > 2:
        return -1000
    if len(so_far) == 5:
        return sum(so_far)
    await ctx.continue_as_new("countdown", [*so_far, len(so_far) + 1])


async def counts_in_a_chain(ctx: Ctx, count: int) -> int:
    """One signal a run; the last one takes what is left."""
    value = await ctx.wait_for(GO)
    if value < 0:
        while await ctx.wait_for(GO, timeout=0) is not None:
            count += 1
        return count
    await ctx.continue_as_new("counts_in_a_chain", count + 1)


async def adds_in_a_chain(ctx: Ctx, total: int) -> int:
    """One update a run, until its sum is 10."""
    state = [total]

    async def add(n: int) -> int:
        state[0] += n
        return state[0]

    ctx.on_update(ADD, add)
    await ctx.wait_until(lambda: state[0] > total)
    if state[0] >= 10:
        return state[0]
    await ctx.continue_as_new("adds_in_a_chain", state[0])


async def rolls_on(ctx: Ctx, n: int) -> str:
    """It never ends by itself."""
    await ctx.step("tick", asyncio.sleep, 0)
    await ctx.continue_as_new("rolls_on", n + 1)


async def waits(ctx: Ctx) -> int:
    return await ctx.wait_for(GO)


async def hands_on_children(ctx: Ctx, stage: int) -> Any:
    """Starts children in its first run, asks for one of them in its third, and ends with the others open."""
    id = ctx.workflow_id
    if stage == 0:
        for close in ("terminate", "cancel", "abandon"):
            await ctx.start_child("waits", f"{id}/{close}", close=close)  # type: ignore[call-overload]
        await ctx.start_child("waits", f"{id}/asked")
        await ctx.start_child("waits", f"{id}/early")
        ctx.set_attributes(team="blue", stage=0)
    if stage < 2:
        await ctx.wait_for(STOP)
        ctx.set_attributes(stage=stage + 1)
        await ctx.continue_as_new("hands_on_children", stage + 1)
    early = await ctx.child("waits", f"{id}/early")
    asked = await ctx.child("waits", f"{id}/asked")
    await ctx.wait_for(STOP)
    return [early, asked]


async def cancels_what_was_handed_on(ctx: Ctx, again: bool) -> str:
    if not again:
        await ctx.start_child("waits", f"{ctx.workflow_id}/child", close="cancel")
        await ctx.continue_as_new("cancels_what_was_handed_on", True)
    try:
        await asyncio.wait_for(ctx.child("waits", f"{ctx.workflow_id}/child", close="cancel"), 0.1)
    except TimeoutError:
        await ctx.wait_for(STOP)
    return "went on"


async def parent_of_a_chain(ctx: Ctx) -> int:
    return await ctx.child("countdown", f"{ctx.workflow_id}/chain", [])


async def continues_from_a_group(ctx: Ctx, again: bool) -> str:
    if again:
        return "continued"

    async def inner() -> None:
        try:
            await ctx.continue_as_new("continues_from_a_group", True)
        except Exception:  # noqa: BLE001
            CALLS.append(("swallowed", ""))

    async with asyncio.TaskGroup() as group:
        group.create_task(ctx.sleep("1d"))
        group.create_task(inner())
    return "never"


async def continues_in_a_handler(ctx: Ctx) -> str:
    async def add(n: int) -> int:
        await ctx.continue_as_new("continues_in_a_handler")

    ctx.on_update(ADD, add)
    await ctx.wait_for(STOP)
    return "ended"


# Resets.


async def three_steps(ctx: Ctx) -> list[int]:
    return [
        await ctx.step("one", call, "one"), await ctx.step("two", call, "two"), await ctx.wait_for(GO),
        await ctx.step("three", call, "three"),
    ]


async def same_step_thrice(ctx: Ctx) -> list[int]:
    return [await ctx.step("same", call, f"same {i}") for i in range(3)]


async def has_a_child(ctx: Ctx) -> list[int]:
    child = await ctx.start_child("waits", f"{ctx.workflow_id}/child", close="abandon")
    await ctx.signal(f"{ctx.workflow_id}/sent", GO, 1)
    first = await ctx.step("one", call, "one")
    await ctx.start_child("waits", f"{ctx.workflow_id}/later")
    return [first, await ctx.wait_for(GO), await child.result()]


async def parent_that_fails(ctx: Ctx, close: str) -> int:
    child = await ctx.start_child("waits", f"{ctx.workflow_id}/child", close=close)  # type: ignore[call-overload]
    await ctx.step("one", call, "one")
    return await child.result()


async def parent_of_steps(ctx: Ctx) -> list[int]:
    return list(await ctx.child("three_steps", f"{ctx.workflow_id}/child"))


async def retries(ctx: Ctx) -> int:
    await ctx.step("zero", call, "zero")
    return await ctx.step("one", call, "one", retry=Retry(initial="1m"))


async def completes(ctx: Ctx) -> list[int]:
    waiting = asyncio.create_task(ctx.completion("approval", send, returns=int))
    await asyncio.sleep(0)
    return [await ctx.step("one", call, "one"), await waiting]


async def updated(ctx: Ctx) -> list[int]:
    state: list[int] = []

    async def add(n: int) -> int:
        state.append(n)
        await ctx.wait_for(STOP)
        return sum(state)

    ctx.on_update(ADD, add)
    await ctx.step("one", call, "one")
    await ctx.wait_until(lambda: len(state) > 0)
    await ctx.step("two", call, "two")
    return state


async def busy(ctx: Ctx) -> int:
    """Steps without a pause, until a signal comes."""
    await ctx.step("first", call, "first")
    steps = 0
    while await ctx.wait_for(GO, timeout=0) is None:
        steps += await ctx.step("tick", tick)
    got = [1]
    while len(got) < 100:
        got.append(await ctx.wait_for(GO))
    return len(got)


async def tick() -> int:
    return 1


async def holds_much(ctx: Ctx, size: int) -> int:
    held = bytes(size)
    await ctx.wait_for(STOP)
    return len(held)


LIFE = {workflow.name: workflow for workflow in (Workflow(function, function.__name__) for function in (
    countdown, counts_in_a_chain, adds_in_a_chain, rolls_on, waits, hands_on_children, cancels_what_was_handed_on, parent_of_a_chain,
    continues_from_a_group, continues_in_a_handler, three_steps, same_step_thrice, has_a_child, parent_that_fails, parent_of_steps, retries,
    completes, updated, busy, holds_much,
))}
