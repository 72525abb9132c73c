"""Continuing as new: one chain of runs under one ID, between which nothing is lost."""
from __future__ import annotations

import asyncio
from typing import Any

import pytest
from behaviour_homes import until
from behaviour_life import ADD, CALLS, GO, LIFE, STOP

from fusee_mp import Cancelled, FuseeError, Rejected, Terminated, TimedOut, WorkflowFailed
from fusee_mp.runtime import continuing

W = LIFE


async def runs_of(home: Any, id: str) -> list[tuple[int, str]]:
    """Number and status of the runs of an ID, oldest first."""
    return [(run.number, run.status) for run in reversed(await home.engine.list({"id": id}))]


def test_the_handle_gives_the_result_of_the_last_run_of_the_chain(scene: Any) -> None:
    """D14"""
    async def scenario(home: Any) -> None:
        run = await home.engine.start(W["countdown"], "c", [])
        assert await run.result() == 15
        detail = await run.describe()
        runs = await runs_of(home, "c")
        assert detail.status == "ok" and [status for _, status in runs] == ["continued_as_new"] * 5 + ["ok"]
        assert (detail.journal[0].fields["origin"], detail.number) == (runs[-2][0], runs[-1][0])
        assert await home.engine.execute(W["parent_of_a_chain"], "p") == 15, "a parent gets it too"

    scene(scenario)


@pytest.mark.parametrize("restarts", [False, True])
def test_every_signal_that_was_taken_is_counted_once_over_the_whole_chain(scene: Any, restarts: bool) -> None:
    """G04: each run ends with its first signal, and others arrive while it does."""
    async def scenario(home: Any) -> None:
        run = await home.engine.start(W["counts_in_a_chain"], "c", 0)
        async with asyncio.TaskGroup() as group:
            for n in range(60):
                group.create_task(run.signal(GO, n))
        if restarts:
            await home.restart()
            run = home.engine.handle("c", W["counts_in_a_chain"])
        await run.signal(GO, -1)
        assert await run.result() == 60

    scene(scenario, restarts=restarts)


def test_a_signal_is_counted_or_its_sender_hears_that_it_is_too_late(scene: Any) -> None:
    """G04: signals go on while the chain ends."""
    async def scenario(home: Any) -> None:
        run = await home.engine.start(W["counts_in_a_chain"], "c", 0)
        accepted = 0

        async def sender() -> None:
            nonlocal accepted
            for n in range(20):
                try:
                    await run.signal(GO, n)
                except Rejected as e:
                    assert "has ended" in e.message
                    return
                accepted += 1

        async with asyncio.TaskGroup() as group:
            for _ in range(4):
                group.create_task(sender())
            await asyncio.sleep(0)
            group.create_task(run.signal(GO, -1))
        assert await run.result() == accepted

    scene(scenario)


def test_updates_that_a_run_did_not_accept_go_to_the_next(scene: Any) -> None:
    """G04"""
    async def scenario(home: Any) -> None:
        run = await home.engine.start(W["adds_in_a_chain"], "c", 0)
        sums = await asyncio.gather(*(run.update(ADD, 1) for _ in range(10)))
        assert sorted(sums) == list(range(1, 11)) and await run.result() == 10

    scene(scenario)


@pytest.mark.parametrize("restarts", [False, True])
def test_an_update_sent_again_after_the_run_continued_as_new_is_not_carried_out_twice(scene: Any, restarts: bool) -> None:
    """D3, D7, G04: its ID counts over the whole chain, also after its end, and not in a later chain of the same ID."""
    async def scenario(home: Any) -> None:
        run = await home.engine.start(W["adds_in_a_chain"], "c", 0)
        assert [await run.update(ADD, 2, update_id=f"u-{n}") for n in range(3)] == [2, 4, 6]
        if restarts:
            await home.restart()
            run = home.engine.handle("c", W["adds_in_a_chain"])
        assert [await run.update(ADD, 2, update_id=f"u-{n}") for n in (2, 0, 1)] == [6, 2, 4]
        assert await asyncio.gather(*(run.update(ADD, 4, update_id=id) for id in ("u-1", "u-9", "u-0", "u-9"))) == [4, 10, 2, 10]
        assert await run.result() == 10 and len(await runs_of(home, "c")) == 4
        assert [await run.update(ADD, 2, update_id=f"u-{n}") for n in (0, 9)] == [2, 10]
        with pytest.raises(Rejected, match="has ended"):
            await run.update(ADD, 2, update_id="u-10")
        again = await home.engine.start(W["adds_in_a_chain"], "c", 0)
        assert await again.update(ADD, 3, update_id="u-0") == 3

    scene(scenario, restarts=restarts)


def test_an_update_of_an_earlier_run_whose_journal_is_not_kept_is_refused_when_it_is_repeated(scene: Any) -> None:
    async def scenario(home: Any) -> None:
        run = await home.engine.start(W["adds_in_a_chain"], "c", 0)
        assert await run.update(ADD, 2, update_id="u-0") == 2
        with pytest.raises(Rejected, match="what it came to is not known any more"):
            await run.update(ADD, 2, update_id="u-0")
        assert await run.update(ADD, 2, update_id="u-1") == 4

    scene(scenario, keep_history=False)


def test_a_chain_hands_on_the_newest_ids_of_updates_and_no_more_than_are_to_be_remembered(
    near: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(continuing, "UPDATE_IDS_HANDED_ON_MAX", 3)
    monkeypatch.setattr(continuing, "UPDATE_IDS_HANDED_ON_BYTES", 100)

    async def scenario(home: Any) -> None:
        run = await home.engine.start(W["adds_in_a_chain"], "c", 0)
        for n in range(5):
            await run.update(ADD, 1, update_id=f"u-{n}")
        assert await handed_on(run) == ["u-2", "u-3", "u-4"]
        await run.update(ADD, 1)  # an ID that the client made is not repeated by another call
        assert await handed_on(run) == ["u-2", "u-3", "u-4"]
        await run.update(ADD, 1, update_id="v" * 97)
        assert await handed_on(run) == ["u-4", "v" * 97]
        await run.update(ADD, 1, update_id="w")
        assert await handed_on(run) == ["v" * 97, "w"]

    near(scenario)


async def handed_on(run: Any) -> list[str]:
    async def started() -> Any:
        journal = (await run.describe()).journal
        return journal if all(record.kind != "update" for record in journal) else None

    return [id for id, _ in (await until(started))[0].fields["answered"]]


@pytest.mark.parametrize(("end", "restarts"), [("ok", False), ("ok", True), ("terminate", False), ("cancel", False)])
def test_children_belong_to_the_chain_and_feel_its_end(scene: Any, end: str, restarts: bool) -> None:
    async def scenario(home: Any) -> None:
        run = await home.engine.start(W["hands_on_children"], "p", 0)
        for name in ("terminate", "cancel", "abandon", "asked", "early"):
            await home.engine.handle(f"p/{name}").started()
        await run.signal(STOP)
        await home.engine.handle("p/early").signal(GO, 1)  # its result comes before the chain asks for it
        await home.engine.handle("p/early").result()
        if restarts:
            await home.restart()
            run = home.engine.handle("p", W["hands_on_children"])
        for name in ("terminate", "cancel", "abandon"):
            assert (await home.engine.status(f"p/{name}")).is_open, "the end of a run within the chain is none"
        await run.signal(STOP)
        await home.engine.handle("p/asked").signal(GO, 2)
        if end == "ok":
            await run.signal(STOP)
            assert await run.result() == [1, 2]
            found = await home.engine.status("p")
            assert found.attributes == {"team": "blue", "stage": 2}
            assert [record.kind for record in (await run.describe()).journal].count("child") == 2
        else:
            await (run.terminate() if end == "terminate" else run.cancel())
        with pytest.raises(Terminated):
            await home.engine.handle("p/terminate").result(timeout=20)
        with pytest.raises(Cancelled):
            await home.engine.handle("p/cancel").result(timeout=20)
        assert (await home.engine.status("p/abandon")).is_open
        assert await home.engine.count({"id": "p/asked"}) == await home.engine.count({"id": "p/early"}) == 1

    scene(scenario, restarts=restarts)


def test_code_may_give_up_a_child_that_was_handed_on(near: Any) -> None:
    async def scenario(home: Any) -> None:
        run = await home.engine.start(W["cancels_what_was_handed_on"], "p", False)
        with pytest.raises(Cancelled):
            await home.engine.handle("p/child").result(timeout=20)
        await run.signal(STOP)
        assert await run.result() == "went on"

    near(scenario)


def test_a_chain_that_never_pauses_can_be_cancelled_and_terminated(scene: Any) -> None:
    """A request that comes while a run ends is for the next one."""
    async def scenario(home: Any) -> None:
        for n in range(3):
            run = await home.engine.start(W["rolls_on"], f"c{n}", 0)
            await until(lambda id=f"c{n}": _is_long(home, id), "a chain")
            await run.cancel("enough")
            with pytest.raises(Cancelled, match="enough"):
                await run.result(timeout=20)
        run = await home.engine.start(W["rolls_on"], "t", 0)
        await run.terminate("enough")
        with pytest.raises(Terminated, match="enough"):
            await run.result(timeout=20)

    scene(scenario)


async def _is_long(home: Any, id: str) -> bool:
    return len(await runs_of(home, id)) > 3


def test_the_deadline_is_that_of_the_chain(near: Any) -> None:
    async def scenario(home: Any) -> None:
        run = await home.engine.start(W["rolls_on"], "c", 0, deadline="300ms")
        with pytest.raises(TimedOut):
            await run.result(timeout=20)
        assert len(await runs_of(home, "c")) > 1

    near(scenario)


def test_the_wish_to_continue_comes_out_of_a_task_group(near: Any) -> None:
    async def scenario(home: Any) -> None:
        CALLS.clear()
        assert await home.engine.execute(W["continues_from_a_group"], "c", False) == "continued"
        assert CALLS == [], "`except Exception` does not meet it"

    near(scenario)


def test_a_handler_that_would_continue_is_told_how(near: Any) -> None:
    async def scenario(home: Any) -> None:
        run = await home.engine.start(W["continues_in_a_handler"], "c")
        with pytest.raises(WorkflowFailed) as failed:
            await run.update(ADD, 1)
        assert isinstance(failed.value.__cause__, FuseeError) and "wait_until" in str(failed.value.__cause__)
        await run.signal(STOP)
        assert await run.result() == "ended"

    near(scenario)
