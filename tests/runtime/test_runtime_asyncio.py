"""What asyncio offers works in workflows, and is repeated exactly: each case is crashed after every record of its journal."""
from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from runtime_cases import BODIES, CASES, Trace
from runtime_rig import Rig, turns
from runtime_warp import run

from fusee_mp.core import records as r
from fusee_mp.sdk.definitions import Workflow

TRACE: dict[str, Trace] = {}


@pytest.fixture(autouse=True)
def bodies() -> Iterator[None]:
    yield
    BODIES.update({"seed": 0, "may go": None})


def workflow_of(case: Any) -> Workflow[Any, Any]:
    async def main(ctx: Any) -> list[str]:
        trace = TRACE[case.__name__] = []
        await case(ctx, trace)
        return trace

    return Workflow(main, case.__name__)


async def live(workflow: Workflow[Any, Any]) -> Rig:
    async with Rig([workflow]) as rig:
        await rig.start(workflow, "a")
        assert (await rig.outcome("a")).status == "ok"
        assert "quarantined" not in rig.kinds()
    return rig


async def replayed(rig: Rig, first: int, goes_on: bool) -> tuple[Trace, Rig]:
    """What the code has seen after a crash behind this many records; then, if it goes on, the rig of its new end."""
    BODIES["may go"] = asyncio.Event()
    async with rig.again(first) as again:
        await turns(20)
        seen = list(TRACE[rig.workflows[0].name])
        assert "quarantined" not in again.kinds(), again.records()[-1]
        BODIES["may go"].set()
        if goes_on:
            assert (await again.outcome("a")).status == "ok"
    BODIES["may go"] = None
    return seen, again


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_run_goes_on_after_a_crash_behind_any_record(case: Any, seed: int) -> None:
    """G01"""
    async def main() -> None:
        BODIES["seed"] = seed
        workflow = workflow_of(case)
        rig = await live(workflow)
        trace = list(TRACE[workflow.name])
        ends = rig.kinds().index("done")
        for first in range(1, ends + 1):
            seen, again = await replayed(rig, first, goes_on=True)
            assert seen == trace[: len(seen)], f"after {first} records of {rig.kinds()}"
            whole = list(TRACE[workflow.name])
            repeated, _ = await replayed(again, again.kinds().index("done"), goes_on=False)
            assert repeated == whole, f"after {first} records, then {again.kinds()}"
        assert seen == trace

    run(main())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_clean_up_and_refusals_say_nothing_to_the_log(case: Any, caplog: pytest.LogCaptureFixture) -> None:
    run(live(workflow_of(case)))
    assert [record.getMessage() for record in caplog.records] == []


def test_as_completed_of_coroutines_is_refused_by_name() -> None:
    """G01"""
    run(live(workflow_of(next(case for case in CASES if case.__name__ == "as_completed_of_coroutines"))))
    assert len(TRACE["as_completed_of_coroutines"]) == 1
    said = TRACE["as_completed_of_coroutines"][0]
    assert "asyncio.as_completed" in said and "asyncio.create_task" in said


@pytest.mark.parametrize(("name", "words"), [
    ("thread_refused", ["run_in_executor"]), ("network_refused", ["create_connection", "subprocess_exec", "create_server"]),
])
def test_what_cannot_be_repeated_is_refused_in_one_sentence(name: str, words: list[str]) -> None:
    run(live(workflow_of(next(case for case in CASES if case.__name__ == name))))
    assert len(TRACE[name]) == len(words)
    for word, said in zip(words, TRACE[name], strict=True):
        assert said.startswith(f"{word} does not work inside a workflow") and "step" in said and "\n" not in said


def test_every_kind_of_record_of_a_run_is_made_in_these_cases() -> None:
    async def main() -> set[str]:
        return {kind for case in CASES for kind in (await live(workflow_of(case))).kinds()}

    assert {"start", "step", "timer", "fired", "done"} <= run(main())
    assert r.KIND[r.Start] == "start"
