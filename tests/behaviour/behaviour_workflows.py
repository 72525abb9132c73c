"""The workflows of the behaviour suite. They are imported by its child processes too."""
from __future__ import annotations

import asyncio
import os
from typing import Any

from fusee_mp import Ctx, Retry, current_step, signal

GO = signal("go", int)
STOP = signal("stop")


async def note(text: str) -> int:
    """A side effect that outlives every process: one line more in a file, on disk before the step has its outcome."""
    path = os.environ["FUSEE_TEST_NOTES"]
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(fd, f"{current_step().key}\t{text}\n".encode())
        os.fsync(fd)
    finally:
        os.close(fd)
    return len(text)


def notes() -> list[tuple[str, str]]:
    """(idempotency key, text) of every side effect so far."""
    try:
        with open(os.environ["FUSEE_TEST_NOTES"]) as file:
            return [(key, text) for key, _, text in (line.rstrip("\n").partition("\t") for line in file)]
    except FileNotFoundError:
        return []


async def answer() -> int:
    return 42


async def refuse(text: str) -> None:
    raise ValueError(text)


async def double(n: int) -> int:
    await note(f"double {n}")
    return 2 * n


async def quick(ctx: Ctx, n: int) -> int:
    return await ctx.step("double", double, n)


async def doubling_child(ctx: Ctx, n: int) -> int:
    return await ctx.step("double", double, n)


async def parent_of_one(ctx: Ctx, child_id: str) -> int:
    return 1 + int(await ctx.child("doubling_child", child_id, 7))


async def waits(ctx: Ctx) -> int:
    return await ctx.wait_for(GO)


async def collects(ctx: Ctx) -> list[int]:
    found: list[int] = []
    while (value := await ctx.wait_for(GO, timeout="1.5s")) is not None:
        found.append(value)
    return found


async def sums(ctx: Ctx, count: int) -> int:
    total = 0
    for _ in range(count):
        total += await ctx.wait_for(GO)
    return total


async def sends(ctx: Ctx, target: str) -> str:
    await ctx.signal(target, GO, 42)
    return "sent"


async def cancels(ctx: Ctx, target: str) -> str:
    await ctx.cancel(target, "not needed")
    return "asked"


async def naps(ctx: Ctx, ms: int) -> int:
    await ctx.sleep(f"{ms}ms")
    return await ctx.step("note", note, f"woke after {ms}")


async def fails(ctx: Ctx, text: str) -> None:
    await ctx.step("refuse", refuse, text)


async def fails_first(ctx: Ctx, text: str) -> None:
    raise ValueError(text)


async def grouped_failure(ctx: Ctx, nested: bool) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(ctx.step("ok", answer))
        group.create_task(ctx.step("bad", refuse, "one"))
        if nested:
            group.create_task(inner_group(ctx))


async def inner_group(ctx: Ctx) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(ctx.step("bad", refuse, "two"))
        group.create_task(ctx.step("slow", asyncio.sleep, 5))


async def grouped_handled(ctx: Ctx, text: str) -> list[str]:
    found: list[str] = []
    try:
        async with asyncio.TaskGroup() as group:
            for i in range(3):
                group.create_task(ctx.step("bad", refuse, f"{text} {i}") if i == 1 else ctx.step("slow", asyncio.sleep, 5))
    except* ValueError as errors:
        found += [str(error) for error in errors.exceptions]
    return found


async def counts_all_that_came(ctx: Ctx) -> int:
    count = 0
    await ctx.wait_for(STOP)
    while await ctx.wait_for(GO, timeout=0) is not None:
        count += 1
    return count


async def first_signal_ends_it(ctx: Ctx) -> int:
    return await ctx.wait_for(GO)


async def short_steps(ctx: Ctx) -> str:
    try:
        for i in range(1_000_000):
            try:
                await ctx.step("short", asyncio.sleep, 0.0005 * (i % 4))
            except Exception:
                continue
        return "never"
    except asyncio.CancelledError as e:
        await ctx.step("clean-up", note, "cleaned up")
        raise asyncio.CancelledError(f"saw {e.args[0]}") from None


async def cancelled_in_a_wait(ctx: Ctx, how: str) -> None:
    waits_by = {
        "sleep": lambda: ctx.sleep("1d"), "signal": lambda: ctx.wait_for(GO), "until": lambda: ctx.wait_until(lambda: False),
        "child": lambda: ctx.child("waits", f"{ctx.workflow_id}/child"), "all": lambda: ctx.all([ctx.sleep("1d"), ctx.sleep("2d")]),
        "timeout": lambda: asyncio.wait_for(ctx.sleep("1d"), 1_000_000), "step": lambda: ctx.step("slow", asyncio.sleep, 1_000),
        "retry": lambda: ctx.step("refuse", refuse, "no", retry=Retry(initial="1m")),
    }
    await waits_by[how]()


async def has_children(ctx: Ctx) -> None:
    for close in ("terminate", "cancel", "abandon"):
        await ctx.start_child("waits", f"{ctx.workflow_id}/{close}", close=close)  # type: ignore[call-overload]
    await ctx.wait_for(STOP)


async def child_errors(ctx: Ctx, what: str) -> list[str]:
    name, input, timeout = {
        "failed": ("fails", "why not", None), "timed_out": ("naps", 60_000, "100ms"), "refused": ("nobody", None, None),
        "taken": ("waits", None, None), "cancelled": ("waits", None, None), "terminated": ("waits", None, None),
    }[what]
    try:
        await ctx.child(name, f"{ctx.workflow_id}/child", input, timeout=timeout)
    except Exception as e:
        cause = e.__cause__
        return [type(e).__name__, type(cause).__name__, type(cause.__cause__).__name__ if cause is not None else ""]
    return ["no"]


async def cancels_its_child(ctx: Ctx, close: str) -> str:
    try:
        await asyncio.wait_for(ctx.child("waits", f"{ctx.workflow_id}/child", close=close), 0.2)  # type: ignore[call-overload]
    except TimeoutError:
        await ctx.wait_for(STOP)
    return "went on"


async def keeps_a_handle(ctx: Ctx) -> list[int]:
    child = await ctx.start_child("doubling_child", f"{ctx.workflow_id}/child", 4)
    await ctx.sleep("50ms")
    return [await child.result(), await child.result()]


async def limited(ctx: Ctx, limit: int) -> list[int]:
    running = [0, 0]

    async def one(i: int) -> int:
        running[0] += 1
        running[1] = max(running)
        found = await ctx.step("one", spend, i)
        running[0] -= 1
        return found

    return [*await ctx.all([one(i) for i in range(10)], limit=limit), running[1]]


async def spend(i: int) -> int:
    await asyncio.sleep(0.001)
    return i


async def waits_until(ctx: Ctx) -> list[Any]:
    seen: list[int] = []

    async def listen() -> None:
        while True:
            seen.append(await ctx.wait_for(GO))

    listening = asyncio.create_task(listen())
    first = await ctx.wait_until(lambda: sum(seen) >= 5, timeout="1m")
    second = await ctx.wait_until(lambda: sum(seen) >= 50, timeout="50ms")
    listening.cancel()
    return [first, second, seen]


async def tags_itself(ctx: Ctx, team: str) -> None:
    ctx.set_attributes(team=team, stage="begun")
    ctx.set_attributes({"stage": "waiting", "amount": len(team)})
    await ctx.wait_for(STOP)


async def own_values(ctx: Ctx) -> list[str]:
    first = [ctx.now().isoformat(), str(ctx.random().random()), str(ctx.uuid4()), ctx.workflow_id, str(ctx.run_number)]
    await ctx.wait_for(STOP)
    return [*first, str(ctx.random().random()), str(ctx.uuid4())]


def all_workflows() -> list[Any]:
    from fusee_mp import Workflow

    functions = [
        quick, doubling_child, parent_of_one, waits, collects, sums, sends, cancels, naps, fails, fails_first, grouped_failure,
        grouped_handled,
        counts_all_that_came, first_signal_ends_it, short_steps, cancelled_in_a_wait, has_children, child_errors, cancels_its_child,
        keeps_a_handle, limited, waits_until, tags_itself, own_values,
    ]
    return [Workflow(function, function.__name__) for function in functions]


WORKFLOWS = {workflow.name: workflow for workflow in all_workflows()}
