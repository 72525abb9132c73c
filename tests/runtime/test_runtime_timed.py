"""Schedules and windows on a runtime that crashes after any record: each instant once, each event in one run, each request one answer."""
from __future__ import annotations

import asyncio
from typing import Any

import pytest
from runtime_rig import BEGIN_MS, Rig
from runtime_warp import run

from fusee_mp import AlreadyExists, NotFound, Rejected, StorageError, StorageFull, UnknownWorkflow, Workflow
from fusee_mp.core import records as r
from fusee_mp.core.schedule import Schedule, ScheduleRule, run_id
from fusee_mp.core.time_calls import BackfillCall, ChangeScheduleCall, GatherCall, ScheduleCall, SetScheduleCall
from fusee_mp.core.timing import CronTime, Every
from fusee_mp.core.windows import BatchRule, DebounceRule

EVERY_S = ScheduleRule(Every(1_000))


async def tick(ctx: Any) -> str:
    await ctx.sleep("1.5s")
    return str(ctx.scheduled_at)


async def quick(ctx: Any, given: Any) -> Any:
    return given


async def waits(ctx: Any) -> int:
    return int(await ctx.wait_for("go"))


WORKFLOWS: list[Workflow[Any, Any]] = [Workflow(tick), Workflow(quick), Workflow(waits)]


async def schedule(rig: Rig, id: str = "s", type: str = "tick", rule: ScheduleRule = EVERY_S, request: str = "set") -> None:
    await rig.call(SetScheduleCall(id, type, b"null", "UTC", rule, request))


async def look(rig: Rig, id: str = "s") -> Any:
    return await rig.call(ScheduleCall(id))


def starts(rig: Rig, of: str = "s@") -> list[str]:
    return [record.id for record in rig.records() if isinstance(record, r.Start) and record.id.startswith(of)]


def test_a_crash_after_any_record_starts_each_instant_once_and_loses_no_acknowledged_event() -> None:
    async def live() -> list[bytes]:
        async with Rig(WORKFLOWS) as rig:
            await schedule(rig)
            for number in range(4):
                await rig.call(GatherCall("quick", "d", DebounceRule(700), b"%d" % number, None, f"d{number}"))
                await rig.call(GatherCall("quick", "b", BatchRule(3, 900), b"%d" % number, f"e{number}", f"b{number}"))
            await asyncio.sleep(4.2)
            return rig.log

    async def again(log: list[bytes], first: int) -> None:
        async with Rig(WORKFLOWS, log[:first]) as rig:
            await asyncio.sleep(6.3)
            ids = [record.id for record in rig.records() if isinstance(record, r.Start)]
            assert len(ids) == len(set(ids))
            gathered = [record for record in rig.records() if isinstance(record, r.Gathered)]
            assert {record.window for record in gathered} == {id for id in ids if not id.startswith("s@")}
            for window in {record.window for record in gathered}:
                inputs = [record.input for record in gathered if record.window == window]
                whole = b"[" + b",".join(inputs) + b"]" if gathered[0].key == "b" or window[0] == "b" else inputs[-1]
                assert (await rig.outcome(window)).payload == whole
            if any(isinstance(record, r.ScheduleSet) for record in rig.records()):
                shown = await look(rig)
                assert shown.started == len(starts(rig)) >= 3
                assert shown.started + shown.skipped == (rig.clock() - BEGIN_MS) // 1_000

    log = run(live())
    assert {"schedule", "schedule_moved", "gathered", "windows_closed", "start", "done"} <= {r.KIND[type(r.decode(data))] for data in log}
    for first in range(1, len(log) + 1):
        run(again(log, first))


def test_the_run_of_an_instant_that_was_recorded_starts_though_the_crash_came_before_its_message() -> None:
    async def main() -> None:
        async with Rig(WORKFLOWS) as rig:
            await schedule(rig)
            await rig.until(lambda: "schedule_moved" in rig.kinds())
        moved = rig.kinds().index("schedule_moved")
        async with rig.again(moved + 1) as after:
            assert not starts(after)
            await after.until(lambda: starts(after))
            assert starts(after) == [run_id("s", BEGIN_MS + 1_000)]

    run(main())


def test_repeats_of_a_request_get_the_first_answer_and_change_nothing_across_a_crash() -> None:
    calls: list[Any] = [
        ChangeScheduleCall("s", "trigger", "t"), GatherCall("quick", "d", DebounceRule(700), b"1", None, "g"),
        BackfillCall("s", BEGIN_MS - 5_000, BEGIN_MS, "f"), ChangeScheduleCall("s", "pause", "p"), ChangeScheduleCall("s", "delete", "x"),
    ]

    async def main() -> None:
        async with Rig(WORKFLOWS) as rig:
            await schedule(rig)
            first = [await rig.call(call) for call in calls]
            rig.flush()
        count = len([kind for kind in rig.kinds() if kind in ("schedule_moved", "gathered", "schedule_deleted")])
        async with rig.again() as after:
            for call in calls:
                call.repeat = True
            assert [await after.call(call) for call in calls] == first
            assert first[2] == 5 and first[0] in starts(after)  # the trigger had the sixth instant
            assert len([kind for kind in after.kinds() if kind in ("schedule_moved", "gathered", "schedule_deleted")]) == count

    run(main())


def test_a_backfill_goes_on_where_a_crash_cut_it_off() -> None:
    paused = ScheduleRule(Every(1), paused=True)
    wanted = BackfillCall("s", 1, 2_500, "fill")

    async def main() -> None:
        async with Rig(WORKFLOWS) as rig:
            await schedule(rig, type="quick", rule=paused)
            rig.is_disk_stuck = True
            waiting = asyncio.ensure_future(rig.call(wanted))
            await rig.until(lambda: "schedule_moved" in rig.kinds())
            waiting.cancel()
        async with rig.again() as after:
            wanted.repeat = True
            assert await after.call(wanted) == 2_500
            await after.until(lambda: len(starts(after)) == 2_500)
            assert sorted(starts(after)) == sorted(run_id("s", ms) for ms in range(1, 2_501))
            assert (await look(after)).started == 2_500

    run(main())


def test_an_instant_is_remembered_when_nothing_of_its_run_is_left() -> None:
    """D20"""
    paused = ScheduleRule(Every(1), paused=True)

    async def main() -> None:
        async with Rig(WORKFLOWS) as rig:
            await schedule(rig, type="quick", rule=paused)
            assert await rig.call(BackfillCall("s", 1, 20, "f1")) == 20
            await rig.until(lambda: rig.kinds().count("done") == 20)
            await asyncio.sleep(0.1)
        gone = [r.encode(r.Deleted(record.run, record.at)) for record in rig.records() if isinstance(record, r.Done)]
        async with Rig(WORKFLOWS, [*rig.log, *gone]) as after:
            assert after._read_store("find", (run_id("s", 1),)) is None
            assert await after.call(BackfillCall("s", 1, 21, "f2")) == 1
            await after.until(lambda: len(starts(after)) == 21)
            assert starts(after)[-1] == run_id("s", 21) and (await look(after)).started == 21

    run(main())


@pytest.mark.parametrize(("overlap", "ended"), [("cancel", "cancelled"), ("terminate", "terminated")])
def test_a_run_that_is_in_the_way_is_ended_and_the_next_starts_after_it(overlap: Any, ended: str) -> None:
    async def main() -> None:
        async with Rig(WORKFLOWS) as rig:
            await schedule(rig, type="waits", rule=ScheduleRule(Every(1_000), overlap))
            await asyncio.sleep(2.5)
            first, second = starts(rig)
            outcome = await rig.outcome(first)
            assert (outcome.status, outcome.reason) == (ended, 'the next run of schedule "s" is due')
            assert (await look(rig)).open == [second] and rig.status(second) != ended

    run(main())


def test_one_instant_is_remembered_over_a_crash_and_starts_when_the_open_run_ends() -> None:
    async def main() -> None:
        async with Rig(WORKFLOWS) as rig:
            await schedule(rig, type="waits", rule=ScheduleRule(Every(1_000), "buffer_one"))
            await asyncio.sleep(3.2)
            assert len(starts(rig)) == 1
        async with rig.again() as after:
            await after.signal(starts(after)[0], "go", b"1")
            await after.until(lambda: len(starts(after)) == 2)
            assert starts(after)[1] == run_id("s", BEGIN_MS + 2_000)
            assert (await look(after)).skipped >= 1

    run(main())


def test_downtime_is_made_up_as_far_as_the_catch_up_window_reaches() -> None:
    async def main() -> None:
        async with Rig(WORKFLOWS) as rig:
            await schedule(rig, type="quick", rule=ScheduleRule(Every(1_000), "allow", catch_up_ms=10_000))
        async with rig.again(now_ms=BEGIN_MS + 3_600_500) as after:
            await after.until(lambda: starts(after))
            await asyncio.sleep(0.3)
            assert starts(after) == [run_id("s", BEGIN_MS + 3_600_000 - ms) for ms in range(9_000, -1, -1_000)]

    run(main())


def test_nothing_starts_while_the_disk_has_no_room_and_what_was_due_starts_then() -> None:
    async def main() -> None:
        async with Rig(WORKFLOWS) as rig:
            await schedule(rig, type="quick", rule=ScheduleRule(Every(1_000), "allow"))
            rig.refusal = "the disk is full"
            await asyncio.sleep(3.5)
            assert not starts(rig)
            for call in (ChangeScheduleCall("s", "trigger", "t"), GatherCall("quick", "d", DebounceRule(1), b"1", None, "g")):
                with pytest.raises(StorageFull):
                    await rig.call(call)
            rig.refusal = ""
            await asyncio.sleep(1.2)
            assert starts(rig) == [run_id("s", BEGIN_MS + ms) for ms in range(1_000, 5_000, 1_000)]

    run(main())


def test_a_schedule_that_cannot_be_read_here_says_so_and_stops_no_other() -> None:
    timing = CronTime("* * * * *")
    state = Schedule("mars", ScheduleRule(timing), BEGIN_MS).now
    lost = CronTime("* * * * *", "Mars/Base")
    state.rule, state.history.now.timing = ScheduleRule(lost), lost
    log = [r.encode(r.ScheduleSet(BEGIN_MS, "mars", "quick", b"null", "Mars/Base", state))]

    async def main() -> None:
        async with Rig(WORKFLOWS, log) as rig:
            await schedule(rig)
            for call in (ScheduleCall("mars"), ChangeScheduleCall("mars", "pause", "p"),
                         SetScheduleCall("mars", "quick", b"1", "UTC", EVERY_S, "again")):
                with pytest.raises(StorageError, match="Mars/Base"):
                    await rig.call(call)
            await rig.until(lambda: starts(rig))
            await rig.call(ChangeScheduleCall("mars", "delete", "x"))
            with pytest.raises(NotFound, match="mars"):
                await rig.call(ScheduleCall("mars"))

    run(main())


def test_a_run_without_code_is_started_and_set_aside_until_the_code_comes() -> None:
    async def main() -> None:
        async with Rig(WORKFLOWS) as rig:
            await schedule(rig)
        async with Rig([WORKFLOWS[1]], rig.log) as without:
            await without.until(lambda: "quarantined" in without.kinds())
            with pytest.raises(UnknownWorkflow):
                await schedule(without, "other", request="other")
        async with Rig(WORKFLOWS, without.log) as after:
            assert (await after.outcome(starts(after)[0])).status == "ok"

    run(main())


def test_an_id_that_somebody_took_is_reported_and_the_schedule_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with Rig(WORKFLOWS) as rig:
            await schedule(rig)
            await rig.call(GatherCall("quick", "d", DebounceRule(900), b"1", None, "g"))
            await rig.start(WORKFLOWS[2], run_id("s", BEGIN_MS + 1_000))
            await rig.until(lambda: len(starts(rig)) == 2)
            assert starts(rig)[1] == run_id("s", BEGIN_MS + 2_000)

    run(main())
    assert "the ID is taken by run 1" in caplog.text
    assert AlreadyExists.code == "already_exists"


def test_a_schedule_and_a_window_never_share_the_form_of_their_ids() -> None:
    async def main() -> None:
        async with Rig(WORKFLOWS) as rig:
            await schedule(rig)
            with pytest.raises(Rejected, match="is the ID of a schedule"):
                await rig.call(GatherCall("quick", "s", DebounceRule(1), b"1", None, "g1"))
            await rig.call(GatherCall("quick", "d", DebounceRule(900), b"1", None, "g2"))
            with pytest.raises(Rejected, match="window of this key is open"):
                await schedule(rig, "d", request="again")

    run(main())


def test_a_schedule_that_has_run_for_long_writes_little_for_each_start() -> None:
    async def main() -> None:
        async with Rig(WORKFLOWS) as rig:
            await schedule(rig)
            await asyncio.sleep(600)
            sizes = [len(data) for data in rig.log if isinstance(r.decode(data), r.ScheduleMoved)]
            assert len(sizes) > 500 and max(sizes[-100:]) < 150

    run(main())


def test_an_event_id_is_answered_after_its_window_closed_and_after_a_crash_too() -> None:
    event = GatherCall("quick", "b", BatchRule(2, 60_000), b"1", "first", "g1")

    async def main() -> None:
        async with Rig(WORKFLOWS) as rig:
            window = await rig.call(event)
            await rig.call(GatherCall("quick", "b", BatchRule(2, 60_000), b"2", None, "g2"))
            assert (await rig.outcome(window)).payload == b"[1,2]"
        async with rig.again() as after:
            event.request = "g3"
            assert await after.call(event) == window
            assert after.kinds().count("gathered") == 2
            event.event, event.request = "other", "g4"
            assert await after.call(event) != window

    run(main())
