"""Cancellation, as docs state it: once, at the next await, with its reason; clean-up is awaited; what main left behind is cancelled."""
from __future__ import annotations

import asyncio
from typing import Any

import pytest
from runtime_rig import Rig
from runtime_warp import run

from fusee_mp.sdk.definitions import Workflow

TRACE: list[str] = []


async def body(name: str, s: float, fails: bool) -> str:
    await asyncio.sleep(s)
    if fails:
        raise ValueError(name)
    TRACE.append(f"done {name}")
    return name


def step(ctx: Any, name: str, s: float = 0.1, fails: bool = False) -> Any:
    return ctx.step(name, body, name, s, fails)


async def saga(ctx: Any) -> None:
    try:
        await step(ctx, "a1")
        await step(ctx, "a2")
    finally:
        await step(ctx, "undo2")
        await step(ctx, "undo1")


async def gathered(ctx: Any) -> None:
    async def one(i: int) -> None:
        try:
            await step(ctx, f"a{i}")
        finally:
            await step(ctx, f"undo{i}", s=i / 10)

    await asyncio.gather(*[one(i) for i in (1, 2, 3)])


async def grouped(ctx: Any) -> None:
    async def one(i: int) -> None:
        try:
            await step(ctx, f"a{i}")
        finally:
            await step(ctx, f"undo{i}", s=i / 10)

    async with asyncio.TaskGroup() as group:
        for i in (1, 2, 3):
            group.create_task(one(i))


async def background(ctx: Any) -> str:
    async def beside() -> None:
        try:
            await step(ctx, "beside", s=9)
        finally:
            await step(ctx, "undo beside", s=9)

    task = asyncio.create_task(beside())
    await step(ctx, "a1")
    assert not task.done()
    return "done"


async def gather_error(ctx: Any) -> str:
    async def one(i: int) -> None:
        await step(ctx, f"a{i}", s=i / 10, fails=i == 1)
        await step(ctx, f"b{i}")

    try:
        await asyncio.gather(*[one(i) for i in (1, 2, 3)])
    except ValueError:
        await step(ctx, "refund", s=0.01)
    return "compensated"


async def timeout_in_finally(ctx: Any) -> None:
    try:
        await step(ctx, "a1")
    finally:
        try:
            async with asyncio.timeout(0.5):
                await step(ctx, "undo", s=9)
        except TimeoutError:
            TRACE.append("undo timed out")
        await step(ctx, "last")


async def group_in_finally(ctx: Any) -> None:
    try:
        await step(ctx, "a1")
    finally:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(step(ctx, "u1", fails=True))
                group.create_task(step(ctx, "u2", s=9))
        except* ValueError:
            TRACE.append("one undo failed")
        await step(ctx, "last")


async def wait_for_in_finally(ctx: Any) -> None:
    try:
        await step(ctx, "a1")
    finally:
        try:
            await asyncio.wait_for(step(ctx, "undo", s=9), 0.5)
        except TimeoutError:
            TRACE.append("undo timed out")
        await step(ctx, "last")


async def swallow(ctx: Any) -> str:
    try:
        await step(ctx, "a1")
    except asyncio.CancelledError as e:
        TRACE.append(f"cancelled: {e.args[0]}")
    return "finished anyway"


async def ended(main: Any, cancel_at: float | None, again_at: float | None = None) -> tuple[str, str, list[str]]:
    TRACE.clear()
    workflow = Workflow(main, main.__name__)
    async with Rig([workflow]) as rig:
        await rig.start(workflow, "a")
        for at in (cancel_at, again_at):
            if at is not None:
                await asyncio.sleep(at)
                await rig.cancel("a", "stop")
        outcome = await rig.outcome("a")
        assert not [task for task in asyncio.all_tasks() if "body" in repr(task)], "no body runs on"
    again = rig.again(rig.kinds().index("done"))
    live = list(TRACE)
    async with again:
        assert (await again.outcome("a")).status == outcome.status, "replayed, it ends the same"
    return outcome.status, outcome.reason, live


@pytest.mark.parametrize(("main", "cancel_at", "again_at", "status", "trace"), [
    (saga, 0.15, None, "cancelled", ["done a1", "done undo2", "done undo1"]),
    (saga, 0.05, 0.1, "cancelled", ["done undo2", "done undo1"]),
    (gathered, 0.05, None, "cancelled", ["done undo1"]),
    (grouped, 0.05, None, "cancelled", ["done undo1", "done undo2", "done undo3"]),
    (background, None, None, "ok", ["done a1", "done undo beside"]),
    (timeout_in_finally, 0.05, None, "cancelled", ["undo timed out", "done last"]),
    (group_in_finally, 0.05, None, "cancelled", ["one undo failed", "done last"]),
    (wait_for_in_finally, 0.05, None, "cancelled", ["undo timed out", "done last"]),
    (swallow, 0.05, None, "ok", ["cancelled: stop"]),
], ids=lambda value: getattr(value, "__name__", ""))
def test_a_cancelled_run_cleans_up_and_ends(
    main: Any, cancel_at: float | None, again_at: float | None, status: str, trace: list[str]
) -> None:
    found, reason, seen = run(ended(main, cancel_at, again_at))
    assert found == status
    assert seen[: len(trace)] == trace
    assert reason == ("stop" if status == "cancelled" else "")


def test_gather_lets_the_clean_up_of_its_cancelled_siblings_end() -> None:
    """gather itself does not wait for them; the run does."""
    assert sorted(run(ended(gathered, 0.05))[2]) == ["done undo1", "done undo2", "done undo3"]


def test_siblings_of_a_failed_gather_run_until_main_ends_and_are_then_cancelled() -> None:
    status, _, trace = run(ended(gather_error, None))
    assert status == "ok"
    assert trace == ["done refund"]


def test_a_cancel_before_the_first_turn_reaches_the_first_await() -> None:
    async def main() -> None:
        workflow = Workflow(swallow, "swallow")
        TRACE.clear()
        async with Rig([workflow]) as rig:
            await asyncio.gather(rig.start(workflow, "a"), rig.cancel("a", "at once"))
            assert (await rig.outcome("a")).status == "ok"
            assert TRACE == ["cancelled: at once"]

    run(main())


def test_a_cancelled_step_is_recorded_and_its_body_is_cancelled() -> None:
    async def main() -> None:
        workflow = Workflow(swallow, "swallow")
        async with Rig([workflow]) as rig:
            await rig.start(workflow, "a")
            await rig.cancel("a")
            await rig.outcome("a")
            assert rig.kinds()[:4] == ["start", "cancel", "step", "done"]
            assert rig.records()[2].status == "cancelled"  # type: ignore[union-attr]

    run(main())
