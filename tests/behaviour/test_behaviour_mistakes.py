"""What people do wrong must not end runs that did nothing wrong."""
from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from fusee_mp import Ctx, Engine, PayloadError, signal, workflow

GO = signal("go", bool)
PATIENCE_S = 60


@workflow
async def waits(ctx: Ctx) -> bool:
    return await ctx.wait_for(GO)


@workflow
async def looks_late(ctx: Ctx) -> list[bool | None]:
    await ctx.sleep("50ms")
    return [await ctx.wait_for(GO, timeout="5s"), await ctx.wait_for(GO, timeout=0)]


def test_a_signal_of_another_type_is_refused_at_its_sender_and_the_run_waits_on() -> None:
    async def main() -> bool:
        async with Engine.memory(workflows=[waits]) as engine:
            run = await engine.start(waits, "w")
            await asyncio.sleep(0.05)
            with pytest.raises(PayloadError, match="expected bool"):
                await run.signal("go", "yes")
            await run.signal(GO, True)
            return await run.result(timeout=PATIENCE_S)

    assert asyncio.run(main())


def test_a_buffered_signal_of_another_type_is_passed_over(tmp_path: Path) -> None:
    async def main() -> list[bool | None]:
        async with Engine.open(tmp_path / "data", workflows=[looks_late]) as engine:
            run = await engine.start(looks_late, "w")
            await run.signal("go", "not yet looked at")
            await run.signal(GO, True)
            return await run.result(timeout=PATIENCE_S)

    assert asyncio.run(main()) == [True, None]


PROGRAM = """
    import asyncio, sys, time
    from fusee_mp import Ctx, Engine, step, workflow

    @step
    async def long() -> str:
        await asyncio.sleep(0.5)
        return "done"

    @step
    def blocks() -> str:
        time.sleep(600)
        return "never"

    @workflow
    async def asks(ctx: Ctx, which: str) -> str:
        return await (long() if which == "long" else blocks())

    async def leave_without_closing() -> None:
        engine = await Engine.open(sys.argv[2], workflows=[asks])
        await engine.start(asks, "a", "long")
        await engine.start(asks, "b", "blocks")
        await asyncio.sleep(0.2)
        raise ValueError("nobody closes the engine")

    async def go_on() -> None:
        async with Engine.open(sys.argv[2], workflows=[asks]) as engine:
            assert (await engine.status("b")).is_open
            print(await engine.handle("a", asks).result(timeout=60))

    asyncio.run(leave_without_closing() if sys.argv[1] == "leave" else go_on())
"""


def test_a_loop_that_ends_over_running_bodies_fails_no_step_and_no_thread_keeps_its_process(tmp_path: Path) -> None:
    def run(part: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", textwrap.dedent(PROGRAM), part, str(tmp_path / "data")]
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)

    left = run("leave")
    assert left.returncode == 1 and "nobody closes the engine" in left.stderr
    went_on = run("go_on")
    assert (went_on.returncode, went_on.stdout) == (0, "done\n"), went_on.stderr
