"""Debounced and batched starts: D36 to D44; over an engine in memory, one on a directory that is closed and opened again, and a server."""
from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from behaviour_places import Place, run, until
from behaviour_timed import ALL, collected, tenfold

from fusee_mp import Batch, Client, Debounce, PayloadError, Rejected, UnknownWorkflow, Worker
from tests.server.tree import serving

SOON = Debounce("60ms")


@pytest.fixture(params=["memory", "embedded"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    yield Place(None if request.param == "memory" else tmp_path / "data")


def hidden(kind: Any, *arguments: Any) -> Any:
    """A rule that no type checker sees."""
    return kind(*arguments)


def test_debounced_starts_of_a_key_are_one_run_with_the_last_input(anywhere: Place) -> None:
    """D36, D37, D38"""
    async def main() -> None:
        async with anywhere.engine(ALL) as engine:
            runs = [await engine.debounce(tenfold, "a", n, Debounce("300ms")) for n in range(5)]
            other = await engine.debounce(tenfold, "b", 9, Debounce("300ms"))
            assert len({each.id for each in runs}) == 1 and runs[0].id.startswith("a@") and other.id.startswith("b@")
            assert await runs[0].status() is None and await engine.count() == 0
            await runs[0].started(20)
            assert [await each.result(20) for each in (runs[0], runs[4], other)] == [40, 40, 90]
            assert await engine.count({"type": "tenfold"}) == 2
            again = await engine.debounce(tenfold, "a", 6, SOON)
            assert again.id.startswith("a@") and again.id != runs[0].id
            assert await again.result(20) == 60

    run(main())


def test_a_window_that_is_extended_for_ever_closes_at_its_cap(anywhere: Place) -> None:
    """D39"""
    async def main() -> None:
        async with anywhere.engine(ALL) as engine:
            rule, ids = Debounce("80ms", max_wait="200ms"), set()
            for n in range(35):
                ids.add((await engine.debounce(tenfold, "k", n, rule)).id)
                await asyncio.sleep(0.02)
            assert len(ids) >= 3
            await asyncio.gather(*(engine.handle(id).started(20) for id in ids))
            assert await engine.count({"type": "tenfold"}) == len(ids)

    run(main())


def test_a_batch_closes_when_it_is_full_or_its_time_has_come(anywhere: Place) -> None:
    """D40, D41"""
    async def main() -> None:
        async with anywhere.engine(ALL) as engine:
            rule = Batch(3, "200ms")
            runs = [await engine.batch(collected, "k", n, rule, event_id=f"event-{n}") for n in range(7)]
            again = await engine.batch(collected, "k", 6, rule, event_id="event-6")
            last = await engine.batch(collected, "k", 7, rule)
            assert len({each.id for each in runs}) == 3 and again.id == last.id == runs[6].id
            found = {each.id: await each.result(20) for each in runs}
            assert list(found.values()) == [[0, 1, 2], [3, 4, 5], [6, 7]]

    run(main())


@pytest.mark.parametrize("make", [
    lambda: Batch(0, "1s"), lambda: Batch(3, 0), lambda: Batch(-1, "1s"), lambda: Batch(10_001, "1s"), lambda: hidden(Batch, "3", "1s"),
    lambda: hidden(Batch, True, "1s"), lambda: Debounce(0), lambda: Debounce("1s", 0), lambda: Debounce("-1s"),
    lambda: hidden(Debounce, None),
    lambda: hidden(Debounce, "soon"),
])
def test_a_rule_that_cannot_be_is_refused_when_it_is_made(make: Any) -> None:
    """D42"""
    with pytest.raises(Rejected):
        make()


def test_an_acknowledged_event_survives_a_restart_and_its_id_joins_once(lasting: Place) -> None:
    """D43, D44"""
    async def main() -> None:
        rule = Debounce("1s")
        async with lasting.engine(ALL, shards=3, checkpoint_on_shutdown=False) as engine:
            await engine.debounce(tenfold, "a", 1, rule, event_id="one")
            first = await engine.debounce(tenfold, "a", 2, rule, event_id="two")
            batched = await engine.batch(collected, "b", 5, Batch(9, "1s"), event_id="one")
        async with lasting.engine(ALL) as engine:
            again = await engine.debounce(tenfold, "a", 1, rule, event_id="one")
            assert again.id == first.id and await again.result(20) == 20
            assert (await engine.batch(collected, "b", 5, Batch(9, "1s"), event_id="one")).id == batched.id
            assert await engine.handle(batched.id).started(20) is None
            assert await engine.handle(batched.id, collected).result(20) == [5]
        async with lasting.engine(ALL) as engine:
            assert (await engine.debounce(tenfold, "a", 7, rule, event_id="two")).id == first.id
            assert [status.id for status in await engine.list({"type": "tenfold"})] == [first.id]

    run(main())


def test_a_window_that_should_have_closed_while_nobody_was_there_closes_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        place = Place(tmp_path / "data")
        async with place.engine(ALL) as engine:
            waiting = await engine.debounce(tenfold, "a", 3, Debounce("50ms"))
        await asyncio.sleep(0.06)
        async with place.engine(ALL) as engine:
            await engine.handle(waiting.id).started(20)
            assert await engine.handle(waiting.id).result(20) == 30

    run(main())


def test_a_thousand_keys_at_once_lose_no_event(place: Place) -> None:
    async def main() -> None:
        async with place.engine(ALL) as engine:
            rule = Batch(4, "100ms")
            runs = await asyncio.gather(*(engine.batch(collected, f"key-{n % 1000}", n, rule) for n in range(5000)))
            found = {each.id: each for each in runs}
            results = await asyncio.gather(*(each.result(40) for each in found.values()))
            assert sorted(event for result in results for event in result) == list(range(5000))
            assert all(1 <= len(result) <= 4 for result in results)

    run(main())


def test_what_cannot_be_gathered_is_refused_at_the_call(place: Place) -> None:
    async def main() -> None:
        async with place.engine(ALL) as engine:
            any: Any = engine
            for call, error, words in (
                (any.debounce("nobody", "k", 1, SOON), UnknownWorkflow, "nobody"),
                (any.debounce(tenfold, "k", "text", SOON), PayloadError, "input"),
                (any.batch(collected, "k", "text", Batch(2, "1s")), PayloadError, "events"),
                (any.batch(tenfold, "k", 1, Batch(2, "1s")), PayloadError, "events"),
                (any.debounce(tenfold, 5, 1, SOON), Rejected, "text"), (any.debounce(tenfold, "", 1, SOON), Rejected, "1 to 1024"),
                (any.debounce(tenfold, "k", 1, Batch(2, "1s")), Rejected, "Debounce"),
                (any.batch(collected, "k", 1, SOON), Rejected, "Batch"),
                (any.debounce(tenfold, "k", 1, SOON, event_id=""), Rejected, "event ID"),
            ):
                with pytest.raises(error, match=words):
                    await call
            assert await engine.count() == 0

    run(main())


def test_windows_work_over_a_server_and_close_under_another_holder(tmp_path: Path) -> None:
    async def main() -> None:
        with serving(tmp_path / "data", shards=2) as tree:
            async with Client.connect(tree.address) as client:
                async with Worker.connect(tree.address, workflows=ALL) as worker:
                    full = [await client.batch(collected, "b", n, Batch(3, "1m")) for n in range(3)]
                    assert await full[0].result(20) == [0, 1, 2]
                    first = await worker.engine.debounce(tenfold, "a", 1, Debounce("1s"), event_id="one")
                    await client.debounce("tenfold", "a", 4, Debounce("1s"))
                async with Worker.connect(tree.address, workflows=ALL):
                    assert (await client.debounce(tenfold, "a", 1, Debounce("1s"), event_id="one")).id == first.id
                    await until(lambda: client.status(first.id))
                    assert await client.handle(first.id, tenfold).result(20) == 40

    run(main())
