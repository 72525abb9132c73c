"""Signals, cancels, requests: what arrives once has its effect once, in order, or its sender is told."""
from __future__ import annotations

import asyncio
import os
import random
from typing import Any

import pytest
from behaviour_homes import until
from behaviour_workflows import GO, STOP, WORKFLOWS, notes

from fusee_mp import AlreadyExists, Cancelled, Rejected

W = WORKFLOWS
TRIALS = 2_000 if os.environ.get("FUSEE_LONG") else 60


async def status_is(run: Any, *words: str) -> bool:
    found = await run.status()
    return found is not None and found.status in words


def test_a_signal_wait_has_a_value_or_nothing_on_timeout(scene: Any) -> None:
    """A32"""
    async def scenario(home: Any) -> None:
        run = await home.engine.start(W["collects"], "c")
        await run.signal(GO, 1)
        assert await run.result() == [1]

    scene(scenario)


def test_signals_are_buffered_and_taken_in_order(scene: Any) -> None:
    async def scenario(home: Any) -> None:
        run = await home.engine.start(W["counts_all_that_came"], "c")
        for i in range(7):
            await run.signal(GO, i)
        await run.signal(STOP)
        assert await run.result() == 7

    scene(scenario)


def test_each_of_two_signals_that_come_together_is_seen_or_its_sender_is_told(scene: Any) -> None:
    """G04"""
    async def scenario(home: Any) -> None:
        accepted = refused = 0
        for i in range(20):
            run = await home.engine.start(W["first_signal_ends_it"], f"f{i}")
            answers = await asyncio.gather(*[run.signal(GO, n) for n in range(5)], return_exceptions=True)
            accepted += sum(answer is None for answer in answers)
            refused += sum(isinstance(answer, Rejected) for answer in answers)
            assert await run.result() == 0
        assert (accepted, refused) == (20, 80)

    scene(scenario)


def test_signals_that_come_together_before_the_end_are_all_seen(scene: Any) -> None:
    """G04"""
    async def scenario(home: Any) -> None:
        run = await home.engine.start(W["counts_all_that_came"], "c")
        calls = [run.signal(GO, n) for n in range(10)]
        await asyncio.gather(*calls, run.signal(STOP))
        assert await run.result() == 10

    scene(scenario)


# Request IDs.

def test_a_request_id_stands_for_one_kind_of_call_on_one_id(scene: Any) -> None:
    async def scenario(home: Any) -> None:
        engine = home.engine
        runs = [await engine.start(W["sums"], f"o{number}", 1, request_id="click") for number in range(4)]
        assert [run.id for run in runs] == [f"o{number}" for number in range(4)]
        for number, run in enumerate(runs):
            await run.signal(GO, number, request_id="click")
            await run.signal(GO, 100, request_id="click")
        assert [await run.result() for run in runs] == [0, 1, 2, 3]
        long = "x" * 1_000
        run = await engine.start(W["sums"], long, 1, request_id=long)
        assert (await engine.start(W["sums"], long, 1, request_id=long)).id == run.id
        await run.signal(GO, 7, request_id=long)
        assert await run.result() == 7

    scene(scenario)


def test_a_request_that_is_sent_again_has_the_effect_and_the_answer_of_one(scene: Any) -> None:
    async def scenario(home: Any) -> None:
        engine = home.engine
        run = await engine.start(W["sums"], "s", 2, request_id="start-1")
        again = await engine.start(W["sums"], "s", 2, request_id="start-1")
        assert again.id == "s" and await engine.count() == 1
        with pytest.raises(AlreadyExists):
            await engine.start(W["sums"], "s", 2, request_id="start-2")
        for _ in range(3):
            await run.signal(GO, 5, request_id="signal-1")
        await asyncio.gather(*[run.signal(GO, 6, request_id="signal-2") for _ in range(5)])
        assert await run.result() == 11
        await run.signal(GO, 5, request_id="signal-1")
        with pytest.raises(Rejected):
            await run.signal(GO, 5, request_id="signal-3")
        assert (await engine.start(W["sums"], "s", 2, request_id="start-1")).id == "s"
        assert await engine.count() == 1

    scene(scenario)


def test_requests_are_known_after_a_restart_and_after_parking(scene: Any) -> None:
    async def scenario(home: Any) -> None:
        run = await home.engine.start(W["sums"], "s", 2, request_id="start-1")
        await run.signal(GO, 5, request_id="signal-1")
        await until(lambda: status_is(run, "parked"))
        await asyncio.gather(*[run.signal(GO, 5, request_id="signal-1") for _ in range(3)])
        await home.restart()
        run = await home.engine.start(W["sums"], "s", 2, request_id="start-1")
        await run.signal(GO, 5, request_id="signal-1")
        await asyncio.gather(*[run.signal(GO, 6, request_id="signal-2") for _ in range(3)])
        assert await run.result() == 11
        other = await home.engine.start(W["waits"], "w")
        await other.cancel("once", request_id="cancel-1")
        with pytest.raises(Cancelled, match="once"):
            await other.result()
        await home.restart()
        other = home.engine.handle("w")
        await other.cancel("twice", request_id="cancel-1")
        third = await home.engine.start(W["waits"], "t")
        await third.terminate("gone", request_id="terminate-1")
        await home.restart()
        await home.engine.handle("t").terminate("gone", request_id="terminate-1")
        assert (await home.engine.describe("w")).reason == "once"

    scene(scenario, restarts=True, park_after="150ms")


# Parked runs.

def test_a_parked_run_takes_signals_timers_cancels_terminations_and_waits(scene: Any) -> None:
    async def scenario(home: Any) -> None:
        engine = home.engine
        runs = {name: await engine.start(W["waits"], name) for name in ("signalled", "cancelled", "terminated")}
        napping = await engine.start(W["naps"], "napping", 1_500)
        listening = asyncio.create_task(runs["signalled"].result())
        for run in (*runs.values(), napping):
            await until(lambda: status_is(run, "parked"), run.id)  # noqa: B023
        await runs["signalled"].signal(GO, 3)
        assert await listening == 3
        await runs["cancelled"].cancel("why not")
        with pytest.raises(Cancelled, match="why not"):
            await runs["cancelled"].result()
        await runs["terminated"].terminate()
        assert (await runs["terminated"].status()).status == "terminated"
        assert await napping.result(timeout=20) == len("woke after 1500")

    scene(scenario, restarts=True, park_after="100ms")


# Cancelling.

@pytest.mark.parametrize("how", ["sleep", "signal", "until", "child", "all", "timeout", "step", "retry"])
def test_a_cancel_reaches_every_kind_of_wait(scene: Any, how: str) -> None:
    async def scenario(home: Any) -> None:
        run = await home.engine.start(W["cancelled_in_a_wait"], "c", how)
        await asyncio.sleep(0.05)
        await run.cancel(f"out of {how}")
        with pytest.raises(Cancelled, match=f"out of {how}"):
            await run.result()
        assert (await run.status()).status == "cancelled"

    scene(scenario)


def test_a_cancel_is_never_lost_among_short_steps(scene: Any) -> None:
    """G07"""
    async def scenario(home: Any) -> None:
        drawn = random.Random(5)

        async def trial(i: int) -> None:
            run = await home.engine.start(W["short_steps"], f"s{i}")
            await asyncio.sleep(drawn.random() * 0.1)
            await run.cancel(f"reason {i}")
            with pytest.raises(Cancelled, match=f"saw reason {i}"):
                await run.result(timeout=30)

        for first in range(0, TRIALS, 20):
            await asyncio.gather(*[trial(i) for i in range(first, min(first + 20, TRIALS))])
        assert len(notes()) == TRIALS, "clean-up ran once in each"

    scene(scenario)


# Restarts.

def test_a_step_that_ended_is_not_repeated_after_a_restart(scene: Any) -> None:
    async def scenario(home: Any) -> None:
        for i in range(5):
            await home.engine.start(W["sums"], f"s{i}", 2)
            await home.engine.handle(f"s{i}").signal(GO, i)
        assert await home.engine.execute(W["quick"], "q", 4) == 8
        await home.restart()
        for i in range(5):
            await home.engine.handle(f"s{i}").signal(GO, 10)
            assert await home.engine.handle(f"s{i}").result() == i + 10
        assert await home.engine.handle("q").result() == 8
        assert len(notes()) == 1

    scene(scenario, restarts=True)


def test_sleeps_that_end_while_nobody_is_there_fire_once(scene: Any) -> None:
    """G11"""
    async def scenario(home: Any) -> None:
        runs = [await home.engine.start(W["naps"], f"n{i}", 300 + 40 * i) for i in range(50)]
        await home.stop()
        await asyncio.sleep(1.5)
        await home.open()
        await asyncio.gather(*[home.engine.handle(run.id).result(timeout=30) for run in runs])
        await home.restart()
        await asyncio.gather(*[home.engine.handle(run.id).result(timeout=30) for run in runs])
        keys = [key for key, _ in notes()]
        assert len(keys) == len(set(keys)) == 50

    scene(scenario, restarts=True)


def test_quiet_runs_do_not_slow_an_open(scene: Any) -> None:
    """Their number is not seen in what a takeover loads."""
    count = 100_000 if os.environ.get("FUSEE_LONG") else 2_000

    async def scenario(home: Any) -> None:
        for first in range(0, count, 500):
            await asyncio.gather(*[home.engine.start(W["waits"], f"w{i}") for i in range(first, min(first + 500, count))])

        async def all_quiet() -> bool:
            return bool(await home.engine.count({"status": "running"}) == 0)

        await until(all_quiet)
        await home.restart()
        assert sum(runtime.metrics.loads for runtime in home.runtimes) == 0
        assert await home.engine.count({"status": "open"}) == count
        await home.engine.handle("w7").signal(GO, 7)
        assert await home.engine.handle("w7").result() == 7
        assert sum(runtime.metrics.loads for runtime in home.runtimes) == 1

    scene(scenario, restarts=True)


def test_calls_that_wait_when_the_engine_closes_are_told(scene: Any) -> None:
    async def scenario(home: Any) -> None:
        from fusee_mp import Unavailable

        run = await home.engine.start(W["waits"], "w")
        waiting = [asyncio.create_task(run.result()), asyncio.create_task(home.engine.handle("later").started())]
        await asyncio.sleep(0.05)
        starting = [asyncio.create_task(home.engine.start(W["waits"], f"s{i}")) for i in range(10)]
        await asyncio.sleep(0)
        await home.engine.close()
        for task in (*waiting, *starting):
            try:
                await asyncio.wait_for(task, 10)
            except Unavailable:
                pass
            else:
                assert task in starting
        with pytest.raises(Unavailable):
            await run.signal(GO, 1)

    scene(scenario)
