"""Resets: a new run of the ID goes on before a step, with everything before it from the journal."""
from __future__ import annotations

import asyncio
from typing import Any

import pytest
from behaviour_homes import until
from behaviour_life import ADD, BROKEN, CALLS, GO, LIFE, STOP, TOKENS, called

from fusee_mp import NotFound, Rejected, WorkflowFailed

W = LIFE


@pytest.fixture(autouse=True)
def nothing_called() -> None:
    CALLS.clear()
    BROKEN.clear()
    TOKENS.clear()


async def statuses(home: Any, id: str) -> list[str]:
    """Of the runs of an ID, oldest first."""
    return [run.status for run in reversed(await home.engine.list({"id": id}))]


async def was_called(text: str, times: int = 1) -> None:
    await until(lambda: len(called(text)) >= times, f'step "{text}" is called')


def test_a_finished_run_reuses_what_came_before_the_step_and_runs_it_with_another_key(scene: Any) -> None:
    """D1"""
    async def scenario(home: Any) -> None:
        run = await home.engine.start(W["three_steps"], "r")
        await run.signal(GO, 7)
        assert await run.result() == [1, 1, 7, 1]
        for _ in range(2):
            await run.reset("two", request_id="once")
        assert await run.result() == [1, 2, 7, 2], "the signal that came later is fed again"
        assert len(called("one")) == 1 and len(set(called("two"))) == 2
        detail = await run.describe()
        assert await statuses(home, "r") == ["ok", "ok"] and detail.status == "ok"
        assert detail.journal[0].fields["origin"] == detail.number - 1

    scene(scenario)


def test_a_running_run_hands_over(scene: Any) -> None:
    """D2"""
    async def scenario(home: Any) -> None:
        run = await home.engine.start(W["three_steps"], "r")
        waiting = asyncio.create_task(run.result())
        await was_called("two")
        await run.reset("two")
        await was_called("two", 2)
        assert (await run.status()).status != "reset"
        await run.signal(GO, 13)
        assert await waiting == await run.result() == [1, 2, 13, 1], "who waits for the ID gets the new run's result"
        assert await statuses(home, "r") == ["reset", "ok"]

    scene(scenario)


def test_an_unknown_step_is_refused_with_the_names_there_are(scene: Any) -> None:
    async def scenario(home: Any) -> None:
        run = await home.engine.start(W["three_steps"], "r")
        await was_called("two")
        with pytest.raises(Rejected, match=r'no step "four".* Its steps are "one", "two"$'):
            await run.reset("four")
        with pytest.raises(Rejected, match='came to step "two" 1 time, not 2'):
            await run.reset("two", occurrence=2)
        with pytest.raises(Rejected, match="counts from 1"):
            await run.reset("two", occurrence=0)
        await run.signal(GO, 1)
        assert await run.result() == [1, 1, 1, 1], "the run was not disturbed"
        with pytest.raises(NotFound):
            await home.engine.handle("nobody").reset("one")

    scene(scenario)


def test_a_step_of_a_repeated_name_is_meant_by_its_occurrence(near: Any) -> None:
    async def scenario(home: Any) -> None:
        run = await home.engine.start(W["same_step_thrice"], "r")
        assert await run.result() == [1, 1, 1]
        await run.reset("same", occurrence=2)
        assert await run.result() == [1, 2, 2]
        await run.reset("same")
        assert await run.result() == [2, 3, 3]

    near(scenario)


def test_a_failed_run_goes_on_once_the_cause_is_mended(scene: Any) -> None:
    async def scenario(home: Any) -> None:
        BROKEN.append("two")
        run = await home.engine.start(W["three_steps"], "r")
        with pytest.raises(WorkflowFailed):
            await run.result()
        BROKEN.clear()
        await run.reset("two")
        await run.signal(GO, 1)
        assert await run.result() == [1, 2, 1, 1]
        assert await statuses(home, "r") == ["failed", "ok"]

    scene(scenario)


def test_a_step_between_attempts_begins_at_once_with_all_of_them(near: Any) -> None:
    async def scenario(home: Any) -> None:
        BROKEN.append("one")
        run = await home.engine.start(W["retries"], "r")
        await until(lambda: _is_pending(run), "a failed attempt")
        BROKEN.clear()
        await run.reset("one")
        assert await run.result(timeout=20) == 2
        assert len(called("zero")) == 1

    near(scenario)


async def _is_pending(run: Any) -> bool:
    detail = await run.describe()
    return bool(detail and detail.pending)


def test_a_parked_run_is_reset_across_a_restart(scene: Any) -> None:
    async def scenario(home: Any) -> None:
        run = await home.engine.start(W["three_steps"], "r")
        await until(lambda: _is(run, "parked"), "it is parked")
        await home.restart()
        run = home.engine.handle("r", W["three_steps"])
        await run.reset("two")
        await was_called("two", 2)
        await home.restart()
        run = home.engine.handle("r", W["three_steps"])
        await run.signal(GO, 1)
        assert await run.result() == [1, 2, 1, 1]

    scene(scenario, restarts=True, park_after="50ms")


async def _is(run: Any, status: str) -> bool:
    found = await run.status()
    return found is not None and found.status == status


@pytest.mark.parametrize("is_finished", [False, True])
def test_what_the_kept_part_sent_and_started_is_not_sent_and_started_again(scene: Any, is_finished: bool) -> None:
    async def scenario(home: Any) -> None:
        await home.engine.start(W["counts_in_a_chain"], "r/sent", 0)
        run = await home.engine.start(W["has_a_child"], "r")
        await home.engine.handle("r/later").started()
        if is_finished:
            await run.signal(GO, 5)
            await home.engine.handle("r/child").signal(GO, 6)
            assert await run.result() == [1, 5, 6]
        await run.reset("one")
        await until(lambda: _has_runs(home, "r/later", 2), "what came after the step is started again")
        if not is_finished:
            await run.signal(GO, 5)
            await home.engine.handle("r/child").signal(GO, 6)
        assert await run.result(timeout=20) == [2, 5, 6]
        assert len(await statuses(home, "r/child")) == 1
        await home.engine.handle("r/sent").signal(GO, -1)
        assert await home.engine.handle("r/sent").result() == 1

    scene(scenario)


async def _has_runs(home: Any, id: str, count: int) -> bool:
    return int(await home.engine.count({"id": id})) == count


def test_a_child_that_was_closed_with_its_parent_runs_anew(near: Any) -> None:
    async def scenario(home: Any) -> None:
        BROKEN.append("one")
        run = await home.engine.start(W["parent_that_fails"], "r", "terminate")
        child = home.engine.handle("r/child")
        await until(lambda: _is(child, "terminated"), "it is closed")
        BROKEN.clear()
        await run.reset("one")
        await until(lambda: _has_runs(home, "r/child", 2), "it runs anew")
        await child.signal(GO, 3)
        assert await run.result(timeout=20) == 3

    near(scenario)


@pytest.mark.parametrize("is_over", [True, False])
def test_a_child_that_went_on_without_its_parent_gives_its_result(scene: Any, is_over: bool) -> None:
    async def scenario(home: Any) -> None:
        BROKEN.append("one")
        run = await home.engine.start(W["parent_that_fails"], "r", "abandon")
        with pytest.raises(WorkflowFailed):
            await run.result()
        BROKEN.clear()
        child = home.engine.handle("r/child")
        await child.started()
        if is_over:
            await child.signal(GO, 3)
            await child.result()
        await run.reset("one")
        if not is_over:
            await was_called("one", 2)
            await child.signal(GO, 3)
        assert await run.result(timeout=20) == 3
        assert len(await statuses(home, "r/child")) == 1

    scene(scenario)


def test_a_child_that_is_reset_answers_its_parent(near: Any) -> None:
    async def scenario(home: Any) -> None:
        run = await home.engine.start(W["parent_of_steps"], "p")
        await was_called("two")
        child = home.engine.handle("p/child")
        await child.reset("one")
        await was_called("two", 2)
        await child.signal(GO, 4)
        assert await run.result() == [2, 2, 4, 1]

    near(scenario)


def test_a_token_of_the_kept_part_is_replaced(scene: Any) -> None:
    async def scenario(home: Any) -> None:
        run = await home.engine.start(W["completes"], "r")
        await until(lambda: TOKENS and called("one"), "a token")
        await run.reset("one")
        await until(lambda: len(TOKENS) == 2, "another token")
        with pytest.raises(Rejected):
            await home.engine.complete(TOKENS[0], 1)
        await home.engine.complete(TOKENS[1], 2)
        assert await run.result() == [2, 2]
        await run.reset("one")
        assert await run.result() == [3, 2], "what was completed later is fed again"

    scene(scenario)


def test_an_update_that_waits_for_its_handler_is_answered_by_the_new_run(scene: Any) -> None:
    async def scenario(home: Any) -> None:
        run = await home.engine.start(W["updated"], "r")
        answer = asyncio.create_task(run.update(ADD, 5))
        await was_called("two")
        await run.reset("two")
        await was_called("two", 2)
        await run.signal(STOP)
        assert await answer == 5 and await run.result() == [5]
        assert len(called("one")) == 1

    scene(scenario)


def test_no_signal_is_lost_to_a_reset_of_a_busy_run(scene: Any) -> None:
    async def scenario(home: Any) -> None:
        run = await home.engine.start(W["busy"], "r")
        await was_called("first")

        async def resets() -> None:
            for _ in range(3):
                await run.reset("first")

        async def signals(count: int) -> None:
            for n in range(count):
                await run.signal(GO, n)

        await asyncio.gather(resets(), signals(33), signals(33), signals(34))
        assert await run.result(timeout=30) == 100
        assert len(await statuses(home, "r")) == 4

    scene(scenario)


def test_a_deadline_begins_anew(near: Any) -> None:
    async def scenario(home: Any) -> None:
        run = await home.engine.start(W["three_steps"], "r", deadline="400ms")
        await until(lambda: _is(run, "timed_out"), "its deadline passes")
        await run.reset("two")
        await run.signal(GO, 1)
        assert await run.result(timeout=20) == [1, 2, 1, 1]

    near(scenario)


def test_a_paused_run_goes_on(near: Any) -> None:
    async def scenario(home: Any) -> None:
        run = await home.engine.start(W["three_steps"], "r")
        await was_called("two")
        await run.pause()
        await run.reset("one")
        await run.signal(GO, 1)
        assert await run.result(timeout=20) == [2, 2, 1, 1]

    near(scenario)


def test_the_old_run_is_there_until_it_is_deleted(scene: Any) -> None:
    async def scenario(home: Any) -> None:
        run = await home.engine.start(W["three_steps"], "r")
        await was_called("two")
        with pytest.raises(Rejected, match="has not ended"):
            await run.delete()
        await run.reset("two")
        await run.signal(GO, 1)
        await run.result()
        for _ in range(2):
            await run.delete(request_id="delete-once")
        assert await run.status() is None and await home.engine.count({"id": "r"}) == 0
        with pytest.raises(NotFound):
            await run.delete()
        assert await (await home.engine.start(W["countdown"], "r", [])).result() == 15

    scene(scenario)


