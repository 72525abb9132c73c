"""Pausing: by hand, and by a step that has used up its attempts."""
from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from behaviour_places import Place, has_status, run, until

from fusee_mp import Cancelled, Ctx, Fatal, Retry, WorkflowFailed, current_step, workflow

ATTEMPTS: list[int] = []
BROKEN: list[BaseException] = []
NOTES: list[str] = []


@pytest.fixture(autouse=True)
def nothing_broken() -> None:
    ATTEMPTS.clear()
    BROKEN.clear()
    NOTES.clear()


@pytest.fixture(params=["memory", "embedded"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return Place(None if request.param == "memory" else tmp_path / "data")


async def deliver() -> str:
    ATTEMPTS.append(current_step().attempt)
    if BROKEN:
        raise BROKEN[0]
    return "delivered"


async def note(text: str) -> str:
    NOTES.append(text)
    return text


@workflow(on_exhausted="pause")
async def parcel(ctx: Ctx) -> str:
    try:
        return await ctx.step("deliver", deliver, retry=Retry(attempts=2, initial="1ms"))
    except asyncio.CancelledError:
        await ctx.step("undo", note, "undone")
        raise


@workflow
async def letter(ctx: Ctx) -> str:
    return await ctx.step("deliver", deliver)


@workflow
async def collector(ctx: Ctx) -> list[int]:
    got = [await ctx.wait_for("n"), await ctx.wait_for("n")]
    await ctx.step("note", note, "got both")
    return got


def test_a_step_without_attempts_left_pauses_its_run_and_has_all_of_them_again_when_resumed(anywhere: Place) -> None:
    async def main() -> None:
        BROKEN.append(ValueError("no road"))
        async with anywhere.engine([parcel]) as engine:
            handle = await engine.start(parcel, "p")
            await has_status(engine, "p", "paused")
            detail = await handle.describe()
            assert detail is not None and detail.is_open
            assert 'step "deliver" failed at attempt 2, its last: ValueError: no road' in detail.reason
            assert [(p.name, p.attempt, p.last_failure) for p in detail.pending] == [("deliver", 3, "ValueError: no road")]
            await handle.resume()
            await until(lambda: ATTEMPTS == [1, 2, 3, 4])
            await has_status(engine, "p", "paused")
            BROKEN.clear()
            await handle.resume()
            assert await handle.result() == "delivered" and ATTEMPTS == [1, 2, 3, 4, 5]

    run(main())


def test_a_paused_run_stays_paused_across_restarts_and_keeps_its_fresh_attempts(tmp_path: Path) -> None:
    async def main() -> None:
        place = Place(tmp_path / "data")
        BROKEN.append(ValueError("no road"))
        async with place.engine([parcel], park_after="10ms") as engine:
            await engine.start(parcel, "p")
            await has_status(engine, "p", "paused")
        async with place.engine([parcel], park_after="10ms") as engine:
            await has_status(engine, "p", "paused")
            await engine.start(parcel, "other")
            await has_status(engine, "other", "paused")  # a whole other run, and still no attempt of the first
            assert ATTEMPTS == [1, 2, 1, 2]
            await engine.handle("p").resume()
            await until(lambda: ATTEMPTS == [1, 2, 1, 2, 3, 4])
            await has_status(engine, "p", "paused")
        BROKEN.clear()
        async with place.engine([parcel]) as engine:
            await engine.handle("p").resume()
            assert await engine.handle("p", parcel).result() == "delivered"

    run(main())


@pytest.mark.parametrize("error", [Fatal("pointless"), SystemExit(3)], ids=repr)
def test_what_says_that_another_attempt_is_pointless_fails_the_run_all_the_same(anywhere: Place, error: BaseException) -> None:
    async def main() -> None:
        BROKEN.append(error)
        async with anywhere.engine([parcel]) as engine:
            with pytest.raises(WorkflowFailed):
                await engine.execute(parcel, "p")
            assert ATTEMPTS == [1]

    run(main())


def test_the_config_says_it_for_workflows_that_do_not(tmp_path: Path) -> None:
    async def main() -> None:
        BROKEN.append(ValueError("no road"))
        async with Place(tmp_path / "data").engine([letter], on_exhausted="pause") as engine:
            handle = await engine.start(letter, "l")
            await has_status(engine, "l", "paused")
            BROKEN.clear()
            await handle.resume()
            assert await handle.result() == "delivered"

    run(main())


def test_cancelling_a_paused_run_lets_its_clean_up_run(anywhere: Place) -> None:
    async def main() -> None:
        BROKEN.append(ValueError("no road"))
        async with anywhere.engine([parcel]) as engine:
            handle = await engine.start(parcel, "p")
            await has_status(engine, "p", "paused")
            await handle.cancel("given up")
            with pytest.raises(Cancelled, match="given up"):
                await handle.result()
            assert NOTES == ["undone"] and ATTEMPTS == [1, 2]

    run(main())


def test_a_paused_run_can_be_terminated(anywhere: Place) -> None:
    async def main() -> None:
        async with anywhere.engine([collector]) as engine:
            handle = await engine.start(collector, "c")
            await handle.pause()
            await has_status(engine, "c", "paused")
            await handle.terminate("enough")
            await has_status(engine, "c", "terminated")

    run(main())


def test_what_arrives_for_a_paused_run_is_kept_and_no_step_begins_until_it_is_resumed(place: Place) -> None:
    async def main() -> None:
        async with place.engine([collector], park_after="10ms") as engine:
            handle = await engine.start(collector, "c")
            await handle.pause("stocktaking")
            await handle.signal("n", 1)
            await handle.signal("n", 2)
            detail = await handle.describe()
            assert detail is not None and (detail.status, detail.reason) == ("paused", "stocktaking")
            await engine.execute(collector_of_others, "others", 20)  # time and turns go by
            assert NOTES == []
            await handle.resume()
            assert await handle.result() == [1, 2] and NOTES == ["got both"]

    @workflow("others")
    async def collector_of_others(ctx: Ctx, count: int) -> None:
        for _ in range(count):
            await ctx.sleep("5ms")

    place_engine = place.engine
    place.engine = lambda workflows, **config: place_engine([*workflows, collector_of_others], **config)  # type: ignore[method-assign]
    run(main())


def test_resuming_what_is_not_paused_and_pausing_twice_change_nothing(anywhere: Place) -> None:
    async def main() -> None:
        async with anywhere.engine([collector]) as engine:
            handle = await engine.start(collector, "c")
            await handle.resume()
            await handle.pause("first")
            await handle.pause("second")
            detail = await handle.describe()
            assert detail is not None and detail.reason == "first"
            await handle.resume()
            await handle.signal("n", 1)
            await handle.signal("n", 2)
            assert await handle.result() == [1, 2]

    run(main())


