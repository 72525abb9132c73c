"""Answers and messages: none before its record is durable, one for every call, none twice, whatever disk, store and network do."""
from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from runtime_rig import Rig, turns
from runtime_warp import run

from fusee_mp import LeaseLost, Rejected, StorageFull, Unavailable
from fusee_mp.core import records as r
from fusee_mp.core.calls import CancelCall, ResultCall, SignalCall, StartCall, StartedCall, TerminateCall
from fusee_mp.core.postbox import RESEND_MAX
from fusee_mp.runtime.mail import RESEND_AFTER_MS
from fusee_mp.runtime.residence import DEAD_TIMERS_MAX, PAGE_MS
from fusee_mp.sdk.definitions import Workflow


async def waits(ctx: Any) -> Any:
    return await ctx.wait_for("s")


async def counts(ctx: Any) -> int:
    count = 0
    await ctx.wait_for("stop")
    while await ctx.wait_for("s", timeout=0) is not None:
        count += 1
    return count


async def sends(ctx: Any, count: int) -> str:
    for n in range(count):
        await ctx.signal("sink", "s", n)
    return "sent"


async def naps(ctx: Any, s: float) -> str:
    await ctx.sleep(s)
    return "woke"


WAITS, COUNTS, SENDS, NAPS = (Workflow(main, main.__name__) for main in (waits, counts, sends, naps))
ALL = [WAITS, COUNTS, SENDS, NAPS]


def test_nothing_is_answered_before_its_record_is_durable() -> None:
    async def main() -> None:
        async with Rig(ALL) as rig:
            await rig.start(WAITS, "a")
            rig.is_disk_stuck = True
            calls = [
                rig.start(WAITS, "b"), rig.signal("a", "s", b"1"), rig.outcome("a"), rig.signal("a", "s", b"2"),
                rig.call(StartCall("a", "waits", b"null", "again", on_finished="refuse")),
            ]
            tasks = []
            for call in calls:
                tasks.append(asyncio.create_task(call))
                await asyncio.sleep(1)
            assert [task.done() for task in tasks] == [False] * 5, "also refusals that rest on records"
            rig.is_disk_stuck = False
            rig.flush()
            answers = await asyncio.gather(*tasks, return_exceptions=True)
            assert answers[0] is None and answers[1] is None and answers[2].payload == b"1"  # type: ignore[union-attr]
            assert isinstance(answers[3], Rejected) and "ended as ok" in str(answers[3])
            assert "is taken by run 1 (ok)" in str(answers[4])

    run(main())


def test_repeats_of_a_request_wait_for_the_answer_of_the_first_also_while_its_run_is_being_loaded() -> None:
    async def main() -> None:
        async with Rig(ALL, park_after_ms=300) as rig:
            await rig.start(COUNTS, "a")
            await rig.until(lambda: not rig.runtime.by_id)
            first = SignalCall("a", "s", b"1", "same")
            repeat = SignalCall("a", "s", b"1", "same", repeat=True)
            await asyncio.gather(*[rig.call(call) for call in (first, repeat, repeat, first)])
            await rig.call(repeat)
            await asyncio.sleep(5)
            await rig.call(repeat)
            await rig.signal("a", "stop")
            assert (await rig.outcome("a")).payload == b"1"
            await rig.call(repeat)

    run(main())


def test_a_start_repeated_while_its_id_is_looked_up_starts_one_run() -> None:
    async def main() -> None:
        async with Rig(ALL) as rig:
            await rig.start(NAPS, "a", 0.001)
            await rig.outcome("a")
            await rig.until(lambda: not rig.runtime.by_id)
            call = StartCall("a", "waits", b"null", "same", repeat=True)
            answers = await asyncio.gather(*[rig.call(call) for _ in range(4)])
            assert {(answer.run, answer.created) for answer in answers} == {(2, True)}
            again = await rig.call(call)
            assert again.run == 2 and rig.kinds().count("start") == 2

    run(main())


def test_what_is_asked_of_one_id_is_done_in_order_while_it_is_loaded() -> None:
    async def main() -> None:
        async with Rig(ALL, park_after_ms=300) as rig:
            await rig.start(COUNTS, "a")
            await rig.until(lambda: not rig.runtime.by_id)
            results = asyncio.create_task(rig.outcome("a"))
            await asyncio.gather(*[rig.signal("a", "s", b"%d" % n) for n in range(5)], rig.signal("a", "stop"))
            payloads = [record.payload for record in rig.records() if isinstance(record, r.Signal)]
            assert payloads == [b"0", b"1", b"2", b"3", b"4", b"null"]
            assert (await results).payload == b"5" and rig.runtime.metrics.loads == 1

    run(main())


def test_every_open_call_is_answered_when_the_shard_leaves() -> None:
    async def main() -> None:
        async with Rig(ALL, park_after_ms=300) as rig:
            await rig.start(WAITS, "parked")
            await rig.until(lambda: not rig.runtime.by_id)
            await rig.start(WAITS, "loaded")
            rig.is_disk_stuck = True
            calls: list[Any] = [
                ResultCall("loaded"), ResultCall("parked"), StartedCall("nobody"), SignalCall("loaded", "s", b"1", "1"),
                SignalCall("parked", "s", b"1", "2"), StartCall("new", "waits", b"null", "3"), CancelCall("parked", "", "4", repeat=True),
                TerminateCall("loaded", "", "5", repeat=True), StartCall("parked", "waits", b"null", "6"), ResultCall("parked"),
            ]
            tasks = [asyncio.create_task(rig.call(call)) for call in calls]
            await asyncio.sleep(0.0)
            await asyncio.sleep(0.0)
            late = asyncio.create_task(rig.call(ResultCall("parked")))
            rig.runtime.close(LeaseLost("gone"))
            for answer in await asyncio.wait_for(asyncio.gather(*tasks, late, return_exceptions=True), 5):
                assert isinstance(answer, LeaseLost), answer
            with pytest.raises(LeaseLost):
                await rig.call(ResultCall("loaded"))

    run(main())


def test_who_no_longer_waits_is_forgotten() -> None:
    async def main() -> None:
        async with Rig(ALL) as rig:
            await rig.start(WAITS, "a")
            tasks = [asyncio.create_task(rig.call(call)) for call in (ResultCall("a"), ResultCall("a"), StartedCall("b"))]
            await asyncio.sleep(1)
            for task in tasks[1:]:
                task.cancel()
            await asyncio.sleep(1)
            calls = rig.runtime.calls
            assert len(calls._waiting) == 1 and len(calls._results["a"]) == 1 and not calls._starts
            await rig.signal("a", "s", b"7")
            assert (await tasks[0]).payload == b"7"
            await rig.start(WAITS, "b")
            assert not calls._waiting and not calls._results and not calls._asking

    run(main())


def test_a_full_disk_refuses_new_runs_and_lets_open_ones_go_on() -> None:
    async def main() -> None:
        async with Rig(ALL) as rig:
            await rig.start(WAITS, "a")
            rig.refusal = "the disk is nearly full"
            with pytest.raises(StorageFull, match="nearly full"):
                await rig.start(WAITS, "b")
            await rig.signal("a", "s", b"1")
            assert (await rig.outcome("a")).status == "ok"
            rig.refusal = ""
            await rig.start(WAITS, "b")

    run(main())


# Messages.

class Network(Rig):
    """A rig whose messages to itself go through a network that may drop them."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.sent: list[list[int]] = []
        self.is_down = False

    def relay(self, to: int, messages: Any) -> None:
        self.sent.append([no for no, _ in messages])
        if not self.is_down:
            super().relay(to, messages)


def test_a_message_leaves_only_when_its_record_is_durable_however_long_that_takes() -> None:
    async def main() -> None:
        async with Network(ALL) as rig:
            await rig.start(COUNTS, "sink")
            await rig.start(NAPS, "warm-up", 0.001)
            rig.is_disk_stuck = True
            asyncio.create_task(rig.start(SENDS, "a", 3))  # noqa: RUF006
            await asyncio.sleep(10 * RESEND_AFTER_MS / 1000)
            assert rig.sent == []
            rig.is_disk_stuck = False
            rig.flush()
            await rig.until(lambda: rig.kinds().count("signal") == 3)
            assert rig.sent[0] == [1, 2, 3]

    run(main())


def test_lost_messages_are_sent_again_lot_after_lot_and_arrive_once() -> None:
    count = 3 * RESEND_MAX + 7

    async def main() -> None:
        async with Network(ALL) as rig:
            await rig.start(COUNTS, "sink")
            rig.is_down = True
            await rig.start(SENDS, "a", count)
            await asyncio.sleep(5)
            rig.is_down = False
            began = rig.clock()
            await rig.until(lambda: rig.kinds().count("signal") == count)
            assert rig.clock() - began < 3 * RESEND_AFTER_MS, "a lot does not wait for the clock"
            await rig.signal("sink", "stop")
            assert (await rig.outcome("sink")).payload == b"%d" % count
            await rig.until(lambda: not len(rig.runtime.outbox))
            await asyncio.sleep(1)
        async with rig.again() as again:
            assert len(again.runtime.outbox) == 0

    run(main())


def test_a_lost_message_is_sent_again_while_others_go_on_leaving() -> None:
    async def main() -> None:
        async with Network(ALL) as rig:
            await rig.start(COUNTS, "sink")
            rig.is_down = True
            await rig.start(SENDS, "lost", 1)
            await rig.until(lambda: rig.sent)
            rig.is_down = False
            began = rig.clock()
            while "signal" not in rig.kinds():
                await rig.start(SENDS, f"a-{rig.clock()}", 1)
                await asyncio.sleep(RESEND_AFTER_MS / 4000)
                assert rig.clock() - began < 3 * RESEND_AFTER_MS, "those behind it are not taken, and it does not come again"

    run(main())


def test_messages_survive_a_crash_at_any_record_and_arrive_once() -> None:
    async def main() -> None:
        async with Network(ALL) as rig:
            await rig.start(COUNTS, "sink")
            await rig.start(SENDS, "a", 4)
            await rig.until(lambda: rig.kinds().count("acked") > 0)
        for first in range(2, len(rig.log) + 1):
            async with rig.again(first) as again:
                await again.until(lambda: len([x for x in again.records() if isinstance(x, r.Signal)]) == 4)
                await asyncio.sleep(3)
                await again.signal("sink", "stop")
                assert (await again.outcome("sink")).payload == b"4", f"after {first} of {rig.kinds()}"

    run(main())


def test_damaged_messages_take_nobody_with_them(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with Rig(ALL) as rig:
            await rig.start(COUNTS, "sink")
            send = r.encode(r.Send(1, 5, "1", 0, 2, "signal", "sink", "s", b"1"))
            rig.runtime.deliver(9, [b"\xc1nonsense", r.encode_message(r.Message(9, 1, "x", send))])
            await turns()
            assert "signal" not in rig.kinds(), "what stands behind damage waits until it comes again"
            rig.runtime.deliver(9, [
                r.encode_message(r.Message(9, 1, "x", b"\xc1nonsense")), r.encode_message(r.Message(9, 2, "x", send)),
                r.encode_message(r.Message(9, 3, "x", r.encode(r.Fired(1, 5, "1")))),
                r.encode_message(r.Message(9, 4, "x", r.encode(r.Done(1, 5, "ok", b"1")))),
                r.encode_message(r.Message(9, 6, "x", send)),
            ])
            await rig.until(lambda: rig.kinds().count("signal") == 1)
            await asyncio.sleep(1)
            reasons = [record.reason for record in rig.records() if isinstance(record, r.Skipped)]
            assert len(reasons) == 3 and "not a record" in reasons[0] and "no message" in reasons[1]
            assert rig.runtime.mail.inbox.taken(9) == 4

    caplog.set_level(logging.ERROR)
    run(main())
    assert ["from shard 9 is dropped" in record.getMessage() for record in caplog.records] == [True]


# Timers.

def test_timers_of_parked_runs_fire_although_the_store_did_not_answer_at_first() -> None:
    async def main() -> None:
        async with Rig(ALL, park_after_ms=300) as rig:
            waits_s = [PAGE_MS / 1000 * n / 4 for n in range(1, 30, 3)]
            for n, s in enumerate(waits_s):
                await rig.start(NAPS, f"n{n}", s)
            await rig.until(lambda: not rig.runtime.by_id)
            original, asked = rig._read_store, [0]

            def unreliable(method: str, args: tuple[Any, ...]) -> Any:
                asked[0] += method == "due"
                if method == "due" and asked[0] % 9 < 4:
                    raise Unavailable("the keeper is being started again")
                return original(method, args)

            rig._read_store = unreliable  # type: ignore[method-assign]
            began = rig._loop.time()
            for n, s in enumerate(waits_s):
                assert (await rig.outcome(f"n{n}")).payload == b'"woke"'
                assert -1 < rig._loop.time() - began - s < 5
            assert rig.kinds().count("fired") == len(waits_s)

    run(main())


def test_timers_that_were_given_up_do_not_pile_up() -> None:
    async def busy(ctx: Any) -> int:
        for _ in range(3 * DEAD_TIMERS_MAX):
            await ctx.wait_for("never", timeout="0s")
            try:
                async with asyncio.timeout(86_400):
                    await asyncio.sleep(0)
            except TimeoutError:
                pass
        await ctx.sleep(1)
        return 1

    async def main() -> None:
        workflow = Workflow(busy, "busy")
        async with Rig([workflow]) as rig:
            await rig.start(workflow, "a")
            await rig.outcome("a")
            await asyncio.sleep(2)
            assert len(rig.runtime.timers) < DEAD_TIMERS_MAX

    run(main())


def test_records_of_a_run_never_go_back_in_time_although_the_clock_does() -> None:
    async def main() -> None:
        async with Rig(ALL) as rig:
            await rig.start(COUNTS, "a")
            await rig.signal("a", "s")
            rig._first_ms -= 3_600_000
            await rig.signal("a", "s")
            await rig.signal("a", "stop")
            await rig.outcome("a")
            times = [record.at for record in rig.records() if not isinstance(record, r.Acked)]
            assert times == sorted(times)
        async with rig.again(3, now_ms=rig._first_ms) as again:
            await again.signal("a", "stop")
            await again.outcome("a")
            times = [record.at for record in again.records() if not isinstance(record, r.Acked)]
            assert times == sorted(times)

    run(main())


def test_more_runs_than_fit_one_slice_of_work_all_go_on() -> None:
    async def main() -> None:
        async with Rig(ALL) as rig:
            await asyncio.gather(*[rig.start(WAITS, f"w{n}") for n in range(3_000)])
            await asyncio.gather(*[rig.signal(f"w{n}", "s", b"%d" % n) for n in range(3_000)])
            found = await asyncio.gather(*[rig.outcome(f"w{n}") for n in range(3_000)])
            assert [outcome.payload for outcome in found] == [b"%d" % n for n in range(3_000)]

    run(main())
