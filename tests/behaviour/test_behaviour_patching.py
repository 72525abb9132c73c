"""Patches: a run is told of a change of its code once, and the same for ever."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from behaviour_places import Place, has_status, run

from fusee_mp import Ctx, Replayer, Workflow, export, signal

GO = signal("go")


async def one() -> int:
    return 1


async def before(ctx: Ctx) -> int:
    a = await ctx.step("a", one)
    await ctx.wait_for(GO)
    return a


async def after(ctx: Ctx) -> int:
    early = ctx.patched("early")
    a = await ctx.step("a", one)
    await ctx.wait_for(GO)
    late = ctx.patched("late")
    assert ctx.patched("late") is late and ctx.patched("early") is early
    return a + (10 if late else 0) + (100 if early else 0)


async def loops(ctx: Ctx) -> list[bool]:
    told = []
    for _ in range(3):
        told.append(ctx.patched("loop"))
        await ctx.wait_for(GO)
        await ctx.step("a", one)
    return told


async def looped(ctx: Ctx) -> list[bool]:
    for _ in range(3):
        await ctx.wait_for(GO)
        await ctx.step("a", one)
    return []


def named(code: Any) -> Workflow[Any, Any]:
    return Workflow(code, "refund")


@pytest.mark.parametrize("status", ["suspended", "parked"])
def test_an_old_run_goes_the_old_way_where_it_has_been_and_the_new_way_further_on(lasting: Place, status: str) -> None:
    """D15"""
    async def main() -> None:
        config = {"park_after": "50ms" if status == "parked" else "10s"}
        async with lasting.engine([named(before)], **config) as engine:
            await engine.start("refund", "old")
            await has_status(engine, "old", status)
        async with lasting.engine([named(after)], **config) as engine:
            await engine.handle("old").signal(GO)
            assert await engine.handle("old").result() == 11
            fresh = await engine.start("refund", "new")
            await fresh.signal(GO)
            assert await fresh.result() == 111
            for _ in range(3):
                told = [record.name for record in (await engine.describe("new")).journal if record.kind == "patched"]  # type: ignore[union-attr]
                assert told == ["early", "late"]
        replayer = Replayer(workflows=[named(after)])
        assert all(replayer.replay(journal).ok for journal in export(lasting.dir))

    run(main())


def test_what_a_run_was_told_stays_so_over_restarts(tmp_path: Path) -> None:
    async def main() -> None:
        place = Place(tmp_path / "data")
        async with place.engine([named(loops)]) as engine:
            await engine.start("refund", "new")
            await engine.handle("new").signal(GO)
        async with place.engine([named(looped)]) as engine:
            await engine.start("refund", "old")
            await engine.handle("old").signal(GO)
            await has_status(engine, "old", "suspended")
        for _ in range(2):
            async with place.engine([named(loops)]) as engine:
                for id in ("old", "new"):
                    await engine.handle(id).signal(GO)
        async with place.engine([named(loops)]) as engine:
            assert await engine.handle("new").result() == [True] * 3
            assert await engine.handle("old").result() == [False] * 3, "it is told the same at every turn of a loop"

    run(main())


def test_a_patch_in_a_query_or_with_a_bad_name_is_refused(tmp_path: Path) -> None:
    async def bad(ctx: Ctx) -> str:
        ctx.on_query("look", lambda: ctx.patched("p"))
        try:
            ctx.patched("")
        except Exception as e:  # noqa: BLE001
            await ctx.wait_for(GO)
            return type(e).__name__
        return "no"

    async def main() -> None:
        async with Place(None).engine([named(bad)]) as engine:
            handle = await engine.start("refund", "r")
            with pytest.raises(Exception, match="only looks"):
                await handle.query("look")
            await handle.signal(GO)
            assert await handle.result() == "Rejected"

    run(main())
