"""Heartbeats: durable progress, the time-out, and what does not depend on them."""
from __future__ import annotations

import asyncio
import logging
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from behaviour_places import Place, run, until

from fusee_mp import Ctx, PayloadError, Retry, Workflow, current_step, workflow
from fusee_mp.bounds import PAYLOAD_BYTES_MAX

SEEN: list[Any] = []
HOLD: list[asyncio.Event] = []


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    SEEN.clear()
    HOLD.clear()


@pytest.fixture(params=["memory", "embedded"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return Place(None if request.param == "memory" else tmp_path / "data")


async def import_rows(total: int) -> int:
    """Goes on where the last attempt reported to be."""
    step = current_step()
    row = step.progress(int) or 0
    SEEN.append((step.attempt, row))
    while row < total:
        row += 1
        step.heartbeat(row)
        if row == total // 2 and len(SEEN) == 1:
            HOLD.append(asyncio.Event())
            await HOLD[0].wait()
    return row


@workflow
async def imports(ctx: Ctx) -> int:
    return await ctx.step("import", import_rows, 10)


def test_after_a_stop_in_the_middle_of_a_step_the_next_attempt_goes_on_from_its_progress(lasting: Place) -> None:
    """D10"""
    async def main() -> None:
        async with lasting.engine([imports]) as engine:
            handle = await engine.start(imports, "i")
            # The newest of several reports is recorded within 100 ms, and describe shows it.
            async def shown() -> bool:
                detail = await handle.describe()
                return detail is not None and [(p.name, p.attempt, p.progress) for p in detail.pending] == [("import", 1, 5)]
            await until(shown)
        async with lasting.engine([imports]) as engine:
            assert await engine.handle("i", imports).result() == 10
        assert SEEN == [(1, 0), (1, 5)]

    run(main())


async def falls_silent() -> int:
    step = current_step()
    SEEN.append((step.attempt, step.progress(int)))
    if step.attempt == 1:
        step.heartbeat(1)
        await asyncio.sleep(60)
    return step.attempt


@workflow
async def silent(ctx: Ctx) -> int:
    return await ctx.step("s", falls_silent, heartbeat_timeout="100ms", retry=Retry(attempts=2, initial="1ms"))


def test_a_step_that_stops_heartbeating_fails_and_its_next_attempt_sees_the_progress(anywhere: Place) -> None:
    """D11"""
    async def main() -> None:
        async with anywhere.engine([silent]) as engine:
            assert await engine.execute(silent, "s") == 2
            detail = await engine.describe("s")
        assert SEEN == [(1, None), (2, 1)]
        assert detail is not None
        failure = next(record for record in detail.journal if record.kind == "attempt").fields["failure"]
        assert failure["type"] == "builtins:TimeoutError" and "heartbeat_timeout of 0.1 s" in failure["message"]

    run(main())


async def beats_on() -> str:
    for _ in range(30):
        current_step().heartbeat()
        await asyncio.sleep(0.01)
    return "alive"


@workflow
async def alive(ctx: Ctx) -> str:
    return await ctx.step("a", beats_on, heartbeat_timeout="150ms")


def test_heartbeats_keep_the_time_out_away_and_are_recorded_rarely(anywhere: Place) -> None:
    """G09"""
    async def main() -> None:
        async with anywhere.engine([alive]) as engine:
            assert await engine.execute(alive, "a") == "alive"
            detail = await engine.describe("a")
        assert detail is not None
        beats = [record for record in detail.journal if record.kind == "heartbeat"]
        took_ms = (detail.journal[-1].at - detail.journal[0].at).total_seconds() * 1000
        assert 1 <= len(beats) <= took_ms / 100 + 1

    run(main())


def in_a_thread(total: int) -> int:
    """The last report comes right before the failure, so it must not be lost among those that wait."""
    step = current_step()
    SEEN.append(step.progress(int))
    for row in range(total + 1):
        step.heartbeat(row)
    if step.attempt == 1:
        raise ValueError("again")
    return total


@workflow
async def threaded(ctx: Ctx, without: int) -> int:
    return await ctx.step("t", in_a_thread, 50, retry=Retry(attempts=2, initial="1ms"))


def test_a_thread_reports_too_and_the_newest_report_before_a_failure_counts(place: Place) -> None:
    async def main() -> None:
        async with place.engine([threaded]) as engine:
            assert await engine.execute(threaded, "t", 0) == 50
        assert SEEN == [None, 50]

    run(main())


LATE: list[threading.Event] = []


def runs_on() -> int:
    """A thread cannot be stopped: what its first attempt reports after its time was up counts for nothing."""
    step = current_step()
    if step.attempt == 1:
        LATE[0].wait(20)
        step.heartbeat("late")
        SEEN.append(current_step().attempt)
        LATE[1].set()
        return 1
    LATE[0].set()
    LATE[1].wait(20)
    return 2


@workflow
async def late(ctx: Ctx) -> int:
    return await ctx.step("l", runs_on, timeout="300ms", retry=Retry(attempts=2, initial="1ms"))


def test_a_report_after_the_end_of_its_attempt_is_ignored(place: Place) -> None:
    async def main() -> None:
        LATE[:] = [threading.Event(), threading.Event()]
        async with place.engine([late]) as engine:
            assert await engine.execute(late, "l") == 2
            detail = await engine.describe("l")
        assert detail is not None and "heartbeat" not in [record.kind for record in detail.journal]
        assert SEEN == [1]

    run(main())


async def reports_too_much(size: int) -> int:
    current_step().heartbeat("x" * (size - 2))
    return size


@workflow
async def large(ctx: Ctx, size: int) -> int:
    return await ctx.step("large", reports_too_much, size)


@pytest.mark.parametrize("size", [PAYLOAD_BYTES_MAX - 1, PAYLOAD_BYTES_MAX])
def test_a_report_as_large_as_a_payload_may_be_is_taken(place: Place, size: int) -> None:
    async def main() -> None:
        async with place.engine([large]) as engine:
            assert await engine.execute(large, "l", size) == size

    run(main())


@pytest.mark.parametrize("size", [PAYLOAD_BYTES_MAX + 1, 10 * PAYLOAD_BYTES_MAX])
def test_a_report_that_is_too_large_is_refused_where_it_is_made(size: int) -> None:
    with pytest.raises(PayloadError, match=rf"the value of heartbeat is too large: expected at most {PAYLOAD_BYTES_MAX:,}.*found {size:,}"):
        current_step().heartbeat("x" * (size - 2))


def test_outside_of_a_step_there_is_a_stand_in() -> None:
    step = current_step()
    step.heartbeat({"row": 3})
    assert step.progress() is None and step.attempt == 1 and step.key != current_step().key


async def blocks() -> str:
    time.sleep(2.8)
    return "done"


def test_a_body_that_blocks_the_loop_is_named_with_its_line_and_is_not_repeated(caplog: pytest.LogCaptureFixture) -> None:
    """G09"""
    async def main() -> None:
        blocking = Workflow(blocker, "blocker")
        with caplog.at_level(logging.WARNING, "fusee_mp.step"):
            async with Place(None).engine([blocking]) as engine:
                assert await engine.execute(blocking, "b") == "done"
        line = blocks.__code__.co_firstlineno + 1
        (said,) = [record.message for record in caplog.records]
        assert f"test_behaviour_heartbeats.py:{line} in blocks has kept the event loop busy" in said

    run(main())


async def blocker(ctx: Ctx) -> str:
    return await ctx.step("b", blocks, heartbeat_timeout="500ms")


async def beats_while_it_can() -> str:
    for _ in range(25):
        current_step().heartbeat()
        await asyncio.sleep(0.02)
    return "alive"


async def holds_the_loop_up() -> None:
    await asyncio.sleep(0.1)
    time.sleep(0.5)


@workflow
async def side_by_side(ctx: Ctx) -> list[str | None]:
    return list(await ctx.all([ctx.step("a", beats_while_it_can, heartbeat_timeout="150ms"), ctx.step("b", holds_the_loop_up)]))


def test_a_body_that_holds_the_loop_up_makes_no_other_step_fail(anywhere: Place) -> None:
    """G09"""
    async def main() -> None:
        async with anywhere.engine([side_by_side]) as engine:
            assert await engine.execute(side_by_side, "s") == ["alive", None]

    run(main())
