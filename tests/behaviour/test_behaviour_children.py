"""Children and messages between workflows, on the same shard and on others."""
from __future__ import annotations

import asyncio
from typing import Any

import pytest
from behaviour_homes import until
from behaviour_workflows import GO, STOP, WORKFLOWS, notes

from fusee_mp import Cancelled, Terminated, shard_of

W = WORKFLOWS


def id_on(shard: int, home: Any, prefix: str) -> str:
    """An ID with this beginning that lives on the shard (A2); shard 2 is shard 0 of a home with two."""
    return next(id for n in range(10_000) if shard_of(id := f"{prefix}{n}", home.shards) == shard % home.shards)


@pytest.mark.parametrize("way", [(0, 1), (1, 0), (2, 2), (0, 2)])
def test_a_child_on_another_shard_gives_its_parent_its_result_and_runs_once(scene: Any, way: tuple[int, int]) -> None:
    """A3, A4"""
    async def scenario(home: Any) -> None:
        parent, child = id_on(way[0], home, "parent"), id_on(way[1], home, "child")
        assert await home.engine.execute(W["parent_of_one"], parent, child) == 15
        assert [text for _, text in notes()] == ["double 7"]
        assert (await home.engine.status(child)).shard == way[1] % home.shards

    scene(scenario)


def test_a_signal_to_another_workflow_is_sent_and_not_awaited(scene: Any) -> None:
    """A5"""
    async def scenario(home: Any) -> None:
        target = id_on(1, home, "target")
        await home.engine.start(W["waits"], target)
        assert await home.engine.execute(W["sends"], id_on(0, home, "sender"), target) == "sent"
        assert await home.engine.handle(target).result() == 42
        assert await home.engine.execute(W["sends"], id_on(2, home, "sender"), "nobody") == "sent", "a missing target stops nobody"

    scene(scenario)


def test_a_workflow_may_cancel_another(scene: Any) -> None:
    """A6"""
    async def scenario(home: Any) -> None:
        target = id_on(1, home, "target")
        await home.engine.start(W["waits"], target)
        assert await home.engine.execute(W["cancels"], id_on(0, home, "canceller"), target) == "asked"
        with pytest.raises(Cancelled, match="not needed"):
            await home.engine.handle(target).result()

    scene(scenario)


@pytest.mark.parametrize("end", ["ok", "terminate", "cancel"])
def test_open_children_feel_their_parents_end_as_their_policy_says(scene: Any, end: str) -> None:
    """D16, D17, D18"""
    async def scenario(home: Any) -> None:
        run = await home.engine.start(W["has_children"], "p")
        for close in ("terminate", "cancel", "abandon"):
            await home.engine.handle(f"p/{close}").started()
        await (run.signal(STOP) if end == "ok" else run.terminate() if end == "terminate" else run.cancel())
        with pytest.raises(Terminated):
            await home.engine.handle("p/terminate").result(timeout=20)
        with pytest.raises(Cancelled):
            await home.engine.handle("p/cancel").result(timeout=20)
        assert (await home.engine.status("p/abandon")).is_open

    scene(scenario)


@pytest.mark.parametrize(("what", "names"), [
    ("failed", ["ChildFailed", "WorkflowFailed", "ValueError"]), ("timed_out", ["ChildFailed", "TimedOut", "NoneType"]),
    ("refused", ["ChildFailed", "UnknownWorkflow", "NoneType"]), ("taken", ["ChildFailed", "AlreadyExists", "NoneType"]),
    ("cancelled", ["ChildFailed", "Cancelled", "NoneType"]), ("terminated", ["ChildFailed", "Terminated", "NoneType"]),
])
def test_a_child_without_a_result_says_why_in_its_cause(scene: Any, what: str, names: list[str]) -> None:
    """D18"""
    async def scenario(home: Any) -> None:
        child = home.engine.handle("p/child")
        if what == "taken":
            await home.engine.start(W["waits"], "p/child")
        run = await home.engine.start(W["child_errors"], "p", what)
        if what in ("cancelled", "terminated"):
            await child.started()
            await (child.cancel() if what == "cancelled" else child.terminate())
        assert await run.result(timeout=20) == names

    scene(scenario)


@pytest.mark.parametrize(("close", "status"), [("terminate", "terminated"), ("cancel", "cancelled"), ("abandon", "open")])
def test_cancelling_the_wait_for_a_child_acts_as_its_close_policy(scene: Any, close: str, status: str) -> None:
    """D18"""
    async def scenario(home: Any) -> None:
        run = await home.engine.start(W["cancels_its_child"], "p", close)

        async def ended() -> bool:
            found = await home.engine.status("p/child")
            return found is not None and found.status == status

        if status == "open":
            await asyncio.sleep(0.5)
            assert (await home.engine.status("p/child")).is_open
        else:
            await until(ended)
        await run.signal(STOP)
        assert await run.result() == "went on"

    scene(scenario)


def test_a_child_handle_gives_the_result_as_often_as_it_is_asked(scene: Any) -> None:
    async def scenario(home: Any) -> None:
        assert await home.engine.execute(W["keeps_a_handle"], "p") == [8, 8]

    scene(scenario)


@pytest.mark.parametrize("limit", [1, 3, 20])
def test_all_runs_at_most_its_limit_at_once_and_keeps_the_order(scene: Any, limit: int) -> None:
    async def scenario(home: Any) -> None:
        *found, most = await home.engine.execute(W["limited"], "l", limit)
        assert found == list(range(10)) and most == min(limit, 10)

    scene(scenario)


def test_wait_until_sees_what_handlers_changed(scene: Any) -> None:
    async def scenario(home: Any) -> None:
        run = await home.engine.start(W["waits_until"], "u")
        for n in (1, 2, 3):
            await run.signal(GO, n)
        assert await run.result() == [True, False, [1, 2, 3]]

    scene(scenario)


def test_messages_between_shards_arrive_once_over_restarts(scene: Any) -> None:
    async def scenario(home: Any) -> None:
        parents = [await home.engine.start(W["has_children"], f"p{i}") for i in range(20)]
        await home.engine.start(W["sums"], "sink", 20)
        senders = [home.engine.start(W["sends"], f"s{i}", "sink") for i in range(20)]
        await asyncio.gather(*senders)
        await home.restart()
        assert await home.engine.handle("sink").result(timeout=30) == 20 * 42
        for run in parents:
            await home.engine.handle(run.id).signal(STOP)
        await home.restart()
        for run in parents:
            with pytest.raises(Terminated):
                await home.engine.handle(f"{run.id}/terminate").result(timeout=30)
        assert await home.engine.count({"type": "waits"}) == 60

    scene(scenario, restarts=True)
