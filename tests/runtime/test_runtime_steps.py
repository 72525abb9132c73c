"""Step bodies: where they run, what they see, how they fail, how often they are tried."""
from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import threading
from typing import Any

import pytest
from runtime_rig import Rig
from runtime_warp import run

from fusee_mp import Fatal, Retry, StepFailed, current_step, step
from fusee_mp.core import records as r
from fusee_mp.sdk.definitions import Workflow

VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")
SEEN: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    SEEN.clear()


class Declined(Exception):
    def __init__(self, *, code: int) -> None:
        super().__init__(f"declined with {code}")
        self.code = code


async def result_of(main: Any, *, log: list[bytes] | None = None, again: bool = True) -> Any:
    """What the workflow returns, live; and the same when it is replayed from its whole journal."""
    workflow = Workflow(main, main.__name__)
    async with Rig([workflow]) as rig:
        await rig.start(workflow, "a")
        outcome = await rig.outcome("a")
    if log is not None:
        log += rig.log
    assert outcome.status == "ok", outcome
    if again:
        async with rig.again(rig.kinds().index("done")) as replay:
            assert await replay.outcome("a") == outcome
    return workflow.result_codec.decode(outcome.payload)


# Running.

async def slow_timeout() -> str:
    async with asyncio.timeout(5):
        await asyncio.sleep(1)
    try:
        async with asyncio.timeout(0.1):
            await asyncio.sleep(1)
    except TimeoutError:
        return "timed out"
    return "no"


async def quick_timeout() -> str:
    async with asyncio.timeout(5):
        return "within"


async def group() -> list[int]:
    async def one(i: int) -> int:
        await asyncio.sleep(i / 10)
        return i

    async with asyncio.TaskGroup() as tasks:
        made = [tasks.create_task(one(i)) for i in range(3)]
    return [task.result() for task in made]


async def one_task() -> bool:
    before = asyncio.current_task()
    await asyncio.sleep(0)
    await asyncio.sleep(0.1)
    return before is not None and asyncio.current_task() is before


async def own_context() -> list[str]:
    before = VARIABLE.get()
    VARIABLE.set("mine")
    await asyncio.sleep(0.1)
    return [before, VARIABLE.get()]


async def cancels_itself() -> str:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    try:
        await asyncio.sleep(1)
    except asyncio.CancelledError:
        task.uncancel()
        return "cancelled and went on"
    return "no"


async def cancels_itself_and_ends() -> str:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    return "ended"


@pytest.mark.parametrize(("body", "expected"), [
    (slow_timeout, "timed out"), (quick_timeout, "within"), (group, [0, 1, 2]), (one_task, True), (own_context, ["unset", "mine"]),
    (cancels_itself, "cancelled and went on"), (cancels_itself_and_ends, "ended"),
], ids=lambda value: getattr(value, "__name__", ""))
def test_a_body_runs_as_in_a_task_of_its_own_whether_it_suspends_or_not(body: Any, expected: Any) -> None:
    async def main(ctx: Any) -> Any:
        return [await ctx.step("b", body) for _ in range(20)]

    assert run(result_of(main)) == [expected] * 20


def test_anyio_works_in_bodies() -> None:
    anyio = pytest.importorskip("anyio")

    async def body() -> list[str]:
        found = []
        with anyio.move_on_after(0.1):
            await anyio.sleep(1)
            found.append("no")
        with anyio.fail_after(1):
            found.append("quick")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.sleep, 0.1)
        return found

    async def main(ctx: Any) -> Any:
        return [await ctx.step("b", body) for _ in range(3)]

    assert run(result_of(main)) == [["quick"]] * 3


def test_a_plain_function_runs_in_a_thread_and_leaves_the_loop_alone() -> None:
    def body() -> list[Any]:
        return [threading.current_thread() is threading.main_thread(), current_step().attempt, VARIABLE.get()]

    def gives_a_coroutine() -> Any:
        return quick_timeout()

    async def main(ctx: Any) -> Any:
        return [await ctx.step("b", body), await ctx.step("c", gives_a_coroutine)]

    assert asyncio.run(result_of(main)) == [[False, 1, "unset"], "within"]


def test_a_pool_of_the_users_runs_the_body() -> None:
    with concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="mine") as pool:
        async def main(ctx: Any) -> Any:
            return await ctx.step("b", lambda: threading.current_thread().name[:4], pool=pool)

        assert asyncio.run(result_of(main)) == "mine"


def test_a_called_step_is_durable_inside_and_plain_outside() -> None:
    @step
    async def double(n: int) -> int:
        SEEN.append(current_step().key)
        return 2 * n

    async def main(ctx: Any) -> int:
        return await double(await double(3))

    log: list[bytes] = []
    assert run(result_of(main, log=log)) == 12
    assert SEEN == ["a/1/1", "a/1/2"]
    assert [r.KIND[type(r.decode(data))] for data in log] == ["start", "step", "step", "done"]
    assert asyncio.run(double(3)) == 6 and SEEN[-1].startswith("no-step/")


def test_the_code_gets_a_copy_of_what_was_recorded() -> None:
    shared: list[int] = []

    async def body() -> list[int]:
        shared.append(1)
        return shared

    async def main(ctx: Any) -> Any:
        first = await ctx.step("b", body)
        second = await ctx.step("b", body)
        return [first, second, first is shared]

    assert run(result_of(main)) == [[1], [1, 1], False]


# Failing.

@pytest.mark.parametrize("error", [
    lambda: Declined(code=7), lambda: ValueError("bad", 3), lambda: KeyError("k"), lambda: TimeoutError(),
    lambda: FileNotFoundError(2, "no", "f"),
    lambda: ExceptionGroup("several", [ValueError("a"), ExceptionGroup("more", [Declined(code=1)])]),
], ids=["own", "ValueError", "KeyError", "TimeoutError", "OSError", "group"])
def test_a_failed_step_raises_its_own_type_with_the_step_as_its_cause_live_as_replayed(error: Any) -> None:
    """G17"""
    async def body() -> None:
        raise error()

    async def main(ctx: Any) -> Any:
        try:
            await ctx.step("pay", body)
        except type(error()) as e:
            cause = e.__cause__
            assert isinstance(cause, StepFailed)
            return [str(e), cause.step, cause.attempts, getattr(e, "code", None)]

    shown = error()
    assert run(result_of(main)) == [str(shown), "pay", 1, getattr(shown, "code", None)]


def test_a_type_that_nobody_can_rebuild_is_a_step_failed_also_live() -> None:
    """G17"""
    async def body() -> None:
        class Local(Exception):
            pass

        raise Local("hidden")

    async def main(ctx: Any) -> Any:
        try:
            await ctx.step("pay", body)
        except StepFailed as e:
            return [e.step, e.attempts, e.type_name.endswith("Local"), "hidden" in str(e)]

    assert run(result_of(main)) == ["pay", 1, True, True]


@pytest.mark.parametrize("error", [StopIteration, StopAsyncIteration, asyncio.CancelledError, GeneratorExit])
def test_what_means_something_to_tasks_comes_as_step_failed(error: type[BaseException]) -> None:
    def body() -> None:
        raise error("odd")

    async def main(ctx: Any) -> Any:
        try:
            await ctx.step("odd", body)
        except StepFailed as e:
            return e.type_name.split(":")[1].split(".")[-1]

    assert asyncio.run(result_of(main)) == error.__name__


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("suspends", [False, True])
@pytest.mark.parametrize("is_async", [False, True])
def test_an_exit_out_of_a_body_ends_the_step_only(error: type[BaseException], suspends: bool, is_async: bool) -> None:
    async def async_body() -> None:
        if suspends:
            await asyncio.sleep(0.001)
        raise error("out")

    def body() -> None:
        raise error("out")

    async def main(ctx: Any) -> Any:
        try:
            await ctx.step("b", async_body if is_async else body)
        except error as e:
            return str(e)

    assert asyncio.run(result_of(main)) == "out"


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_an_exit_out_of_workflow_code_fails_that_run_only(error: type[BaseException]) -> None:
    async def leaves(ctx: Any, in_a_task: bool) -> None:
        async def out() -> None:
            await ctx.step("b", quick_timeout)
            raise error("out")

        await (asyncio.create_task(out()) if in_a_task else out())

    async def stays(ctx: Any) -> str:
        return str(await ctx.wait_for("s"))

    async def main() -> None:
        leaving, staying = Workflow(leaves, "leaves"), Workflow(stays, "stays")
        async with Rig([leaving, staying]) as rig:
            await rig.start(staying, "s")
            for in_a_task in (False, True):
                await rig.start(leaving, f"a{in_a_task}", in_a_task)
                outcome = await rig.outcome(f"a{in_a_task}")
                assert outcome.status == "failed" and error.__name__.encode() in outcome.payload
            await rig.signal("s", "s", b'"here"')
            assert (await rig.outcome("s")).payload == b'"here"'

    run(main())


def test_a_result_that_cannot_be_carried_fails_the_step_at_once() -> None:
    async def body() -> Any:
        SEEN.append(1)
        return object()

    async def main(ctx: Any) -> Any:
        try:
            await ctx.step("b", body, retry=Retry())
        except Exception as e:
            return [type(e).__name__, 'the result of step "b"' in str(e)]

    assert run(result_of(main)) == ["PayloadError", True]
    assert SEEN == [1]


@pytest.mark.parametrize("call", [
    lambda ctx: ctx.step("", quick_timeout), lambda ctx: ctx.step("a\ud800", quick_timeout), lambda ctx: ctx.step("a\0", quick_timeout),
    lambda ctx: ctx.step(7, quick_timeout), lambda ctx: ctx.sleep(-1), lambda ctx: ctx.sleep(1, name="\ud800"),
    lambda ctx: ctx.sleep("soon"),
    lambda ctx: ctx.wait_for(""), lambda ctx: ctx.signal("", "s"), lambda ctx: ctx.signal("b", "s", object()),
    lambda ctx: ctx.child("w", "\ud800"),
    lambda ctx: ctx.child("w", "c", close="maybe"), lambda ctx: ctx.all([], limit=0), lambda ctx: ctx.cancel("b", "\ud800"),
])
def test_wrong_arguments_raise_at_the_call_and_take_no_place_that_replay_lacks(call: Any) -> None:
    async def main(ctx: Any) -> Any:
        try:
            await call(ctx)
        except Exception as e:
            return [type(e).__name__, await ctx.step("after", quick_timeout)]

    assert run(result_of(main))[0] in ("Rejected", "PayloadError")


# Trying again.

def fails(times: int, error: BaseException) -> Any:
    async def body() -> str:
        SEEN.append((current_step().attempt, round(asyncio.get_running_loop().time(), 3)))
        if len(SEEN) <= times:
            raise error
        return "at last"

    return body


def test_a_failed_step_is_tried_again_after_growing_waits() -> None:
    async def main(ctx: Any) -> Any:
        return await ctx.step("b", fails(3, ValueError("no")), retry=Retry(initial="1s", factor=3, jitter=0))

    log: list[bytes] = []
    assert run(result_of(main, log=log)) == "at last"
    assert [attempt for attempt, _ in SEEN] == [1, 2, 3, 4]
    waits = [later - earlier for (_, earlier), (_, later) in zip(SEEN, SEEN[1:], strict=False)]
    assert waits == pytest.approx([1, 3, 9], abs=0.1)
    attempts = [record for record in map(r.decode, log) if isinstance(record, r.Attempt)]
    assert [record.attempt for record in attempts] == [1, 2, 3]


@pytest.mark.parametrize(("policy", "error", "tries", "raised"), [
    (Retry(attempts=3, initial=1), ValueError("no"), 3, ValueError), (None, ValueError("no"), 1, ValueError),
    (Retry(never=ValueError), ValueError("no"), 1, ValueError), (Retry(only=KeyError), ValueError("no"), 1, ValueError),
    (Retry(), Fatal("never again"), 1, Fatal),
])
def test_a_step_is_given_up_when_its_policy_says_so(policy: Retry | None, error: Exception, tries: int, raised: type[Exception]) -> None:
    async def main(ctx: Any) -> Any:
        try:
            await ctx.step("b", fails(99, error), retry=policy)
        except raised as e:
            assert isinstance(e.__cause__, StepFailed)
            return e.__cause__.attempts

    assert run(result_of(main)) == tries == len(SEEN)


def test_fatal_with_a_cause_arrives_as_the_cause() -> None:
    async def body() -> None:
        try:
            raise Declined(code=9)
        except Declined as e:
            raise Fatal("give up") from e

    async def main(ctx: Any) -> Any:
        try:
            await ctx.step("b", body, retry=Retry())
        except Declined as e:
            return e.code

    assert run(result_of(main)) == 9


def test_attempts_are_counted_across_crashes_and_the_wait_goes_on_where_it_was() -> None:
    async def main(ctx: Any) -> Any:
        try:
            policy = Retry(attempts=4, initial="100s", maximum="100s", factor=1, jitter=0)
            return await ctx.step("b", fails(99, ValueError("no")), retry=policy)
        except ValueError as e:
            return e.__cause__.attempts  # type: ignore[union-attr]

    async def go() -> None:
        workflow = Workflow(main, "main")
        rig = Rig([workflow])
        async with rig:
            await rig.start(workflow, "a")
            await rig.until(lambda: rig.kinds().count("attempt") == 1)
        for number in (2, 3):
            began = rig.clock()
            rig = rig.again()
            async with rig:
                await asyncio.sleep(50)
                assert len(SEEN) == number - 1, "the wait is not over"
                await rig.until(lambda: rig.kinds().count("attempt") == number, f"attempt {number}")  # noqa: B023
                assert rig.clock() - began < 160_000
        async with rig.again() as last:
            assert (await last.outcome("a")).payload == b"4"

    run(go())
    assert [attempt for attempt, _ in SEEN] == [1, 2, 3, 4]


# Time limits.

def test_an_attempt_that_takes_too_long_is_cancelled_and_counts_as_failed() -> None:
    async def body() -> str:
        SEEN.append(current_step().attempt)
        try:
            await asyncio.sleep(100 if len(SEEN) < 3 else 0.1)
        except asyncio.CancelledError:
            SEEN.append("cancelled")
            raise
        return "in time"

    async def main(ctx: Any) -> Any:
        return await ctx.step("b", body, timeout="1s", retry=Retry(initial=0.1))

    assert run(result_of(main)) == "in time"
    assert SEEN == [1, "cancelled", 2, "cancelled", 3] or SEEN == [1, "cancelled", 2]


def test_the_total_time_spans_attempts_waits_and_crashes() -> None:
    async def body() -> None:
        SEEN.append(current_step().attempt)
        raise ValueError("no")

    async def main(ctx: Any) -> Any:
        try:
            await ctx.step("b", body, total_timeout="10s", retry=Retry(initial="4s", factor=1, jitter=0))
        except (ValueError, TimeoutError) as e:
            return type(e).__name__

    async def go() -> None:
        workflow = Workflow(main, "main")
        async with Rig([workflow]) as rig:
            await rig.start(workflow, "a")
            assert (await rig.outcome("a")).payload == b'"ValueError"'
        assert SEEN == [1, 2, 3]
        SEEN.clear()
        async with rig.again(2, now_ms=rig.clock() + 60_000) as later:  # after the first failed attempt; back after the time was over
            assert (await later.outcome("a")).payload == b'"TimeoutError"'
        assert SEEN == [], "no body runs that has no time left"

    run(go())


def test_the_outcome_of_a_thread_that_was_given_up_is_dropped() -> None:
    go = threading.Event()

    def body() -> str:
        go.wait(10)
        return "late"

    async def main(ctx: Any) -> Any:
        try:
            await ctx.step("b", body, timeout="10ms")
        except TimeoutError as e:
            go.set()
            await asyncio.sleep(0.05)
            return str(e)

    log: list[bytes] = []
    assert "took longer than its timeout of 0.01 s" in asyncio.run(result_of(main, log=log))
    assert sum(isinstance(r.decode(data), r.StepDone) for data in log) == 1


def test_no_body_starts_before_everything_its_run_recorded_is_durable() -> None:
    async def main(ctx: Any) -> Any:
        ctx.set_attributes(stage="paying")
        return await ctx.step("b", fails(0, ValueError()))

    async def go() -> None:
        workflow = Workflow(main, "main")
        async with Rig([workflow]) as rig:
            rig.is_disk_stuck = True
            starting = asyncio.create_task(rig.start(workflow, "a"))
            await rig.until(lambda: rig.kinds() == ["start", "attributes"])
            await asyncio.sleep(10)
            assert SEEN == [] and not starting.done()
            rig.flush(1)
            await asyncio.sleep(10)
            assert SEEN == [] and starting.done(), "the start is safe, what the step rests on is not"
            rig.is_disk_stuck = False
            rig.flush()
            assert (await rig.outcome("a")).status == "ok"

    run(go())


def test_no_body_starts_while_the_lease_may_be_lost() -> None:
    async def go() -> None:
        async def main(ctx: Any) -> Any:
            return await ctx.step("b", fails(0, ValueError()))

        workflow = Workflow(main, "main")
        async with Rig([workflow]) as rig:
            rig.acts = False
            starting = asyncio.create_task(rig.start(workflow, "a"))
            await asyncio.sleep(10)
            assert SEEN == [] and not starting.done()
            rig.acts = True
            rig.runtime.work()
            assert (await rig.outcome("a")).status == "ok"
            await starting

    run(go())
