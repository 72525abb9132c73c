"""Step limits: never more than there are permits, in the order of priority and fairness, and none leaks, whatever dies."""
from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from behaviour_homes import until

from fusee_mp import Client, Ctx, Engine, Limit, LimitStatus, NotFound, Rejected, Retry, Worker, WorkflowFailed, step, workflow
from tests.server.tree import serving

running: list[int] = []
most: list[int] = []
served: list[str] = []
gate = asyncio.Event()


@step(limit="api")
async def limited(n: int) -> int:
    running.append(n)
    most.append(len(running))
    await asyncio.sleep(0.005)
    running.remove(n)
    return n


@workflow
async def one_call(ctx: Ctx, n: int) -> int:
    return await limited(n)


@workflow
async def named(ctx: Ctx, key: str) -> None:
    async def body() -> None:
        served.append(key)

    await ctx.step("named", body, limit="turns", priority=5 if key == "urgent" else 0, fairness=key)


@workflow
async def blocks(ctx: Ctx, limit: str) -> None:
    async def body() -> None:
        await gate.wait()

    await ctx.step("blocks", body, limit=limit)


@workflow
async def fails_twice(ctx: Ctx) -> int:
    tries: list[int] = []

    async def body() -> int:
        tries.append(1)
        if len(tries) < 3:
            raise ValueError("not yet")
        return len(tries)

    return await ctx.step("fails", body, limit="api", retry=Retry(attempts=3, initial="1ms"))


@workflow
async def impatient(ctx: Ctx) -> str:
    try:
        await ctx.step("impatient", gate.wait, limit="api", retry=Retry(), total_timeout="300ms")
    except TimeoutError as e:
        return str(e)
    return "it ran"


WORKFLOWS = [one_call, named, blocks, fails_twice, impatient]
Play = Callable[[Callable[[Any], Coroutine[Any, Any, None]]], None]


@asynccontextmanager
async def served_by_four(directory: Path) -> AsyncIterator[Any]:
    """Each with a shard of its own, three over TCP and one over rings."""
    unix = str(directory / "s")
    with serving(directory / "served", shards=4, unix=unix) as tree:
        async with AsyncExitStack() as stack:
            for name, address in zip("abcd", (*[tree.address] * 3, f"unix:{unix}"), strict=True):
                await stack.enter_async_context(Worker.connect(address, workflows=WORKFLOWS, max_shards=1, name=name))
            yield await stack.enter_async_context(Client.connect(tree.address))


@pytest.fixture(params=["memory", "embedded", "server"])
def play(request: pytest.FixtureRequest, tmp_path: Path) -> Play:
    return player(request.param, tmp_path)


def player(home: str, tmp_path: Path) -> Play:
    def run(scenario: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            global gate
            gate = asyncio.Event()
            for seen in (running, most, served):
                seen.clear()
            if home == "server":
                opening: Any = served_by_four(tmp_path)
            elif home == "embedded":
                opening = Engine.open(tmp_path / "data", workflows=WORKFLOWS, shards=3)
            else:
                opening = Engine.memory(workflows=WORKFLOWS, shards=3)
            async with opening as engine:
                await asyncio.wait_for(scenario(engine), 60)

        asyncio.run(main())

    return run


def test_a_limit_of_two_lets_two_run_at_once(play: Play) -> None:
    """D26"""
    async def scenario(engine: Any) -> None:
        await engine.limit("api", Limit(concurrent=2))
        assert await asyncio.gather(*(engine.execute(one_call, None, n) for n in range(10))) == list(range(10))
        assert max(most) == 2
        assert await engine.limit_in_use("api") == await engine.limit_waiting("api") == 0

    play(scenario)


def test_all_limits_are_listed_by_name_with_their_use(play: Play) -> None:
    async def scenario(engine: Any) -> None:
        assert await engine.list_limits() == []
        names = [f"limit-{number:04d}" for number in range(1_200)]  # over a page a shard
        for at in range(0, len(names), 100):
            await asyncio.gather(*(engine.limit(name, Limit(per_second=5)) for name in names[at:at + 100]))
        await engine.limit("turns", Limit(concurrent=1))
        blocker = await engine.start(blocks, "blocker", "turns")
        await until(lambda: in_use(engine, "turns", 1))
        await engine.start(named, None, "waits")
        await until(lambda: waits(engine, "turns", 1))
        listed = await engine.list_limits()
        assert [one.name for one in listed] == [*names, "turns"]
        assert listed[0] == LimitStatus("limit-0000", 0, 5.0, 0, 0, 0) and listed[-1] == LimitStatus("turns", 1, 0.0, 1, 1, 1)
        gate.set()
        await blocker.result()

    play(scenario)


def test_permits_go_by_priority_then_by_turns_of_the_fairness_keys(play: Play) -> None:
    """D27"""
    async def scenario(engine: Any) -> None:
        await engine.limit("turns", Limit(concurrent=1))
        blocker = await engine.start(blocks, "blocker", "turns")
        await until(lambda: in_use(engine, "turns", 1))
        runs = []
        for waiting, key in enumerate(["big"] * 6 + ["a", "b", "a", "b", "urgent"], 1):
            runs.append(await engine.start(named, None, key))
            await until(lambda waiting=waiting: waits(engine, "turns", waiting))  # type: ignore[misc]
        gate.set()
        await asyncio.gather(blocker.result(), *(run.result() for run in runs))
        assert served == ["urgent", "big", "a", "b", "big", "a", "b", "big", "big", "big", "big"]
        assert await engine.limit_in_use("turns") == await engine.limit_waiting("turns") == 0

    play(scenario)


def test_a_step_gives_its_permit_back_between_attempts_and_when_its_run_ends(play: Play) -> None:
    async def scenario(engine: Any) -> None:
        await engine.limit("api", Limit(concurrent=1))
        assert await engine.execute(fails_twice, None) == 3
        holder = await engine.start(blocks, "holder", "api")
        await until(lambda: in_use(engine, "api", 1))
        waiter = await engine.start(one_call, "waiter", 1)
        await until(lambda: waits(engine, "api", 1))
        await waiter.terminate()
        await until(lambda: waits(engine, "api", 0))
        await holder.cancel()
        await until(lambda: in_use(engine, "api", 0))
        assert await engine.execute(one_call, None, 5) == 5

    play(scenario)


def test_a_step_that_gets_no_permit_fails_when_the_time_for_all_its_attempts_is_over(play: Play) -> None:
    async def scenario(engine: Any) -> None:
        await engine.limit("api", Limit(concurrent=1))
        holder = await engine.start(blocks, "holder", "api")
        await until(lambda: in_use(engine, "api", 1))
        assert 'got no permit of the limit "api" within its total_timeout of 0.3 s' in await engine.execute(impatient, None)
        await until(lambda: waits(engine, "api", 0))
        paused = await engine.start(impatient, "paused")
        await until(lambda: waits(engine, "api", 1))
        await paused.pause()
        await until(lambda: waits(engine, "api", 0))  # its time is over: it waits for no permit, and is not failed
        gate.set()
        await holder.result()
        await paused.resume()
        assert "total_timeout of 0.3 s" in await paused.result()
        await until(lambda: in_use(engine, "api", 0))

    play(scenario)


def test_an_undefined_limit_is_refused_and_named(play: Play) -> None:
    async def scenario(engine: Any) -> None:
        with pytest.raises(WorkflowFailed) as failed:
            await engine.execute(one_call, None, 1)
        assert isinstance(failed.value.__cause__, Rejected)
        assert '"api"' in str(failed.value.__cause__)
        with pytest.raises(NotFound, match='"api"'):
            await engine.limit_in_use("api")

    play(scenario)


def test_a_wider_limit_lets_those_who_wait_begin_at_once(play: Play) -> None:
    async def scenario(engine: Any) -> None:
        await engine.limit("api", Limit(concurrent=1))
        runs = [await engine.start(blocks, None, "api") for _ in range(3)]
        await until(lambda: waits(engine, "api", 2))
        await engine.limit("api", Limit(concurrent=3))
        await until(lambda: in_use(engine, "api", 3))
        gate.set()
        await asyncio.gather(*(run.result() for run in runs))

    play(scenario)


def test_a_rate_holds_steps_back_and_lets_them_all_through(play: Play) -> None:
    async def scenario(engine: Any) -> None:
        await engine.limit("api", Limit(per_second=100))
        began = asyncio.get_running_loop().time()
        await asyncio.gather(*(engine.execute(one_call, None, n) for n in range(130)))
        # A second's worth begins at once, the other 30 as tokens come.
        assert asyncio.get_running_loop().time() - began > 0.25

    play(scenario)


@pytest.mark.parametrize("limit", [{"concurrent": -1}, {"concurrent": 1.5}, {"per_second": float("nan")}, {"per_second": -1.0}])
def test_a_limit_that_cannot_be_is_refused_when_it_is_made(limit: dict[str, Any]) -> None:
    with pytest.raises(Rejected):
        Limit(**limit)


def test_definitions_outlive_the_engine_and_damaged_ones_are_refused(tmp_path: Path) -> None:
    """E16, E25"""
    async def define() -> None:
        async with Engine.open(tmp_path, workflows=WORKFLOWS, shards=2) as engine:
            await engine.limit("api", Limit(concurrent=2, per_second=8.5))
            written = sorted(tmp_path.glob("shard-*/limits"))
            assert len(written) == 1
            before = written[0].stat().st_mtime_ns
            await engine.limit("api", Limit(concurrent=2, per_second=8.5))
            assert written[0].stat().st_mtime_ns == before

    async def look() -> None:
        async with Engine.open(tmp_path, workflows=WORKFLOWS) as engine:
            assert await engine.limit_in_use("api") == 0

    asyncio.run(define())
    asyncio.run(look())
    file = next(tmp_path.glob("shard-*/limits"))
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(Exception, match="damaged limit definitions"):
        asyncio.run(look())


HOLDER = """
    import asyncio, sys
    from fusee_mp import Ctx, Worker, workflow

    async def body() -> None:
        print("holding", flush=True)
        await asyncio.sleep(600)

    @workflow
    async def holds(ctx: Ctx) -> None:
        await ctx.step("hold", body, limit="api")

    async def main() -> None:
        async with Worker.connect(sys.argv[1], workflows=[holds], max_shards=1, name="holder") as worker:
            await worker.engine.start("holds", sys.argv[2])
            await worker.run()

    asyncio.run(main())
"""


def test_the_permit_of_a_killed_worker_comes_back_when_its_lease_ends(tmp_path: Path) -> None:
    """E11, E12"""
    async def scenario(address: str, killed: subprocess.Popen[str], held: int) -> None:
        async with Client.connect(address) as client:
            await client.limit("api", Limit(concurrent=1))
            await asyncio.to_thread(killed.stdout.readline)  # type: ignore[union-attr]
            async with Worker.connect(address, workflows=[one_call], max_shards=1, name="other"):
                waiting = asyncio.ensure_future(client.execute(one_call, id_off(held), 7))
                await until(lambda: waits(client, "api", 1))
                os.kill(killed.pid, signal.SIGKILL)
                assert await waiting == 7

    def id_off(shard: int) -> str:
        from fusee_mp import shard_of

        return next(id for id in map(str, range(100)) if shard_of(id, 2) != shard)

    with serving(tmp_path / "data", shards=2) as tree:
        async def define() -> None:
            async with Client.connect(tree.address) as client:
                await client.limit("api", Limit(concurrent=1))

        asyncio.run(define())
        # The first worker to come is given shard 0.
        start_id = next(id for id in map(str, range(100)) if __import__("fusee_mp").shard_of(id, 2) == 0)
        killed = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(HOLDER), tree.address, start_id], stdout=subprocess.PIPE, text=True, cwd=Path.cwd(),
        )
        try:
            asyncio.run(asyncio.wait_for(scenario(tree.address, killed, 0), 60))
        finally:
            killed.kill()
            killed.communicate()


async def in_use(engine: Any, name: str, n: int) -> bool:
    return bool(await engine.limit_in_use(name) == n)


async def waits(engine: Any, name: str, n: int) -> bool:
    return bool(await engine.limit_waiting(name) == n)
