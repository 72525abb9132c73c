"""What workflow code tells the world besides its result: once, however often it is replayed."""
from __future__ import annotations

import logging

import pytest
from behaviour_places import Place, has_status, run

from fusee_mp import Ctx, query, signal, workflow

GO = signal("go", int)
SEEN = query("seen", returns=int)
EVENTS = 12
replays: list[int] = []


@workflow
async def tells(ctx: Ctx) -> int:
    seen = 0
    ctx.on_query(SEEN, lambda: asked(ctx, seen))
    replays.append(int(ctx.is_replaying))
    for n in range(EVENTS):
        seen = await ctx.wait_for(GO)
        ctx.log.info("event %d", n)
        if not ctx.is_replaying:
            counted.append(n)
    return seen


counted: list[int] = []


def asked(ctx: Ctx, seen: int) -> int:
    ctx.log.info("asked at %d", seen)
    return seen


@pytest.fixture(autouse=True)
def nothing_counted() -> None:
    replays.clear()
    counted.clear()


def test_each_line_of_the_log_is_said_once_although_the_run_leaves_memory_after_each_event(
    lasting: Place, caplog: pytest.LogCaptureFixture,
) -> None:
    """G20: replays are silent, a query may speak, and what a guard counts is counted once."""
    async def main() -> None:
        async with lasting.engine([tells], park_after=0) as engine:
            handle = await engine.start(tells, "t")
            for n in range(EVENTS):
                await has_status(engine, "t", "parked")
                if n % 5 == 0:
                    assert await handle.query(SEEN) == max(0, n - 1)
                    await has_status(engine, "t", "parked")
                await handle.signal(GO, n)
            assert await handle.result() == EVENTS - 1
            assert await handle.query(SEEN) == EVENTS - 1

    with caplog.at_level(logging.INFO, "fusee_mp.workflow"):
        run(main())
    said = [record.getMessage() for record in caplog.records if record.name == "fusee_mp.workflow"]
    assert [text for text in said if text.startswith("event")] == [f"event {n}" for n in range(EVENTS)]
    assert len([text for text in said if text.startswith("asked")]) == len(range(0, EVENTS, 5)) + 1
    assert counted == list(range(EVENTS)) and sum(replays) >= EVENTS


def test_only_looking_at_a_run_replays_nothing_and_says_nothing(anywhere: Place, caplog: pytest.LogCaptureFixture) -> None:
    """G20"""
    async def main() -> None:
        async with anywhere.engine([tells]) as engine:
            handle = await engine.start(tells, "t")
            await handle.signal(GO, 1)
            before = list(replays)
            for _ in range(3):
                assert await handle.describe() is not None and await handle.status() is not None
                assert len(await engine.list()) == await engine.count() == 1
            assert replays == before

    with caplog.at_level(logging.INFO, "fusee_mp.workflow"):
        run(main())
    assert [record.getMessage() for record in caplog.records if record.name == "fusee_mp.workflow"] == ["event 0"]
