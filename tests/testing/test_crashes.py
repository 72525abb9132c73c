"""A crash after every record shows code that is no function of its journal."""
from __future__ import annotations

import asyncio
import itertools
from typing import Any

from fusee_mp import Ctx, Replayer, Workflow, WorkflowFailed, signal, testing, update, workflow
from fusee_mp.testing import crashes
from fusee_mp.testing.crashes import crash_everywhere, watching

GO = signal("go", int)
ADD = update("add", int, returns=int)
TOKENS: list[str] = []
COUNTER = itertools.count()


async def double(n: int) -> int:
    return 2 * n


async def refuse(n: int) -> int:
    raise LookupError(f"no {n}")


@workflow
async def small(ctx: Ctx, n: int) -> int:
    return await ctx.step("double", double, n)


@workflow
async def rich(ctx: Ctx, n: int) -> list[Any]:
    found: list[Any] = await asyncio.gather(*(ctx.step(f"double {i}", double, i) for i in range(n)))
    try:
        async with asyncio.timeout(60):
            await ctx.sleep("1d", "too long")
    except TimeoutError:
        found.append("timeout")
    found.append(await ctx.wait_for(GO))
    found.append(await ctx.child(small, f"{ctx.workflow_id}/child", n))
    try:
        await ctx.step("refuse", refuse, n)
    except LookupError as e:
        found.append(str(e))
    ctx.set_attributes(seen=n)
    found += [ctx.now().isoformat(), ctx.random().random(), str(ctx.uuid4())]
    return found


@workflow
async def forgetful(ctx: Ctx) -> int:
    """It counts where no journal sees it."""
    await ctx.step("double", double, 1)
    return next(COUNTER)


@workflow
async def moody(ctx: Ctx) -> int:
    """What it does after a replay is not what it does without one."""
    replayed = ctx.is_replaying
    await ctx.step("double", double, 1)
    await ctx.step("other", double, 3 if replayed else 2)
    return 1 if replayed else 0


@workflow
async def failing(ctx: Ctx) -> None:
    await ctx.step("refuse", refuse, 1)


def after_running(definition: Workflow[Any, Any], *more: Workflow[Any, Any], value: Any = None) -> list[str]:
    async def body() -> list[str]:
        async with testing.engine(workflows=[definition, *more]) as engine:
            run = await engine.start(definition, "run", value)
            if definition is rich:
                await run.signal(GO, 7)
            try:
                await run.result()
            except WorkflowFailed:
                pass
            return crash_everywhere([definition, *more], await engine.journals())

    return asyncio.run(body())


def test_code_that_is_a_function_of_its_journal_comes_to_the_same_end_after_any_crash() -> None:
    assert after_running(rich, small, value=4) == []


@workflow
async def asked(ctx: Ctx) -> list[Any]:
    """What others change, complete and pause."""
    total: list[int] = []

    async def add(n: int) -> int:
        total.append(await ctx.step("double", double, n))
        return sum(total)

    ctx.on_update(ADD, add)
    changed = ctx.patched("a change")
    await ctx.sleep("1h")
    answer = await ctx.completion("answer", TOKENS.append, returns=int)
    await ctx.wait_for(GO)
    return [total, answer, changed]


@workflow
async def counting(ctx: Ctx, n: int) -> int:
    await ctx.step("double", double, n)
    return n if n == 3 else await ctx.continue_as_new(counting, n + 1)


def test_updates_completions_pauses_and_runs_that_continue_survive_any_crash() -> None:
    async def body() -> list[str]:
        async with testing.engine(workflows=[asked, counting]) as engine:
            run = await engine.start(asked, "run")
            assert await run.update(ADD, 4) == 8
            await engine.skip("2h")
            assert await run.update(ADD, 5) == 18
            await engine.complete(TOKENS.pop(), 9)
            await run.pause()
            await engine.skip("1h")
            await run.resume()
            await run.signal(GO, 1)
            assert await run.result() == [[8, 10], 9, True]
            assert await engine.execute(counting, "counting", 1) == 3
            journals = await engine.journals()
            replayer = Replayer(workflows=[asked, counting])
            assert [replayer.replay(journal).error for journal in journals] == [None] * 4
            return crash_everywhere([asked, counting], journals)

    assert asyncio.run(body()) == []


def test_a_run_that_fails_comes_to_the_same_failure() -> None:
    assert after_running(failing) == []


def test_state_outside_of_the_journal_is_found_with_run_record_and_both_results() -> None:
    first, *_ = after_running(forgetful)
    assert 'run 1 of workflow ID "run" (forgetful), crashed after record 0 of 3 (start forgetful)' in first
    assert "it is ok with 1; without the crash it is ok with 0" in first


def test_code_that_asks_whether_it_replays_is_found() -> None:
    found = after_running(moody)
    assert found and all("ok with 1; without the crash it is ok with 0" in said for said in found)


def test_a_long_journal_is_crashed_at_evenly_chosen_records() -> None:
    cuts = crashes._evenly(25_000)
    assert len(set(cuts)) == crashes.CRASHES_MAX and cuts[0] == 1 and cuts[-1] == 25_000
    assert list(crashes._evenly(3)) == [1, 2, 3]


def test_runs_that_others_ended_or_that_go_on_are_no_difference() -> None:
    @workflow
    async def waiting(ctx: Ctx) -> int:
        await ctx.step("double", double, 1)
        return await ctx.wait_for(GO)

    async def body() -> list[str]:
        async with testing.engine(workflows=[waiting]) as engine:
            for id in ("open", "ended"):
                await engine.start(waiting, id)
            await engine.skip("1s")
            await engine.handle("ended").terminate()
            return crash_everywhere([waiting], await engine.journals())

    assert asyncio.run(body()) == []


def test_a_watch_sees_the_journals_of_engines_that_close_meanwhile() -> None:
    async def body() -> None:
        async with testing.engine(workflows=[small]) as engine:
            await engine.execute(small, "a", 1)

    with watching() as seen:
        asyncio.run(body())
    asyncio.run(body())
    (workflows, journals), = seen
    assert [journal.workflow_id for journal in journals] == ["a"] and list(workflows) == [small]
