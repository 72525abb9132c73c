"""An engine for tests: waits pass at once and in their order, the world is waited for."""
from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import uvloop

from fusee_mp import Ctx, FuseeError, Rejected, Retry, TimedOut, WorkflowFailed, current_step, signal, testing, workflow
from fusee_mp.runtime import loop_watch

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
APPROVED = signal("approved", bool)
GENEROUS_S = 20.0  # real seconds, for what would take days if it were waited for


def runs_at_once(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    began = time.monotonic()
    asyncio.run(body())
    assert time.monotonic() - began < GENEROUS_S


async def fail_twice() -> int:
    attempt = current_step().attempt
    if attempt < 3:
        raise ConnectionError(f"attempt {attempt}")
    return attempt


async def nap(duration_s: float) -> str:
    await asyncio.sleep(duration_s)
    return "rested"


@workflow
async def sleeper(ctx: Ctx, days: int) -> str:
    await ctx.sleep(timedelta(days=days))
    return ctx.now().isoformat()


@workflow
async def stubborn(ctx: Ctx) -> int:
    return await ctx.step("fail twice", fail_twice, retry=Retry(attempts=5, initial="1h", maximum="1d", jitter=0))


@workflow
async def napper(ctx: Ctx, timeout: float | None) -> str:
    return await ctx.step("nap", nap, 7200.0, timeout=timeout)


@workflow
async def approval(ctx: Ctx) -> str:
    answer = await ctx.wait_for(APPROVED, timeout="1d")
    return "nobody answered" if answer is None else f"answered {answer} at {ctx.now():%H:%M}"


@workflow
async def waiting(ctx: Ctx) -> bool | None:
    return await ctx.wait_for(APPROVED)


def test_a_durable_timer_passes_at_once_and_exactly() -> None:
    async def body() -> None:
        async with testing.engine(workflows=[sleeper], at=NOON) as engine:
            assert engine.now() == NOON
            assert await engine.execute(sleeper, "s", 30) == "2026-03-02T12:00:00+00:00"
            assert engine.now() == NOON + timedelta(days=30)

    runs_at_once(body)


def test_retries_pass_at_once() -> None:
    async def body() -> None:
        async with testing.engine(workflows=[stubborn], at=NOON) as engine:
            assert await engine.execute(stubborn, "s") == 3
            assert engine.now() == NOON + timedelta(hours=3)

    runs_at_once(body)


def test_a_sleep_in_a_step_body_passes_at_once_and_a_timeout_cuts_it() -> None:
    async def body() -> None:
        async with testing.engine(workflows=[napper], at=NOON) as engine:
            assert await engine.execute(napper, "long", None) == "rested"
            assert engine.now() == NOON + timedelta(hours=2)
            with pytest.raises(WorkflowFailed) as caught:
                await engine.execute(napper, "cut", 60.0)
            assert isinstance(caught.value.__cause__, TimeoutError)
            assert engine.now() == NOON + timedelta(hours=2, minutes=1)

    runs_at_once(body)


def test_a_deadline_passes_in_virtual_time() -> None:
    async def body() -> None:
        async with testing.engine(workflows=[waiting]) as engine:
            with pytest.raises(TimedOut):
                await engine.execute(waiting, "w", deadline="3d")

    runs_at_once(body)


def test_skipping_leaves_the_test_time_to_act_in_between() -> None:
    async def body() -> None:
        async with testing.engine(workflows=[approval], at=NOON) as engine:
            run = await engine.start(approval, "a")
            await engine.skip("1h")
            await run.signal(APPROVED, True)
            assert await run.result() == "answered True at 13:00"
            assert await engine.execute(approval, "b") == "nobody answered"

    runs_at_once(body)


def test_all_that_was_due_has_happened_when_a_skip_returns() -> None:
    async def body() -> None:
        async with testing.engine(workflows=[sleeper]) as engine:
            for n in range(50):
                await engine.start(sleeper, f"s{n}", 1 + n % 2)
            await engine.skip("1d")
            assert await engine.count({"status": "ok"}) == 25
            await engine.skip("1d")
            assert await engine.count({"status": "ok"}) == 50

    runs_at_once(body)


def test_many_timers_fire_in_their_order() -> None:
    order: list[int] = []

    @workflow
    async def one(ctx: Ctx, n: int) -> None:
        await ctx.sleep(timedelta(hours=n))
        await ctx.step("note", order.append, n)

    async def body() -> None:
        async with testing.engine(workflows=[one], shards=3) as engine:
            runs = [await engine.start(one, f"o{n}", n) for n in (5, 3, 9, 1, 7)]
            for run in runs:
                await run.result()

    runs_at_once(body)
    assert order == [1, 3, 5, 7, 9]


# The world.


def test_a_thread_takes_its_real_time_and_time_does_not_run_away() -> None:
    go = threading.Event()

    def in_a_thread() -> bool:
        return go.wait(GENEROUS_S)

    @workflow
    async def threaded(ctx: Ctx) -> bool:
        return await ctx.step("thread", in_a_thread, timeout="1h")

    async def body() -> None:
        async with testing.engine(workflows=[threaded, sleeper], at=NOON) as engine:
            other = await engine.start(sleeper, "s", 400)
            run = await engine.start(threaded, "t")
            threading.Timer(0.2, go.set).start()
            assert await run.result()
            assert engine.now() - NOON < timedelta(seconds=GENEROUS_S)
            assert await other.result()

    runs_at_once(body)


def test_a_slow_answer_over_a_socket_does_not_time_out() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        threading.Timer(0.3, loop_of[0].call_soon_threadsafe, (writer.write, b"pong\n")).start()

    loop_of: list[asyncio.AbstractEventLoop] = []

    async def ask(port: int) -> str:
        async with asyncio.timeout(30):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"ping\n")
            line = await reader.readline()
            writer.close()
            await writer.wait_closed()
            return line.decode().strip()

    @workflow
    async def asking(ctx: Ctx, port: int) -> str:
        await ctx.sleep("90d")
        return await ctx.step("ask", ask, port, timeout="1m")

    async def body() -> None:
        loop_of.append(asyncio.get_running_loop())
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with testing.engine(workflows=[asking, sleeper], at=NOON) as engine:
            await engine.start(sleeper, "s", 400)
            assert await engine.execute(asking, "a", server.sockets[0].getsockname()[1]) == "pong"
            assert timedelta(0) <= engine.now() - NOON - timedelta(days=90) < timedelta(seconds=30)
        server.close()

    runs_at_once(body)


def test_a_connection_that_nobody_waits_for_does_not_stop_time() -> None:
    async def body() -> None:
        server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
        _, writer = await asyncio.open_connection("127.0.0.1", server.sockets[0].getsockname()[1])
        async with testing.engine(workflows=[sleeper, napper]) as engine:
            await engine.execute(sleeper, "s", 30)
            assert await engine.execute(napper, "n", None) == "rested"
        writer.close()
        server.close()

    runs_at_once(body)


def test_a_child_process_of_a_step_is_awaited() -> None:
    async def run_program() -> int:
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", "import time; time.sleep(0.3)")
        return await process.wait()

    @workflow
    async def program(ctx: Ctx) -> int:
        return await ctx.step("program", run_program, timeout="20s")

    async def body() -> None:
        async with testing.engine(workflows=[program]) as engine:
            assert await engine.execute(program, "p") == 0

    runs_at_once(body)


# Beside others.


def test_engines_in_other_threads_have_times_of_their_own() -> None:
    found: dict[int, list[datetime]] = {}

    def one(days: int) -> None:
        async def body() -> None:
            async with testing.engine(workflows=[sleeper], at=NOON) as engine:
                for n in range(5):
                    await engine.execute(sleeper, f"s{n}", days)
                    found.setdefault(days, []).append(engine.now())

        asyncio.run(body())

    threads = [threading.Thread(target=one, args=(days,)) for days in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(GENEROUS_S)
    assert found == {days: [NOON + timedelta(days=days * n) for n in range(1, 6)] for days in (1, 2, 3)}


def test_two_engines_in_one_test_share_their_time() -> None:
    async def body() -> None:
        async with testing.engine(workflows=[sleeper], at=NOON) as one, testing.engine(workflows=[sleeper], at=NOON) as two:
            await asyncio.gather(one.execute(sleeper, "s", 1), two.execute(sleeper, "s", 2))
            assert one.now() == two.now() == NOON + timedelta(days=2)

    runs_at_once(body)


def test_the_loop_has_real_time_again_afterwards() -> None:
    async def body() -> None:
        loop = asyncio.get_running_loop()
        async with testing.engine(workflows=[sleeper]) as engine:
            await engine.execute(sleeper, "s", 1)
        began, virtual = time.monotonic(), loop.time()
        await asyncio.sleep(0.05)
        assert time.monotonic() - began >= 0.045
        assert 0.045 <= loop.time() - virtual < GENEROUS_S
        async with testing.engine(workflows=[sleeper]) as engine:
            await engine.execute(sleeper, "s", 1)

    runs_at_once(body)


def test_another_kind_of_loop_is_refused_with_what_to_do() -> None:
    async def body() -> None:
        with pytest.raises(Rejected, match=r"uvloop.*asyncio\.run"):
            async with testing.engine():
                pass

    uvloop.run(body())


def test_a_time_without_a_zone_is_refused() -> None:
    async def body() -> None:
        with pytest.raises(Rejected, match="zone"):
            async with testing.engine(at=datetime(2026, 1, 1)):
                pass

    asyncio.run(body())


# Waiting for ever.


@pytest.mark.parametrize("stuck_s", [0.1, 1.5 * loop_watch.LOOK_S])
def test_a_test_that_would_wait_for_ever_is_told_what_its_runs_wait_for(monkeypatch: pytest.MonkeyPatch, stuck_s: float) -> None:
    """Also when it takes longer to tell than between two looks of the watch over the loop."""
    monkeypatch.setattr("fusee_mp.testing.clock.STUCK_S", stuck_s)

    async def body() -> None:
        async with testing.engine(workflows=[waiting, sleeper]) as engine:
            with pytest.raises(FuseeError, match=rf'"w" \(waiting\) at {__file__}:\d+') as caught:
                await engine.execute(waiting, "w")
            assert "nothing will happen any more" in caught.value.message
            await engine.handle("w").signal(APPROVED, True)
            assert await engine.handle("w").result() is True

    runs_at_once(body)


def test_a_run_that_was_set_aside_is_among_what_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusee_mp.testing.clock.STUCK_S", 0.1)

    @workflow
    async def endless(ctx: Ctx) -> None:
        while True:
            await asyncio.sleep(0)

    async def body() -> None:
        async with testing.engine(workflows=[endless]) as engine:
            with pytest.raises(FuseeError, match='"e", set aside: .*does not yield'):
                await engine.execute(endless, "e")

    runs_at_once(body)
