"""Runs that cannot go on are set aside with their reason and line; their shard goes on, what arrives for them is recorded."""
from __future__ import annotations

import asyncio
import inspect
import re
import time
from typing import Any

import msgspec
import pytest
from runtime_rig import Rig
from runtime_warp import run

from fusee_mp.core import records as r
from fusee_mp.sdk.definitions import Workflow


async def one() -> int:
    return 1


async def two(ctx: Any) -> int:
    return await ctx.step("charge", one) + await ctx.wait_for("s")


def named(main: Any, name: str = "main") -> Workflow[Any, Any]:
    return Workflow(main, name)


async def waiting_rig(workflow: Workflow[Any, Any]) -> Rig:
    """Its journal: a start, a step, and the run waits for a signal."""
    async with Rig([workflow]) as rig:
        await rig.start(workflow, "a")
        await rig.until(lambda: "step" in rig.kinds())
    return rig


def quarantined(rig: Rig) -> r.Quarantined:
    return next(record for record in reversed(rig.records()) if isinstance(record, r.Quarantined))


def test_without_its_code_a_run_is_set_aside_takes_signals_and_goes_on_when_the_code_is_back() -> None:
    async def main() -> None:
        rig = await waiting_rig(named(two))
        without = Rig([named(two, "other")], rig.log)
        async with without:
            await without.until(lambda: "quarantined" in without.kinds())
            found = quarantined(without)
            assert found.code == "unknown_workflow" and '"main"' in found.message and "other" in found.message
            await without.signal("a", "s", b"6")
            assert without.status("a") == "quarantined"
            await without.until(lambda: not without.runtime.by_number, "it leaves memory")
        async with Rig([named(two)], without.log) as again:
            assert (await again.outcome("a")).payload == b"7"
            assert again.kinds()[-2:] in (["unquarantined", "done"], ["signal", "done"])

    run(main())


def test_a_reason_is_recorded_once_however_often_the_run_is_tried() -> None:
    async def main() -> None:
        rig = await waiting_rig(named(two))
        log = rig.log
        for _ in range(3):
            async with Rig([], log) as without:
                await without.until(lambda: "quarantined" in without.kinds())
                await asyncio.sleep(1)
                log = without.log
        assert without.kinds().count("quarantined") == 1

    run(main())


async def other_step(ctx: Any) -> Any:
    return await ctx.step("refund", one)


async def no_step(ctx: Any) -> Any:
    return await ctx.wait_for("s")


async def ends_at_once(ctx: Any) -> None:
    pass


@pytest.mark.parametrize(("changed", "words", "line_of"), [
    (other_step, ['step "charge"', 'step "refund"'], 'ctx.step("refund", one)'),
    (no_step, ['step "charge"', "nothing of the kind"], 'ctx.wait_for("s")'),
    (ends_at_once, ['step "charge"', "nothing of the kind"], "async def ends_at_once"),
])
def test_changed_code_is_told_what_the_journal_holds_and_at_which_line(changed: Any, words: list[str], line_of: str) -> None:
    """G02"""
    async def main() -> str:
        rig = await waiting_rig(named(two))
        async with Rig([named(changed)], rig.log) as again:
            await again.until(lambda: "quarantined" in again.kinds())
            found = quarantined(again)
            assert found.code == "nondeterminism" and found.position == 1
            await again.terminate("a")
            assert (await again.outcome("a")).status == "terminated"
            return found.message

    message = run(main())
    for word in (*words, "ctx.patched", "reset"):
        assert word in message
    lines, first = inspect.getsourcelines(changed)
    line = first + next(n for n, text in enumerate(lines) if line_of in text)
    assert f"{inspect.getsourcefile(changed)}:{line}" in message


def test_code_that_swallows_everything_cannot_swallow_a_mismatch() -> None:
    async def stubborn(ctx: Any) -> Any:
        for _ in range(5):
            try:
                return await ctx.step("refund", one)
            except BaseException:
                pass

    async def main() -> None:
        rig = await waiting_rig(named(two))
        async with Rig([named(stubborn)], rig.log) as again:
            await again.until(lambda: "quarantined" in again.kinds())
            assert "step \"refund\"" in quarantined(again).message and "done" not in again.kinds()

    run(main())


def test_an_input_that_new_code_no_longer_accepts_sets_a_begun_run_aside() -> None:
    async def old(ctx: Any, n: int) -> Any:
        return await two(ctx)

    async def new(ctx: Any, n: list[int]) -> Any:
        return await two(ctx)

    async def main() -> None:
        async with Rig([named(old)]) as rig:
            await rig.start(named(old), "a", 7)
            await rig.until(lambda: "step" in rig.kinds())
        async with Rig([named(new)], rig.log) as again:
            await again.until(lambda: "quarantined" in again.kinds())
            assert "no longer accepts the input" in quarantined(again).message

    run(main())


def test_an_input_that_does_not_fit_fails_a_run_that_never_began() -> None:
    async def typed(ctx: Any, n: int) -> Any:
        return n

    async def main() -> None:
        async with Rig([named(typed)]) as rig:
            await rig.start(named(no_step), "a")  # by the same name, with None
            outcome = await rig.outcome("a")
            assert outcome.status == "failed" and b"PayloadError" in outcome.payload

    run(main())


# Code that does not yield.

async def spins(ctx: Any) -> None:
    while True:
        await asyncio.sleep(0)  # never waits


async def calls_back(ctx: Any) -> None:
    loop = asyncio.get_running_loop()

    def again() -> None:
        loop.call_soon(again)  # for ever

    again()
    await ctx.wait_for("s")


async def loops(ctx: Any) -> None:
    while True:
        pass  # busy


async def loops_in_a_task(ctx: Any) -> None:
    async def busy() -> None:
        n = 0
        while True:
            n += 1  # busy inside

    await asyncio.create_task(busy())


async def loops_in_a_condition(ctx: Any) -> None:
    def never() -> bool:
        while True:
            len("busy")  # condition

    await asyncio.sleep(0)
    await ctx.wait_until(never)


async def sleeps(ctx: Any) -> None:
    time.sleep(1.5)  # blocks
    time.sleep(0)


@pytest.mark.parametrize(("main", "words", "line_of"), [
    (spins, "100000 callbacks", "# never waits"), (calls_back, "100000 callbacks", "def again"), (loops, "0.5 s", "busy|while True"),
    (loops_in_a_task, "0.5 s", "busy inside|while True"), (loops_in_a_condition, "0.5 s", "# condition|while True"),
    (sleeps, "0.5 s", "# blocks"),
])
def test_a_run_that_never_yields_is_set_aside_with_its_line_and_the_shard_goes_on(main: Any, words: str, line_of: str) -> None:
    async def go() -> str:
        stuck, fine = named(main, "stuck"), named(two, "fine")
        async with Rig([stuck, fine], turn_s_max=0.5) as rig:
            await rig.start(fine, "b")
            await rig.start(stuck, "a")
            await rig.until(lambda: "quarantined" in rig.kinds())
            await rig.signal("b", "s", b"6")
            assert (await rig.outcome("b")).payload == b"7"
            await rig.cancel("a")
            await rig.terminate("a", "enough")
            assert (await rig.outcome("a")).reason == "enough"
            return quarantined(rig).message

    message = asyncio.run(go())
    assert '"stuck" does not yield' in message and words in message
    lines, first = inspect.getsourcelines(main)
    lines_meant = [first + n for n, text in enumerate(lines) if re.search(line_of, text)]
    assert any(f"{__file__}:{line}" in message for line in lines_meant), message


def test_the_watch_does_not_strike_code_that_waits_or_work_that_is_long() -> None:
    async def fine(ctx: Any) -> int:
        for _ in range(3):
            time.sleep(0.3)  # long, but each in a turn of its own
            await ctx.step("s", one)
        return 7

    async def go() -> None:
        async with Rig([named(fine)], turn_s_max=1.0) as rig:
            await rig.start(named(fine), "a")
            assert (await rig.outcome("a")).payload == b"7"

    asyncio.run(go())


def test_waking_workflow_code_from_a_step_body_is_refused_there_and_sets_the_run_aside() -> None:
    events: list[asyncio.Event] = []

    async def body() -> str:
        try:
            events[0].set()
        except RuntimeError as e:
            return str(e)
        return "no"

    async def main(ctx: Any) -> str:
        events[:] = [asyncio.Event()]
        asyncio.create_task(events[0].wait())
        return str(await ctx.step("b", body))

    async def go() -> None:
        async with Rig([named(main)]) as rig:
            await rig.start(named(main), "a")
            await rig.until(lambda: "quarantined" in rig.kinds())
            said = next(record for record in rig.records() if isinstance(record, r.StepDone)).payload.decode()
            assert "from outside" in said and "send a signal" in said
            assert "from outside" in quarantined(rig).message, "the code would have waited for ever"

    run(go())


def test_a_future_of_another_loop_is_refused_at_the_await() -> None:
    foreign: list[Any] = []

    async def main(ctx: Any) -> str:
        try:
            await foreign[0]
        except RuntimeError as e:
            return str(e)
        return "no"

    async def go() -> None:
        foreign[:] = [asyncio.get_running_loop().create_future()]
        async with Rig([named(main)]) as rig:
            await rig.start(named(main), "a")
            assert b"attached to a different loop" in (await rig.outcome("a")).payload

    run(go())


def test_a_lock_shared_between_runs_raises_and_sets_the_one_aside_that_it_would_have_woken() -> None:
    lock = asyncio.Lock()

    async def main(ctx: Any) -> str:
        try:
            async with lock:
                await ctx.wait_for("s")
        except RuntimeError as e:
            return str(e)
        return "held"

    async def go() -> None:
        async with Rig([named(main)]) as rig:
            await rig.start(named(main), "a")
            await rig.start(named(main), "b")
            await rig.signal("a", "s")
            assert b"from outside" in (await rig.outcome("a")).payload
            await rig.until(lambda: rig.status("b") == "quarantined")
            assert "from outside" in quarantined(rig).message

    run(go())


def test_the_complaints_of_callbacks_are_said_once_when_the_run_ends(caplog: pytest.LogCaptureFixture) -> None:
    async def main(ctx: Any) -> int:
        asyncio.get_running_loop().call_soon(lambda: 1 // 0)
        return await two(ctx)

    async def go() -> None:
        async with Rig([named(main)]) as rig:
            await rig.start(named(main), "a")
            await rig.signal("a", "s", b"6")
            assert (await rig.outcome("a")).payload == b"7"

    run(go())
    assert [record.getMessage().count("ZeroDivisionError") for record in caplog.records] == [1]


def test_a_journal_that_cannot_be_read_concerns_its_run_alone(caplog: pytest.LogCaptureFixture) -> None:
    async def go() -> None:
        workflow = named(two)
        async with Rig([workflow]) as rig:
            await rig.start(workflow, "a")
            await rig.start(workflow, "b")
            await rig.until(lambda: rig.kinds().count("step") == 2)
        again = rig.again()
        original = again._read_store
        again._read_store = lambda method, args: _damaged(original(method, args), "a")  # type: ignore[method-assign]
        async with again:
            await again.signal("b", "s", b"6")
            assert (await again.outcome("b")).payload == b"7"
            with pytest.raises(Exception, match="cannot be read"):
                await again.signal("a", "s", b"6")

    run(go())
    assert any("is not taken over" in record.getMessage() for record in caplog.records)


def _damaged(answer: Any, id: str) -> Any:
    if isinstance(answer, list):
        return [_damaged(one, id) for one in answer]
    if getattr(answer, "id", None) == id and hasattr(answer, "data"):
        return msgspec.structs.replace(answer, data=answer.data[:-9])
    return answer
