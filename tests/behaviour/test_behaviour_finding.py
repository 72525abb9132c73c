"""Finding runs: attributes, the filter language, pages across shards; the same over every home."""
from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from behaviour_homes import until
from behaviour_workflows import WORKFLOWS

from fusee_mp import Rejected, WorkflowFailed, shard_of

RUNS = 12
quick, fails, waits, tags_itself = (WORKFLOWS[name] for name in ("quick", "fails", "waits", "tags_itself"))


async def populate(here: Any) -> None:
    """Paid orders that are done, one that failed, and some that wait."""
    engine = here.engine
    for n in range(RUNS):
        attributes = {"stage": "paid" if n % 2 else "new", "amount": 20 * n, "vip": n % 3 == 0, "note": None, "tags": [n]}
        await engine.execute(quick, f"order-{n}", n, attributes=attributes)
    with pytest.raises(WorkflowFailed):
        await engine.execute(fails, "bad", "no", attributes={"stage": "paid", "amount": 90})
    await engine.start(waits, "open", attributes={"stage": "new"})


async def ids(here: Any, where: Any, **options: Any) -> list[str]:
    found = await here.engine.list(where, **options)
    assert await here.engine.count(where) == len(found) or options
    return sorted(status.id for status in found)


def orders(*numbers: int) -> list[str]:
    return sorted(f"order-{n}" for n in numbers)


def test_terms_on_attributes_status_and_ranges_are_all_to_hold(scene: Any) -> None:
    """D24, D25"""
    async def play(here: Any) -> None:
        await populate(here)
        assert await ids(here, {"amount": {"gte": 60, "lt": 200}, "stage": "paid"}) == ["bad", *orders(3, 5, 7, 9)]
        assert await ids(here, {"amount": {"gte": 60, "lt": 200}, "stage": "paid", "status": "failed"}) == ["bad"]
        assert await ids(here, {"status": "failed"}) == ["bad"]
        assert await ids(here, {"status": "open"}) == ["open"]
        assert await ids(here, {"status": {"ne": "open"}, "type": fails.name}) == ["bad"]
        assert await ids(here, {"type": quick.name, "vip": True}) == orders(0, 3, 6, 9)
        assert await ids(here, {"type": {"in": [fails.name, waits.name]}}) == ["bad", "open"]

    scene(play)


def test_each_operator_finds_what_it_says(scene: Any) -> None:
    async def play(here: Any) -> None:
        await populate(here)
        assert await ids(here, {"amount": {"eq": 40}}) == orders(2)
        assert await ids(here, {"amount": {"in": [20, 40, 1]}}) == orders(1, 2)
        assert await ids(here, {"stage": {"ne": "paid"}}) == ["open", *orders(0, 2, 4, 6, 8, 10)]
        assert await ids(here, {"stage": {"prefix": "pa"}, "amount": {"gt": 180}}) == orders(11)
        assert await ids(here, {"amount": {"exists": False}}) == ["open"]
        assert await ids(here, {"note": None, "amount": {"lte": 20}}) == orders(0, 1)
        assert await ids(here, {"id": {"prefix": "order-1"}}) == orders(1, 10, 11)
        assert await ids(here, {"id": "order-3"}) == orders(3)
        hour = timedelta(hours=1)
        assert await ids(here, {"started": {"gt": datetime.now(UTC) - hour}, "finished": {"exists": False}}) == ["open"]
        assert await ids(here, {"finished": {"lt": (datetime.now(UTC) - hour).isoformat()}}) == []

    scene(play)


def test_attributes_merge_and_outlive_the_engine(scene: Any) -> None:
    """D24"""
    async def play(here: Any) -> None:
        await here.engine.start(tags_itself, "t", "blue", attributes={"team": "none", "from": "caller"})
        await until(lambda: here.engine.count({"team": "blue", "stage": "waiting"}), "the run has tagged itself")
        await here.restart()
        (found,) = await here.engine.list({"team": "blue", "amount": {"gte": 4}})
        assert found.attributes == {"team": "blue", "stage": "waiting", "amount": 4, "from": "caller"}

    scene(play, restarts=True)


def test_pages_go_through_all_shards_newest_first_and_miss_none(scene: Any) -> None:
    """G16"""
    async def play(here: Any) -> None:
        await populate(here)
        everything = await here.engine.list(limit=1_000)
        assert [status.shard for status in everything] == sorted(status.shard for status in everything)
        for shard in range(here.engine.shards):
            numbers = [status.number for status in everything if status.shard == shard]
            assert numbers == sorted(numbers, reverse=True)
        for size in (1, 3, 5):
            assert await _pages(here, size) == [status.id for status in everything]
        one = shard_of("open", here.engine.shards)
        assert {status.shard for status in await here.engine.list(shards=[one])} == {one}
        assert (await here.engine.status("open")).cursor == next(status.cursor for status in everything if status.id == "open")

    async def _pages(here: Any, size: int) -> list[str]:
        found: list[str] = []
        after = None
        while page := await here.engine.list(limit=size, after=after):
            found += [status.id for status in page]
            after = page[-1].cursor
        return found

    scene(play)


WRONG: list[tuple[Any, dict[str, Any]]] = [
    ({"status": "done"}, {}), ({"amount": {"around": 5}}, {}), ({"type": {"exists": True}}, {}), ("status=failed", {}),
    (None, {"after": "nonsense"}), (None, {"after": "0:x"}), (None, {"after": "²:r1"}), (None, {"after": "99:r1"}), (None, {"limit": 0}),
    (None, {"limit": "5"}), (None, {"shards": [7]}),
]


def test_what_cannot_be_asked_is_rejected(scene: Any) -> None:
    async def play(here: Any) -> None:
        for where, options in WRONG:
            with pytest.raises(Rejected):
                await here.engine.list(where, **options)

    scene(play)


def test_a_list_of_many_runs_moves_no_worker(scene: Any) -> None:
    """G16: nothing of a list or a count comes to the runtime that holds the shard."""
    async def play(here: Any) -> None:
        await populate(here)
        if not hasattr(here, "runtimes"):
            return
        before = [runtime.metrics.calls for runtime in here.runtimes]
        loads = [runtime.metrics.loads for runtime in here.runtimes]
        await here.engine.list(limit=1_000)
        await here.engine.count({"stage": "paid"})
        assert [runtime.metrics.calls for runtime in here.runtimes] == before
        assert [runtime.metrics.loads for runtime in here.runtimes] == loads

    scene(play)
