"""Retention, deletion, histories that are not kept, the archive, and the memory that loaded runs take."""
from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from behaviour_places import Place, has_status, run, until

from fusee_mp import AlreadyExists, Client, Ctx, NotFound, Rejected, Worker, Workflow, export, query, signal, workflow
from fusee_mp.runtime import weight
from fusee_mp.sdk.config import Config
from fusee_mp.store.archive import read_archive
from tests.server.tree import Tree

STOP = signal("stop")
LOOK = query("look", returns=int)


@workflow
async def quick(ctx: Ctx, n: int) -> int:
    ctx.on_query(LOOK, lambda: n)
    return 2 * n


@workflow("lasting", retention="1h")
async def lasting(ctx: Ctx, n: int) -> int:
    return n


@workflow("fleeting", retention="50ms")
async def fleeting(ctx: Ctx, n: int) -> int:
    return n


@workflow
async def holds_much(ctx: Ctx, size: int) -> int:
    held = [bytes(1024) for _ in range(size // 1024)]
    await ctx.wait_for(STOP)
    return sum(map(len, held))


ALL: list[Workflow[Any, Any]] = [quick, lasting, fleeting, holds_much]


async def gone(engine: Any, type: str) -> None:
    async def look() -> bool:
        return bool(await engine.count({"type": type}) == 0)

    await until(look)


@pytest.mark.parametrize("workflow_says", [True, False])
def test_ended_runs_disappear_after_their_retention(tmp_path: Path, workflow_says: bool) -> None:
    async def main() -> None:
        place = Place(tmp_path / "data")
        config: dict[str, Any] = {} if workflow_says else {"retention": "100ms"}
        short = fleeting if workflow_says else quick
        async with place.engine(ALL, shards=2, **config) as engine:
            for n in range(20):
                await engine.execute(short, f"q{n}", n, request_id=f"request {n}")
            await engine.execute(lasting, "l", 1)
            waiting = await engine.start(holds_much, "w", 1)
            await gone(engine, short.name)
            assert await engine.status("q0") is None and not await engine.list({"type": short.name})
            with pytest.raises(NotFound):
                await engine.handle("q0").result()
            assert await engine.handle("l").result() == 1 and (await waiting.status()).is_open  # type: ignore[union-attr]
            await engine.start(short, "q0", 1, request_id="request 0")
            assert await engine.status("q0") is None, "a repeat of its start, still known, starts nothing"
            assert await engine.execute(quick, "q0", 4) == 8, "the ID is free"

    run(main())


def test_runs_that_ended_before_a_restart_are_looked_at_too(tmp_path: Path) -> None:
    async def main() -> None:
        place = Place(tmp_path / "data")
        async with place.engine(ALL) as engine:
            for n in range(600):
                await engine.start(quick, f"q{n}", n)
            await engine.handle("q599").result()
        async with place.engine(ALL, retention="1ms") as engine:
            await gone(engine, "quick")

    run(main())


def test_archived_journals_are_exported_whole_and_once(tmp_path: Path) -> None:
    """B27, B28"""
    async def main() -> None:
        async with Place(tmp_path / "data").engine(ALL, shards=2, retention="100ms", archive_history=True) as engine:
            for n in range(12):
                await engine.execute(quick, f"q{n}", n)
            await engine.execute(lasting, "l", 1)
            await gone(engine, "quick")
            await engine.handle("l").delete()
        data = tmp_path / "data"
        assert [journal.workflow_id for journal in export(data, "q3", 1)] == ["q3"]
        journals = export(data)
        assert sorted(journal.workflow_id for journal in journals) == sorted([*(f"q{n}" for n in range(12)), "l"])
        assert all(journal.done is not None for journal in journals)
        assert [path.suffix for path in data.glob("shard-*/archive/*")] == [".arc"] * 2
        assert sum(len(list(read_archive(path))) for path in data.glob("shard-*/archive")) == 13

    run(main())


def test_without_history_only_status_and_result_are_kept(tmp_path: Path) -> None:
    async def main() -> None:
        async with Place(tmp_path / "data").engine(ALL, keep_history=False) as engine:
            handle = await engine.start(quick, "q", 3)
            assert await handle.result() == 6
            detail = await handle.describe()
            assert detail is not None and (detail.status, list(detail.journal)) == ("ok", [])
            for refused in (handle.query(LOOK), handle.reset("a")):
                with pytest.raises(Rejected, match="keep_history"):
                    await refused
            with pytest.raises(AlreadyExists):
                await engine.start(quick, "q", 3, on_finished="refuse")
            assert await handle.result() == 6

    run(main())


def test_deleting_takes_every_run_of_an_id(tmp_path: Path) -> None:
    async def main() -> None:
        async with Place(tmp_path / "data").engine(ALL) as engine:
            for n in range(3):
                await engine.execute(quick, "q", n)
            await engine.handle("q").delete()
            assert await engine.status("q") is None and await engine.count() == 0

    run(main())


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(Rejected, match="keep_history"):
        Config(dir="d", keep_history=False, archive_history=True)


def test_what_parked_runs_took_is_given_back_to_the_system_once_it_is_much(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(weight, "give_back", lambda: calls.append(0))
    budget = weight.Budget(1_000)
    budget.freed(weight.GIVE_BACK_BYTES - 1)
    budget.enforce()
    assert calls == []
    budget.freed(1)
    budget.enforce()
    budget.enforce()
    assert calls == [0], "once, until there is as much again"


def test_loaded_runs_stay_within_their_budget(tmp_path: Path) -> None:
    """G06: whatever code holds in its locals counts; the longest quiet leave first, and all of them answer."""
    async def main() -> None:
        size, count, budget = 100_000, 150, 3_000_000
        async with Place(tmp_path / "data").engine(ALL, shards=2, memory_budget=budget, park_after=None) as engine:
            for n in range(count):
                await engine.start(holds_much, f"w{n}", size)
            loaded = [runtime.residence for runtime in engine.runtimes]
            await until(lambda: sum(residence.loaded_bytes for residence in loaded) <= budget)
            await until(lambda: sum(len(runtime.by_number) for runtime in engine.runtimes) * size <= 1.2 * budget)
            await has_status(engine, "w0", "parked")
            weights = [run.weight for runtime in engine.runtimes for run in runtime.by_number.values() if run.weight]
            assert all(size <= each <= 1.2 * size for each in weights) and sum(weights) >= 0.7 * budget, "no more leave than must"
            last = [await engine.status(f"w{n}") for n in range(count - 20, count)]  # each became quiet when its shard's store had it
            assert any(status is not None and status.status != "parked" for status in last)
            for n in range(500):
                await engine.start(quick, f"q{n}", n)
            await until(lambda: sum(len(runtime.by_number) for runtime in engine.runtimes) <= count)
            await asyncio.gather(*(engine.handle(f"w{n}").signal(STOP) for n in range(count)))
            results = await asyncio.gather(*(engine.handle(f"w{n}").result() for n in range(count)))
            assert results == [size // 1024 * 1024] * count

    run(main())



def test_a_server_tells_its_workers_what_to_keep(tmp_path: Path) -> None:
    async def main() -> None:
        tree = Tree(tmp_path / "served", retention_ms=100, archive_history=True)
        await asyncio.to_thread(tree.start)
        try:
            async with Worker.connect(tree.address, workflows=ALL, memory_budget=1_000_000), Client.connect(tree.address) as client:
                for n in range(5):
                    assert await client.execute(quick, f"q{n}", n) == 2 * n
                assert await client.execute(lasting, "l", 1) == 1
                await gone(client, "quick")
                assert (await client.status("l")).status == "ok"  # type: ignore[union-attr]
                await client.handle("l").delete()
                assert await client.count() == 0
        finally:
            await asyncio.to_thread(tree.close)
        assert len(export(tmp_path / "served")) == 6

    run(main())
