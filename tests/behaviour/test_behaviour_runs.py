"""Starting, IDs, results, ends."""
from __future__ import annotations

import asyncio
import traceback
from typing import Any

import pytest
from behaviour_homes import until
from behaviour_workflows import GO, STOP, WORKFLOWS, notes

from fusee_mp import (
    AlreadyExists,
    NotFound,
    PayloadError,
    Rejected,
    StepFailed,
    Terminated,
    TimedOut,
    UnknownWorkflow,
    WorkflowFailed,
    shard_of,
)

W = WORKFLOWS


def test_a_workflow_returns_its_result_and_its_step_ran_once(scene: Any) -> None:
    async def scenario(home: Any) -> None:
        assert await home.engine.execute(W["quick"], "q", 21) == 42
        assert await home.engine.handle("q", W["quick"]).result() == 42
        assert [text for _, text in notes()] == ["double 21"]

    scene(scenario)


def test_a_failed_workflow_has_the_status_failed(scene: Any) -> None:
    """D25"""
    async def scenario(home: Any) -> None:
        for name in ("fails", "fails_first"):
            run = await home.engine.start(name, name, "no")
            with pytest.raises(WorkflowFailed) as caught:
                await run.result()
            assert isinstance(caught.value.__cause__, ValueError) and str(caught.value.__cause__) == "no"
            status = await run.status()
            assert (status.status, status.is_open, status.workflow) == ("failed", False, name)
        detail = await home.engine.describe("fails")
        assert detail.failure["type"] == "builtins:ValueError" and [record.kind for record in detail.journal] == ["start", "step", "done"]

    scene(scenario)


def test_starting_a_running_id_fails_by_default_and_may_use_the_run_that_is_there(scene: Any) -> None:
    """D31"""
    async def scenario(home: Any) -> None:
        engine = home.engine
        first = await engine.start(W["waits"], "w")
        while (status := await first.status()).status != "suspended":
            await asyncio.sleep(0.01)
        with pytest.raises(AlreadyExists, match="suspended") as caught:  # the word that its status has
            await engine.start(W["waits"], "w")
        assert caught.value.fields["run"] == status.number
        again = await engine.start(W["waits"], "w", on_running="use_existing")
        await first.signal(GO, 5)
        assert await again.result() == 5 == await first.result()

    scene(scenario)


def test_starting_a_finished_id_makes_a_new_run_by_default(scene: Any) -> None:
    """D32"""
    async def scenario(home: Any) -> None:
        numbers = []
        for n in (1, 2, 3):
            assert await home.engine.execute(W["quick"], "q", n) == 2 * n
            numbers.append((await home.engine.status("q")).number)
        assert numbers == sorted(set(numbers))

    scene(scenario)


def test_finished_ids_may_be_started_again_as_the_policy_says(scene: Any) -> None:
    """D33"""
    async def scenario(home: Any) -> None:
        engine = home.engine
        with pytest.raises(WorkflowFailed):
            await engine.execute(W["fails"], "f", "no")
        with pytest.raises(AlreadyExists):
            await engine.start(W["quick"], "f", 1, on_finished="refuse")
        assert await engine.execute(W["quick"], "f", 1, on_finished="allow_if_failed") == 2
        for policy in ("allow_if_failed", "refuse"):
            with pytest.raises(AlreadyExists, match="ok"):
                await engine.start(W["quick"], "f", 2, on_finished=policy)
        used = await engine.start(W["quick"], "f", 3, on_finished="use_existing")
        assert await used.result() == 2
        with pytest.raises(Rejected, match="on_finished"):
            await engine.start(W["quick"], "f", 3, on_finished="maybe")

    scene(scenario)


def test_a_running_id_may_be_terminated_by_its_next_start(scene: Any) -> None:
    """D34"""
    async def scenario(home: Any) -> None:
        engine = home.engine
        await engine.start(W["waits"], "w")
        waiting = asyncio.create_task(engine.handle("w").result())
        await asyncio.sleep(0.05)
        new = await engine.start(W["waits"], "w", on_running="terminate")
        with pytest.raises(Terminated):
            await waiting
        await new.signal(GO, 9)
        assert await new.result() == 9 == await engine.handle("w").result()
        assert sorted(run.status for run in await engine.list({"id": "w"})) == ["ok", "terminated"]

    scene(scenario)


def test_started_waits_until_the_run_exists(scene: Any) -> None:
    """D37"""
    async def scenario(home: Any) -> None:
        run = home.engine.handle("later")
        with pytest.raises(TimeoutError):
            await run.started(timeout=0.05)
        waiting = asyncio.create_task(run.started())
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await home.engine.start(W["waits"], "later")
        await waiting
        await run.started()

    scene(scenario)


def test_a_deadline_ends_a_run_that_takes_longer(scene: Any) -> None:
    async def scenario(home: Any) -> None:
        run = await home.engine.start(W["waits"], "w", deadline="200ms")
        with pytest.raises(TimedOut, match="deadline"):
            await run.result()
        assert (await run.status()).status == "timed_out"

    scene(scenario)


def test_a_deadline_holds_for_a_parked_run_and_over_a_restart(scene: Any) -> None:
    async def scenario(home: Any) -> None:
        run = await home.engine.start(W["waits"], "w", deadline="2s")
        await until(lambda: is_status(run, "parked"))
        await home.restart()
        with pytest.raises(TimedOut):
            await home.engine.handle("w").result(timeout=20)

    scene(scenario, restarts=True, park_after="100ms")


async def is_status(run: Any, *words: str) -> bool:
    found = await run.status()
    return found is not None and found.status in words


def test_termination_asks_nobody_and_is_final(scene: Any) -> None:
    """D16"""
    async def scenario(home: Any) -> None:
        run = await home.engine.start(W["waits"], "w")
        await run.terminate("enough")
        with pytest.raises(Terminated, match="enough"):
            await run.result()
        for call in (run.terminate(), run.cancel(), run.signal(GO, 1)):
            with pytest.raises(Rejected, match="ended as terminated"):
                await call
        assert (await run.describe()).reason == "enough"

    scene(scenario)


def test_what_is_asked_of_an_id_that_nobody_started_is_not_found(scene: Any) -> None:
    async def scenario(home: Any) -> None:
        run = home.engine.handle("nobody")
        for call in (run.result(), run.cancel(), run.terminate(), run.signal(GO, 1)):
            with pytest.raises(NotFound, match="nobody"):
                await call
        assert await run.status() is None and await run.describe() is None

    scene(scenario)


@pytest.mark.parametrize(("call", "error"), [
    (lambda engine: engine.start("unheard", "u"), UnknownWorkflow), (lambda engine: engine.start(W["quick"], "", 1), Rejected),
    (lambda engine: engine.start(W["quick"], "q", "text"), PayloadError), (lambda engine: engine.start(7, "q"), Rejected),
    (lambda engine: engine.handle("x\0"), Rejected), (lambda engine: engine.start(W["quick"], "q", 1, request_id=""), Rejected),
    (lambda engine: engine.handle("w").cancel("\ud800"), Rejected), (lambda engine: engine.handle("w").signal("", 1), Rejected),
    (lambda engine: engine.handle("w").signal(GO, "text"), PayloadError), (lambda engine: engine.list(limit=0), Rejected),
    (lambda engine: engine.list({"status": {"like": 1}}), Rejected), (lambda engine: engine.list(shards=[9]), Rejected),
    (lambda engine: engine.list(after="x"), Rejected), (lambda engine: engine.handle("w").terminate(7), Rejected),
])
def test_wrong_arguments_are_refused_and_leave_nothing(scene: Any, call: Any, error: type[Exception]) -> None:
    async def scenario(home: Any) -> None:
        await home.engine.start(W["waits"], "w")
        with pytest.raises(error):
            await call(home.engine)
        assert await home.engine.count() == 1

    scene(scenario)


def test_runs_are_listed_counted_and_found_by_attributes(scene: Any) -> None:
    async def scenario(home: Any) -> None:
        engine = home.engine
        for i in range(12):
            await engine.start(W["tags_itself"], f"t{i}", "blue" if i % 3 else "red", attributes={"first": i})
        await until(lambda: is_count(engine, {"stage": "waiting"}, 12))
        assert await engine.count({"team": "red"}) == 4
        assert await engine.count({"first": {"gte": 3, "lt": 6}, "team": "blue"}) == 2
        runs = await engine.list()
        assert [run.shard for run in runs] == sorted(run.shard for run in runs) and len(runs) == 12
        assert {run.id: run.shard for run in runs} == {f"t{i}": shard_of(f"t{i}", engine.shards) for i in range(12)}
        pages: list[Any] = []
        while page := await engine.list(limit=5, after=pages[-1].cursor if pages else None):
            pages += page
        assert [run.id for run in pages] == [run.id for run in runs]
        await engine.handle("t0").signal(STOP)
        await engine.handle("t0").result()
        assert await engine.count({"status": "ok"}) == 1 and await engine.count({"status": "open", "type": "tags_itself"}) == 11
        assert dict(runs[0].attributes)["stage"] == "waiting"

    scene(scenario)


async def is_count(engine: Any, where: Any, count: int) -> bool:
    return bool(await engine.count(where) == count)


# G03

def test_an_exception_group_ends_the_run_and_its_whole_tree_is_told(scene: Any) -> None:
    """G03"""
    async def scenario(home: Any) -> None:
        for nested in (False, True):
            with pytest.raises(WorkflowFailed) as caught:
                await home.engine.execute(W["grouped_failure"], f"g{nested}", nested)
            group = caught.value.__cause__
            assert isinstance(group, ExceptionGroup)
            first = group.exceptions[0]
            assert isinstance(first, ValueError) and str(first) == "one" and isinstance(first.__cause__, StepFailed)
            assert "ValueError: one" in "".join(traceback.format_exception(caught.value))
            failure = (await home.engine.describe(f"g{nested}")).failure
            assert failure["type"] == "builtins:ExceptionGroup" and failure["members"][0]["message"] == "one"
        assert await home.engine.execute(W["grouped_handled"], "h", "why") == ["why 1"]

    scene(scenario)


# The journal.

def test_the_codes_own_values_are_the_same_after_a_restart(scene: Any) -> None:
    async def scenario(home: Any) -> None:
        await home.engine.start(W["own_values"], "o")
        await home.restart()
        await home.engine.handle("o").signal(STOP)
        found = await home.engine.handle("o").result()
        again = await home.engine.describe("o")
        assert found[3:5] == ["o", str(again.number)] and len(set(found)) == len(found)
        assert found[0].startswith(again.started.isoformat()[:19])

    scene(scenario, restarts=True)
