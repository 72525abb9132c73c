"""A run that leaves memory does nothing more: no effect, no record, no line in the log, whatever its clean-up code tries (G05)."""
from __future__ import annotations

import asyncio
import gc
import logging
import sys
import threading
import warnings
import weakref
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import pytest
from runtime_rig import Rig, turns
from runtime_warp import run

from fusee_mp.runtime.loop import Sealed
from fusee_mp.sdk.definitions import Step, Workflow

RAN: list[str] = []
TRIED: list[str] = []
VARIABLE: ContextVar[str] = ContextVar("tests_variable", default="outside")


@pytest.fixture(autouse=True)
def noise(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """What would be said of lost tasks and coroutines. There is nothing."""
    found: list[str] = []
    RAN.clear()
    TRIED.clear()
    monkeypatch.setattr(sys, "unraisablehook", lambda said: found.append(repr(said.exc_value)))
    caplog.set_level(logging.DEBUG, "fusee_mp.workflow")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        yield found
        gc.collect()
    assert found == [] and [str(warning.message) for warning in warned] == []
    assert [record.getMessage() for record in caplog.records if record.name.startswith(("asyncio", "fusee_mp"))] == []


async def forever() -> None:
    await asyncio.Event().wait()


async def refund() -> None:
    RAN.append("refund")


REFUND = Step(refund)


async def within(ctx: Any) -> None:
    async with asyncio.timeout(5):
        await ctx.step("refund", refund)


async def try_everything(ctx: Any) -> None:
    """What clean-up code may come to try. Each raises Sealed, also once Sealed was swallowed."""
    attempts = {
        "step": lambda: ctx.step("refund", refund), "called step": lambda: REFUND(), "sleep": lambda: ctx.sleep(1),
        "plain sleep": lambda: asyncio.sleep(1), "wait_for": lambda: ctx.wait_for("s"), "signal": lambda: ctx.signal("b", "s"),
        "cancel": lambda: ctx.cancel("b"), "child": lambda: ctx.child("w", "c"), "start_child": lambda: ctx.start_child("w", "c"),
        "wait_until": lambda: ctx.wait_until(lambda: False), "all": lambda: ctx.all([ctx.step("refund", refund)]),
        "gather": lambda: asyncio.gather(ctx.step("refund", refund)), "timeout": lambda: within(ctx),
    }
    for name, attempt in attempts.items():
        try:
            await attempt()
        except Sealed:
            TRIED.append(name)
    for name, call in {"attributes": lambda: ctx.set_attributes(a=1), "now": ctx.now, "random": ctx.random}.items():
        try:
            call()
        except Sealed:
            TRIED.append(name)
    ctx.log.info("released")


async def plain(ctx: Any) -> None:
    assert ctx.log.logger.name == "fusee_mp.workflow"
    try:
        await ctx.step("wait", forever)
    finally:
        VARIABLE.set("inside")
        await try_everything(ctx)


async def swallowing(ctx: Any) -> None:
    while len(TRIED) < 100:
        try:
            await ctx.step("wait", forever)
        except BaseException as e:
            TRIED.append(type(e).__name__)


async def grouped(ctx: Any) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(plain(ctx))
        group.create_task(ctx.step("other", forever))


async def timed(ctx: Any) -> None:
    async with asyncio.timeout(1000):
        await plain(ctx)


async def generating(ctx: Any) -> None:
    async def items() -> Any:
        try:
            yield await ctx.step("wait", forever)
        finally:
            await try_everything(ctx)

    async for _ in items():
        pass


async def gathering(ctx: Any) -> None:
    await asyncio.gather(plain(ctx), asyncio.shield(asyncio.ensure_future(plain(ctx))), asyncio.wait_for(plain(ctx), 1000))


async def idle(ctx: Any) -> None:
    await ctx.wait_for("never")


CASES = [plain, swallowing, grouped, timed, generating, gathering]


@pytest.mark.parametrize("main", CASES, ids=lambda main: main.__name__)
@pytest.mark.parametrize("how", ["close", "terminate"])
def test_dropped_code_has_no_effect_and_makes_no_noise(main: Any, how: str) -> None:
    """G05"""
    async def go() -> None:
        workflow, other = Workflow(main, main.__name__), Workflow(idle, "idle")
        async with Rig([workflow, other]) as rig:
            await rig.start(other, "b")
            await rig.start(workflow, "a")
            dropped = weakref.ref(rig.runtime.by_id["a"].loop)
            records = len(rig.log)
            if how == "terminate":
                await rig.terminate("a")
                await rig.until(lambda: "a" not in rig.runtime.by_id)
                assert rig.kinds()[records:] == ["done"]
            else:
                rig.runtime.close()
                assert len(rig.log) == records
            await asyncio.sleep(1)
            gc.collect()
            assert how == "close" or dropped() is None, "neither a cycle nor a timer keeps it"
        assert RAN == []
        assert VARIABLE.get() == "outside"
        assert len(TRIED) >= 16 or main is generating, "clean-up code had its say; that of a generator is left out"

    run(go())


def test_everything_that_clean_up_may_try_raises_sealed() -> None:
    """G05"""
    async def go() -> None:
        workflow = Workflow(plain, "plain")
        async with Rig([workflow]) as rig:
            await rig.start(workflow, "a")
            assert TRIED == []
        assert len(TRIED) == 16

    run(go())


def test_collections_on_other_threads_run_no_code_of_dropped_runs() -> None:
    """G05"""
    async def go() -> None:
        workflow = Workflow(plain, "plain")
        stop = threading.Event()
        collectors = [threading.Thread(target=lambda: [gc.collect() for _ in iter(stop.is_set, True)]) for _ in range(2)]
        gc.collect()
        gc.freeze()  # else each collection walks what all tests before this one left
        for thread in collectors:
            thread.start()
        try:
            async with Rig([workflow]) as rig:
                for i in range(100):
                    await rig.start(workflow, f"a{i}")
                for i in range(50):
                    await rig.terminate(f"a{i}")
                records = rig.kinds()
        finally:
            stop.set()
            for thread in collectors:
                thread.join()
            gc.unfreeze()
        assert rig.kinds() == records
        assert RAN == [] and records.count("done") == 50 and records.count("step") == 0

    run(go())


def test_a_parked_run_leaves_memory_whole_and_comes_back_for_a_signal() -> None:
    async def main(ctx: Any) -> Any:
        try:
            return await ctx.wait_for("s")
        finally:
            if not TRIED:
                await try_everything(ctx)

    async def go() -> None:
        workflow = Workflow(main, "main")
        async with Rig([workflow], park_after_ms=300) as rig:
            await rig.start(workflow, "a")
            await rig.until(lambda: rig.runtime.metrics.parked == 1)
            assert rig.runtime.by_id == {} and rig.status("a") == "parked"
            assert rig.kinds() == ["start", "quiet", "quiet"] and len(TRIED) == 16
            await rig.signal("a", "s", b"7")
            assert (await rig.outcome("a")).payload == b"7"
            assert rig.runtime.metrics.loads == 1

    run(go())


def test_a_generator_that_a_collection_closes_later_schedules_nothing() -> None:
    """Its run is between turns: what it scheduled would be run in the turn of another."""
    async def leaking(ctx: Any) -> None:
        async def items() -> Any:
            try:
                yield 1
            finally:
                await ctx.step("refund", refund)

        cycle: list[Any] = [items()]
        cycle.append(cycle)
        await cycle[0].__anext__()
        del cycle
        await ctx.wait_for("s")

    async def go() -> None:
        gc.disable()
        try:
            workflow = Workflow(leaking, "leaking")
            async with Rig([workflow]) as rig:
                await rig.start(workflow, "a")
                await turns()
                gc.collect()
                assert not rig.runtime.ready
                await rig.signal("a", "s")
                assert (await rig.outcome("a")).status == "ok"
                assert RAN == []
        finally:
            gc.enable()

    run(go())
