"""Queries and updates: D3 to D9, C16 embedded, G04; in memory, on a directory closed and opened again, the main ones on a server."""
from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from behaviour_handlers import ADD, ALL, CLOSE, COUNT, GO, ITEMS, PLUS, adder, cart, clumsy, counter
from behaviour_places import Place, has_status, run, until
from behaviour_workflows import notes

from fusee_mp import (
    Cancelled,
    Ctx,
    Engine,
    NonDeterminismError,
    NotFound,
    PayloadError,
    Rejected,
    Replayer,
    Terminated,
    Workflow,
    WorkflowFailed,
    export,
)

HERE = Path(__file__).parent


@pytest.fixture(params=["memory", "embedded"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setenv("FUSEE_TEST_NOTES", str(tmp_path / "notes"))
    yield Place(None if request.param == "memory" else tmp_path / "data")


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("FUSEE_TEST_NOTES", str(tmp_path / "notes"))
    return Place(tmp_path / "data")


async def kinds(engine: Engine, id: str) -> list[str]:
    detail = await engine.describe(id)
    assert detail is not None
    return [record.kind for record in detail.journal]


async def refused(call: Any, *words: str) -> None:
    with pytest.raises(Rejected) as found:
        await call
    assert all(word in str(found.value) for word in words), str(found.value)


# Updates.


def test_an_update_with_an_id_runs_its_handler_once(anywhere: Place) -> None:
    """D3, D6"""
    async def main() -> None:
        async with anywhere.engine(ALL) as engine:
            cart_run = await engine.start(cart, "c")
            assert await cart_run.update(ADD, "pen", update_id="u-1") == 1
            assert await cart_run.update(ADD, "another", update_id="u-1") == 1
            assert [text for _, text in notes()] == ["pen"]
            assert await kinds(engine, "c") == ["start", "update", "step", "update_done"]
            assert await asyncio.gather(*[cart_run.update(ADD, "ink", update_id="u-2") for _ in range(20)]) == [2] * 20
            assert (await kinds(engine, "c")).count("update") == 2

    run(main())


def test_what_a_validator_refuses_is_not_recorded(anywhere: Place) -> None:
    """D4"""
    async def main() -> None:
        async with anywhere.engine(ALL) as engine:
            cart_run = await engine.start(cart, "c")
            await refused(cart_run.update(ADD, " "), "an item has a name")
            await refused(cart_run.update("remove", 1), '"remove"', '"add", "close"')
            with pytest.raises(PayloadError):
                await cart_run.update("add", 7)
            await cart_run.update(CLOSE)
            assert await cart_run.result() == []
            assert await kinds(engine, "c") == ["start", "update", "update_done", "done"]

    run(main())


def test_each_validator_sees_what_the_update_before_it_did(place: Place) -> None:
    async def main() -> None:
        async with place.engine(ALL) as engine:
            cart_run = await engine.start(cart, "c")
            asked = [cart_run.update(ADD, "a"), cart_run.update(CLOSE), cart_run.update(ADD, "b"), cart_run.update(ADD, "c")]
            first, closed, *late = await asyncio.gather(*asked, return_exceptions=True)
            assert (first, closed) == (1, None) and all(isinstance(error, Rejected) for error in late)
            assert await cart_run.result() == ["a"]

    run(main())


def test_an_update_waits_for_the_code_to_register_its_handler(place: Place) -> None:
    async def main() -> None:
        async with place.engine(ALL) as engine:
            starting = asyncio.create_task(engine.start(cart, "c"))
            await until(lambda: engine.runtimes[0].by_id or starting.done())
            assert await engine.handle("c").update(ADD, "pen") == 1
            await starting

    run(main())


def test_deduplication_and_state_outlive_a_restart(lasting: Place) -> None:
    """D7"""
    async def main() -> None:
        async with lasting.engine(ALL) as engine:
            await (await engine.start(cart, "c")).update(ADD, "pen", update_id="u-1")
        async with lasting.engine(ALL) as engine:
            cart_run = engine.handle("c", cart)
            assert await cart_run.update(ADD, "other", update_id="u-1") == 1
            assert await cart_run.update(ADD, "ink") == 2
            assert await cart_run.query(ITEMS) == ["pen", "ink"]
            assert [text for _, text in notes()] == ["pen", "ink"]
            assert len({key for key, _ in notes()}) == 2

    run(main())


def test_a_start_and_its_update_are_one_record(anywhere: Place) -> None:
    """D8, D9"""
    async def main() -> None:
        async with anywhere.engine(ALL) as engine:
            started, result = await engine.update_with_start("increments", "i", 10, "inc", 5, update_id="u-1")
            assert result == 15
            detail = await started.describe()
            assert detail is not None and detail.journal[0].kind == "start" and detail.journal[0].fields["update"]["name"] == "inc"
            assert [record.kind for record in detail.journal] == ["start", "update_done"]
            assert (await engine.update_with_start("increments", "i", 99, "inc", 1))[1] == 16
            assert (await engine.update_with_start("increments", "i", 99, "inc", 50, update_id="u-1"))[1] == 15
            await started.signal(GO, 1)
            assert await started.result() == 16
            assert (await engine.update_with_start("increments", "i", 99, "inc", 50, update_id="u-1"))[1] == 15
            again, result = await engine.update_with_start("increments", "i", 1, "inc", 1)
            assert result == 2 and (await again.status()).number != detail.number  # type: ignore[union-attr]

    run(main())


def test_what_the_validator_refuses_of_a_start_with_update_leaves_the_run(place: Place) -> None:
    async def main() -> None:
        async with place.engine(ALL) as engine:
            await refused(engine.update_with_start("increments", "i", 10, "inc", -5, update_id="u-1"), "-5 is less than nothing")
            await refused(engine.handle("i").update("inc", 3, update_id="u-1"), "-5 is less than nothing")
            await refused(engine.update_with_start("increments", "j", 10, "dec", 1), '"dec"')
            assert await engine.handle("i").query("total") == 10
        if place.dir is not None:
            async with place.engine(ALL) as engine:
                await refused(engine.handle("i").update("inc", 3, update_id="u-1"), "-5 is less than nothing")
                assert await engine.handle("i").update("inc", 3) == 13

    run(main())


def test_a_run_does_not_end_before_the_updates_it_accepted(place: Place) -> None:
    async def main() -> None:
        async with place.engine(ALL) as engine:
            adding = await engine.start(adder, "a", 0)
            updates = [asyncio.create_task(adding.update(PLUS, n)) for n in (1, 10, 100)]
            await until(lambda: _has(engine, "a", "update", 3))
            await adding.signal(GO, 1000)
            assert await updates[0] == 1001
            with pytest.raises(TimeoutError):
                await adding.result(timeout=0.1)
            await adding.signal(GO, 0)
            await adding.signal(GO, 0)
            assert await asyncio.gather(*updates) == [1001, 1011, 1111]
            assert await adding.result() == 1001
            assert (await kinds(engine, "a"))[-1] == "done"
            await refused(adding.update(PLUS, 1), "ended as ok")

    run(main())


async def _has(engine: Engine, id: str, kind: str, count: int) -> bool:
    return (await kinds(engine, id)).count(kind) >= count


def test_updates_that_come_together_are_counted_or_refused(anywhere: Place) -> None:
    """G04: the first that is accepted lets the code end; the others are accepted before that, or told."""
    async def main() -> None:
        async with anywhere.engine(ALL) as engine:
            for ends_at in (1, 4, 10):
                counting = await engine.start(counter, f"n-{ends_at}", ends_at)
                answers = await asyncio.gather(*[counting.update("tick") for _ in range(10)], return_exceptions=True)
                handled = [answer for answer in answers if not isinstance(answer, Rejected)]
                assert handled == list(range(1, ends_at + 1)) == list(range(1, await counting.result() + 1))
                assert len(answers) - len(handled) == 10 - ends_at

    run(main())


def test_updates_to_a_run_that_is_not_in_memory_are_counted_or_refused(kept: Place) -> None:
    """G04: while nothing runs it, and while it is loaded."""
    async def main() -> None:
        async with kept.engine(ALL, park_after=0) as engine:
            await engine.start(counter, "n", 4)
            await has_status(engine, "n", "parked")
        async with kept.engine(ALL, park_after=0) as engine:
            answers = await asyncio.gather(*[engine.handle("n").update("tick") for _ in range(10)], return_exceptions=True)
            assert [a for a in answers if isinstance(a, int)] == [1, 2, 3, 4] and await engine.handle("n").result() == 4

    run(main())


def test_a_failed_handler_fails_its_update_and_not_its_run(anywhere: Place) -> None:
    async def main() -> None:
        async with anywhere.engine(ALL) as engine:
            clumsy_run = await engine.start(clumsy, "x")
            for _ in range(2):
                with pytest.raises(WorkflowFailed, match="breaks.*KeyError") as found:
                    await clumsy_run.update("breaks", update_id="u-1")
                assert isinstance(found.value.__cause__, KeyError) and found.value.__cause__.args == ("lost",)
            assert [text for _, text in notes()] == ["before"]
            with pytest.raises(WorkflowFailed) as found:
                await clumsy_run.update("exits")
            assert isinstance(found.value.__cause__, SystemExit)
            await refused(clumsy_run.update("steps in validator"), "a step", "validator of update", "only looks")
            await clumsy_run.signal(GO, 1)
            await clumsy_run.result()

    run(main())


def test_cancelling_a_run_reaches_its_handlers(place: Place) -> None:
    async def main() -> None:
        async with place.engine(ALL) as engine:
            clumsy_run = await engine.start(clumsy, "x")
            update = asyncio.create_task(clumsy_run.update("waits", update_id="u-1"))
            await until(lambda: _has(engine, "x", "update", 1))
            await clumsy_run.cancel("enough")
            with pytest.raises(Cancelled, match="waits"):
                await update
            with pytest.raises(Cancelled, match="enough"):
                await clumsy_run.result()
            assert [text for _, text in notes()] == ["cleaned up"]
            with pytest.raises(Cancelled, match="waits"):
                await clumsy_run.update("waits", update_id="u-1")

    run(main())


def test_an_accepted_update_hears_how_its_run_was_ended(place: Place) -> None:
    async def main() -> None:
        async with place.engine(ALL) as engine:
            clumsy_run = await engine.start(clumsy, "x")
            update = asyncio.create_task(clumsy_run.update("waits", update_id="u-1"))
            await until(lambda: _has(engine, "x", "update", 1))
            await clumsy_run.terminate("enough")
            for again in (update, clumsy_run.update("waits", update_id="u-1")):
                with pytest.raises(Terminated, match="enough"):
                    await again
        if place.dir is not None:
            async with place.engine(ALL) as engine:
                with pytest.raises(Terminated, match="enough"):
                    await engine.handle("x").update("waits", update_id="u-1")

    run(main())


def test_an_update_in_flight_at_a_crash_is_finished_after_it(kept: Place) -> None:
    """C16: embedded."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), str(HERE)])}
    command = [sys.executable, str(HERE / "behaviour_handlers.py"), str(kept.dir)]
    child = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    with child:
        assert child.stdout is not None and child.stdout.readline() == "accepted\n"
        child.kill()

    async def main() -> None:
        async with kept.engine(ALL) as engine:
            adding = engine.handle("a", adder)
            retried = [asyncio.create_task(adding.update(PLUS, 10, update_id="u-1")) for _ in range(3)]
            await adding.signal(GO, 0)
            assert await asyncio.gather(*retried) == [15, 15, 15] and await adding.result() == 15
            assert (await kinds(engine, "a")).count("update") == 1
        async with kept.engine(ALL) as engine:
            assert await engine.handle("a").update(PLUS, 7, update_id="u-1") == 15
            await refused(engine.handle("a").update(PLUS, 7, update_id="u-2"), "ended as ok")

    run(main())


def test_an_update_in_flight_is_parked_and_answered(kept: Place) -> None:
    async def main() -> None:
        async with kept.engine(ALL, park_after=0) as engine:
            adding = await engine.start(adder, "a", 5)
            update = asyncio.create_task(adding.update(PLUS, 10, update_id="u-1"))
            await until(lambda: _has(engine, "a", "update", 1))
            await has_status(engine, "a", "parked")
            second = asyncio.create_task(adding.update(PLUS, 10, update_id="u-1"))
            await adding.signal(GO, 100)
            assert (await update, await second, await adding.result()) == (115, 115, 115)

    run(main())


def test_ten_thousand_updates_at_once_are_handled_in_turn(place: Place) -> None:
    async def main() -> None:
        async with place.engine(ALL) as engine:
            counting = await engine.start(counter, "n", 10_000)
            answers = await asyncio.gather(*[counting.update("tick") for _ in range(10_000)])
            assert answers == list(range(1, 10_001)) and await counting.result() == 10_000

    run(main())


# Queries.


def test_a_query_tells_the_state_and_records_nothing(anywhere: Place) -> None:
    """D5"""
    async def main() -> None:
        async with anywhere.engine(ALL) as engine:
            cart_run = await engine.start(cart, "c")
            await cart_run.update(ADD, "pen")
            before = await kinds(engine, "c")
            assert await cart_run.query(ITEMS) == ["pen"]
            assert (await cart_run.query(COUNT, "pen"), await cart_run.query("count", "ink")) == (1, 0)
            await refused(cart_run.query("price"), '"price"', '"count", "items"')
            with pytest.raises(PayloadError):
                await cart_run.query("count", 7)
            with pytest.raises(NotFound):
                await engine.handle("nobody").query(ITEMS)
            assert await kinds(engine, "c") == before

    run(main())


def test_a_query_only_looks(anywhere: Place) -> None:
    async def main() -> None:
        async with anywhere.engine(ALL) as engine:
            clumsy_run = await engine.start(clumsy, "x")
            before = await kinds(engine, "x")
            assert await clumsy_run.query("is fine") == ["x", "True"]
            with pytest.raises(WorkflowFailed) as found:
                await clumsy_run.query("raises")
            assert isinstance(found.value.__cause__, KeyError)
            for name in ("calls a step", "calls ctx", "sets attributes", "makes a task", "draws"):
                with pytest.raises(WorkflowFailed, match="only looks"):
                    await clumsy_run.query(name)
            drawn = await clumsy_run.query("draws by a side door")
            assert drawn == await clumsy_run.query("draws by a side door")
            assert await kinds(engine, "x") == before and not notes()
            await clumsy_run.signal(GO, 1)
            assert await clumsy_run.result() == str(drawn)
            with pytest.raises(WorkflowFailed, match="only looks"):
                await clumsy_run.query("calls a step")

    run(main())


def test_a_query_that_wakes_a_task_is_told_and_the_state_made_anew(place: Place) -> None:
    """What it took from the queue cannot be put back: the run leaves memory, and replays when something arrives."""
    async def main() -> None:
        async with place.engine(ALL) as engine:
            clumsy_run = await engine.start(clumsy, "x")
            with pytest.raises(WorkflowFailed, match="only looks"):
                await clumsy_run.query("wakes")
            assert await kinds(engine, "x") == ["start"]
            await until(lambda: not engine.runtimes[0].by_number)
            await clumsy_run.signal(GO, 1)
            assert await clumsy_run.result()

    run(main())


def test_a_query_without_an_end_is_interrupted_and_its_run_goes_on(place: Place) -> None:
    async def main() -> None:
        async with place.engine([clumsy]) as engine:
            clumsy_run = await engine.start(clumsy, "x")
            with pytest.raises(WorkflowFailed, match="does not come to an end"):
                await clumsy_run.query("spins")
            assert await clumsy_run.query("is fine") == ["x", "True"]
            await clumsy_run.signal(GO, 1)
            await clumsy_run.result()

    run(main())


def test_an_async_query_is_refused_where_it_is_registered(place: Place) -> None:
    async def main() -> None:
        async with place.engine(ALL) as engine:
            with pytest.raises(WorkflowFailed) as found:
                await engine.execute("no_query_here", "q")
            assert isinstance(found.value.__cause__, Rejected) and "plain `def`" in str(found.value.__cause__)

    run(main())


def test_a_query_is_answered_after_the_end_and_after_a_restart(place: Place) -> None:
    async def main() -> None:
        async with place.engine(ALL) as engine:
            cart_run = await engine.start(cart, "c")
            await cart_run.update(ADD, "pen")
            await cart_run.update(CLOSE)
            answers = await asyncio.gather(cart_run.result(), *[cart_run.query(ITEMS) for _ in range(5)])
            assert answers == [["pen"]] * 6
            adding = await engine.start(adder, "a", 3)
            await adding.terminate()
            assert await adding.query("total") == 3
            await until(lambda: not engine.runtimes[0].by_number)
            before = await kinds(engine, "c")
            assert await cart_run.query(ITEMS) == ["pen"] and await kinds(engine, "c") == before
        if place.dir is not None:
            async with place.engine(ALL) as engine:
                records = engine.runtimes[0].metrics.records
                assert await engine.handle("c").query(ITEMS) == ["pen"] and await engine.handle("a").query("total") == 3
                assert (await kinds(engine, "c"), engine.runtimes[0].metrics.records) == (before, records)
                assert not engine.runtimes[0].by_number and [text for _, text in notes()] == ["pen"]
            async with place.engine([adder]) as engine:
                await refused_for(engine.handle("c").query(ITEMS), "not registered")

    run(main())


async def refused_for(call: Any, words: str) -> None:
    with pytest.raises(Exception, match=words):
        await call


def test_a_query_of_a_parked_run_leaves_it_parked(kept: Place) -> None:
    async def main() -> None:
        async with kept.engine(ALL, park_after=0) as engine:
            cart_run = await engine.start(cart, "c")
            await cart_run.update(ADD, "pen")
            await has_status(engine, "c", "parked")
            runtime = engine.runtimes[0]
            await until(lambda: not runtime.by_number)
            lsn = runtime.lsn
            assert await cart_run.query(ITEMS) == ["pen"]
            await until(lambda: not runtime.by_number)
            assert runtime.lsn == lsn and (await cart_run.status()).status == "parked"  # type: ignore[union-attr]
            assert await asyncio.gather(*[cart_run.query(ITEMS) for _ in range(50)]) == [["pen"]] * 50
            assert await cart_run.update(ADD, "ink") == 2

    run(main())


def _changed(fn: Any) -> Any:
    return Workflow(fn, "cart")


async def _other_cart(ctx: Ctx) -> None:
    await ctx.sleep("1h")


async def _deaf_cart(ctx: Ctx) -> None:
    ctx.on_query(ITEMS, list)
    await ctx.wait_until(lambda: False)


@pytest.mark.parametrize("code", [_other_cart, _deaf_cart])
def test_a_quarantined_run_says_so_and_goes_on_with_code_that_fits(kept: Place, code: Any) -> None:
    async def main() -> None:
        async with kept.engine(ALL) as engine:
            await (await engine.start(cart, "c")).update(ADD, "pen", update_id="u-1")
        async with kept.engine([_changed(code)]) as engine:
            for _ in range(2):
                await refused(engine.handle("c").query(ITEMS), "quarantined")
                await refused(engine.handle("c").update(ADD, "ink"), "quarantined")
                assert await engine.handle("c").update(ADD, "ink", update_id="u-1") == 1
        async with kept.engine(ALL) as engine:
            assert await engine.handle("c").query(ITEMS) == ["pen"]

    run(main())


# Replay.


def test_a_journal_with_updates_replays_and_changed_handlers_are_noticed(kept: Place) -> None:
    async def main() -> None:
        async with kept.engine(ALL) as engine:
            _, total = await engine.update_with_start("increments", "i", 1, "inc", 1)
            assert total == 2 and await engine.handle("i").update("inc", 5) == 7
            cart_run = await engine.start(cart, "c")
            await asyncio.gather(*[cart_run.update(ADD, item) for item in "abc"])
            await cart_run.update(CLOSE)
            await cart_run.result()

    run(main())
    assert kept.dir is not None
    journals = {journal.workflow_id: journal for journal in export(kept.dir)}
    for journal in journals.values():
        replay = Replayer(workflows=ALL).replay(journal)
        assert replay.ok, replay.error
    assert isinstance(Replayer(workflows=[_changed(_deaf_cart)]).replay(journals["c"]).error, NonDeterminismError)
