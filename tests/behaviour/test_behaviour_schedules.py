"""Schedules: D19 to D23, G13; over an engine in memory, one on a directory that is closed and opened again, and a server."""
from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from behaviour_places import Place, run, until
from behaviour_timed import ALL, collected, holds, stamped, tenfold

from fusee_mp import (
    Batch,
    Client,
    NotFound,
    PayloadError,
    Rejected,
    ScheduleSpec,
    UnknownWorkflow,
    Worker,
    schedule_run_id,
    testing,
    workflow,
)
from tests.server.tree import serving

BERLIN, LORD_HOWE = "Europe/Berlin", "Australia/Lord_Howe"
START = datetime(2025, 3, 1, tzinfo=UTC)


def ms(number: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=number)


def hidden(*arguments: Any, **options: Any) -> Any:
    """A spec that no type checker sees."""
    return ScheduleSpec(*arguments, **options)


@pytest.fixture(params=["memory", "embedded"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    yield Place(None if request.param == "memory" else tmp_path / "data")


async def run_ids(engine: Any, type: str) -> list[str]:
    return [status.id for status in await engine.list({"type": type}, limit=10_000)]


async def has_started(handle: Any, count: int) -> Any:
    async def look() -> Any:
        found = await handle.describe()
        return found if found.started >= count else None

    return await until(look)


def test_a_backfill_starts_each_instant_of_an_inclusive_range_once(anywhere: Place) -> None:
    """D19"""
    async def main() -> None:
        async with anywhere.engine(ALL) as engine:
            handle = await engine.schedule("range", ScheduleSpec(workflow=tenfold, input=1, every="1ms", paused=True))
            assert await handle.backfill(ms(1), ms(1001)) == 1001
            assert await handle.backfill(ms(1), ms(1002)) == 1
            assert (await handle.describe()).started == 1002
            await until(lambda: _count_is(engine, "tenfold", 1002))
            assert set(await run_ids(engine, "tenfold")) == {schedule_run_id("range", n) for n in range(1, 1003)}
            with pytest.raises(Rejected, match="first before last"):
                await handle.backfill(ms(5), ms(4))
            with pytest.raises(Rejected, match="at most 100,000"):
                await handle.backfill(ms(0), ms(200_000))

    run(main())


async def _has_at_least(engine: Any, type: str, count: int) -> bool:
    return bool(await engine.count({"type": type}) >= count)


async def _count_is(engine: Any, type: str, count: int) -> bool:
    return bool(await engine.count({"type": type, "status": "ok"}) == count)


def test_an_instant_is_known_when_the_retention_of_its_run_has_ended_and_after_a_restart(lasting: Place) -> None:
    """D20"""
    async def main() -> None:
        async with lasting.engine(ALL, retention="25ms") as engine:
            handle = await engine.schedule("range", ScheduleSpec(workflow=tenfold, input=1, every="1ms", paused=True))
            assert await handle.backfill(ms(1), ms(50)) == 50
            await until(lambda: _is_gone(engine, schedule_run_id("range", 1)))
            assert await handle.backfill(ms(1), ms(51)) == 1
        async with lasting.engine(ALL, retention="25ms") as engine:
            handle = engine.schedule_handle("range")
            assert await handle.backfill(ms(1), ms(52)) == 1
            assert (await handle.describe()).started == 52

    run(main())


async def _is_gone(engine: Any, id: str) -> bool:
    return await engine.status(id) is None


def test_a_schedule_fires_pauses_is_filled_in_and_deleted(anywhere: Place) -> None:
    """D21, D22, D23"""
    async def main() -> None:
        async with anywhere.engine(ALL) as engine:
            spec = ScheduleSpec(workflow=stamped, every="100ms", overlap="allow")
            handle = await engine.schedule("often", spec)
            before = await has_started(handle, 2)
            await engine.schedule("often", spec)  # a second time: it stays one
            assert (await handle.describe()).started >= before.started
            assert [detail.id for detail in await engine.schedules()] == ["often"]
            await handle.pause()
            paused = await handle.describe()
            assert paused.paused and paused.next is None and len(await handle.next_times(3)) == 3
            await asyncio.sleep(0.3)
            assert (await handle.describe()).started == paused.started
            now = datetime.now(UTC)
            filled = await handle.backfill(now - timedelta(seconds=2), now)
            assert filled > 0 and (await handle.describe()).started == paused.started + filled
            await until(lambda: _count_is(engine, "stamped", paused.started + filled))
            ids = await run_ids(engine, "stamped")
            assert len(set(ids)) == len(ids) and all(id.startswith("often@") for id in ids)
            await handle.resume()
            await has_started(handle, paused.started + filled + 1)
            await handle.delete()
            for asked in (handle.describe, handle.pause, handle.resume, handle.trigger, handle.delete):
                with pytest.raises(NotFound, match='no schedule has the ID "often"'):
                    await asked()
            assert await engine.schedules() == []

    run(main())


def test_a_schedule_goes_on_after_a_restart_with_what_it_was(lasting: Place) -> None:
    """D21: over a restart; a pause is one afterwards too."""
    async def main() -> None:
        async with lasting.engine(ALL, shards=3) as engine:
            for id in ("going", "resting"):
                await engine.schedule(id, ScheduleSpec(workflow=stamped, every="50ms"))
            await engine.schedule_handle("resting").pause()
            before = [await has_started(engine.schedule_handle("going"), 1), await engine.schedule_handle("resting").describe()]
        async with lasting.engine(ALL) as engine:
            await has_started(engine.schedule_handle("going"), before[0].started + 2)
            after = await engine.schedule_handle("resting").describe()
            assert (after.started, after.skipped, after.paused) == (before[1].started, before[1].skipped, True)
            ids = await run_ids(engine, "stamped")
            assert len(set(ids)) == len(ids)

    run(main())


def test_an_open_run_is_waited_for_from_another_shard_and_over_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        place = Place(tmp_path / "data")
        async with place.engine(ALL, shards=3) as engine:
            handle = await engine.schedule("one", ScheduleSpec(workflow=holds, every="20ms"))
            open_run = (await until(lambda: _skips(handle))).open[0]
        async with place.engine(ALL) as engine:
            handle = engine.schedule_handle("one")
            with pytest.raises(Rejected, match="overlap policy is to skip"):
                await handle.trigger()
            await engine.handle(open_run).signal("go", 1)
            assert (await has_started(handle, 2)).open[0] != open_run

    run(main())


async def _skips(handle: Any) -> Any:
    found = await handle.describe()
    return found if found.skipped and found.open else None


def test_a_trigger_starts_now_and_its_run_can_be_waited_for(place: Place) -> None:
    async def main() -> None:
        async with place.engine(ALL) as engine:
            handle = await engine.schedule("s", ScheduleSpec(workflow=tenfold, input=4, every="1d", paused=True))
            assert await (await handle.trigger()).result(20) == 40
            held = await engine.schedule("h", ScheduleSpec(workflow=holds, every="1d", overlap="buffer_one"))
            first, second = await held.trigger(), await held.trigger()
            result = asyncio.ensure_future(second.result(20))
            await first.started()
            await first.signal("go", 1)
            await second.started()
            await second.signal("go", 2)
            assert await result == 2

    run(main())


def test_a_new_spec_takes_the_place_of_the_old_one(place: Place) -> None:
    async def main() -> None:
        async with place.engine(ALL) as engine:
            handle = await engine.schedule("s", ScheduleSpec(workflow=holds, every="1h"))
            await engine.schedule("s", ScheduleSpec(workflow=tenfold, input=7, cron="0 2 * * mon-fri", timezone=BERLIN, overlap="allow",
                                                    jitter="1m", catch_up="1h", gap="shift", fold="both"))
            spec = (await handle.describe()).spec
            assert (spec.workflow, spec.input, spec.every, spec.cron, spec.timezone) == ("tenfold", 7, None, "0 2 * * mon-fri", BERLIN)
            assert (spec.overlap, spec.jitter, spec.catch_up) == ("allow", timedelta(minutes=1), timedelta(hours=1))
            assert (spec.gap, spec.fold, spec.paused) == ("shift", "both", False)
            assert all(at.tzinfo == ZoneInfo(BERLIN) and at.hour == 2 for at in await handle.next_times(5))
            assert await (await handle.trigger()).result(20) == 70

    run(main())


@pytest.mark.parametrize("options", [
    {}, {"every": "1s", "cron": "* * * * *"}, {"every": 0}, {"every": "-1s"}, {"cron": "61 * * * *"}, {"cron": 5},
    {"every": "1s", "overlap": "maybe"},
    {"every": "1s", "timezone": "Mars/Base"}, {"cron": "* * * * *", "gap": "jump"}, {"cron": "* * * * *", "fold": "never"},
    {"every": "1s", "paused": "no"}, {"every": "1s", "jitter": "-1s"}, {"every": "1s", "gap": "shift"}, {"every": "1s", "workflow": ""},
])
def test_a_spec_that_cannot_be_is_refused_when_it_is_made(options: dict[str, Any]) -> None:
    with pytest.raises(Rejected):
        hidden(**{"workflow": tenfold, "input": 1, **options})


def test_what_cannot_be_scheduled_is_refused_and_changes_nothing(place: Place) -> None:
    async def main() -> None:
        async with place.engine(ALL) as engine:
            with pytest.raises(UnknownWorkflow):
                await engine.schedule("s", ScheduleSpec(workflow="nobody", every="1s"))
            with pytest.raises(PayloadError):
                await engine.schedule("s", hidden(workflow=tenfold, input="text", every="1s"))
            with pytest.raises(Rejected, match="at most 2,097,152 bytes"):
                await engine.schedule("s", ScheduleSpec(workflow="tenfold", input="x" * (3 << 20), every="1s"))
            wrong: Any = tenfold
            with pytest.raises(Rejected, match="ScheduleSpec"):
                await engine.schedule("s", wrong)
            handle = engine.schedule_handle("s")
            with pytest.raises(Rejected, match="with a zone"):
                await handle.backfill(datetime(2025, 1, 1), datetime(2025, 1, 2))  # noqa: DTZ001
            with pytest.raises(Rejected, match="1 to 1,000"):
                await handle.next_times(0)
            assert await engine.schedules() == []

    run(main())


# Clock changes.


async def _stamps(engine: Any) -> list[str]:
    ids = sorted(await run_ids(engine, "stamped"))
    return [json.loads(await engine.handle(id).result())[0] for id in ids]


@pytest.mark.parametrize(("zone", "cron", "day", "rule", "expected"), [
    (BERLIN, "30 2 * * *", datetime(2025, 3, 30, tzinfo=UTC), {}, []),
    (BERLIN, "30 2 * * *", datetime(2025, 3, 30, tzinfo=UTC), {"gap": "shift"}, ["2025-03-30T03:30:00+02:00"]),
    (BERLIN, "30 2 * * *", datetime(2025, 10, 26, tzinfo=UTC), {}, ["2025-10-26T02:30:00+02:00"]),
    (BERLIN, "30 2 * * *", datetime(2025, 10, 26, tzinfo=UTC), {"fold": "last"}, ["2025-10-26T02:30:00+01:00"]),
    (BERLIN, "30 2 * * *", datetime(2025, 10, 26, tzinfo=UTC), {"fold": "both"}, [
        "2025-10-26T02:30:00+02:00", "2025-10-26T02:30:00+01:00"]),
    (BERLIN, "30 1 * * *", datetime(2025, 10, 25, 23, tzinfo=UTC), {"fold": "both"}, ["2025-10-26T01:30:00+02:00"]),
    (LORD_HOWE, "*/15 2 * * *", datetime(2025, 10, 4, 15, tzinfo=UTC), {}, ["2025-10-05T02:30:00+11:00", "2025-10-05T02:45:00+11:00"]),
    (LORD_HOWE, "*/15 1 * * *", datetime(2025, 4, 5, 14, tzinfo=UTC), {"fold": "both"}, [
        "2025-04-06T01:00:00+11:00", "2025-04-06T01:15:00+11:00", "2025-04-06T01:30:00+11:00", "2025-04-06T01:45:00+11:00",
        "2025-04-06T01:30:00+10:30", "2025-04-06T01:45:00+10:30"]),
    ("America/Havana", "0 0 * * *", datetime(2025, 3, 9, 4, tzinfo=UTC), {"gap": "shift"}, ["2025-03-09T01:00:00-04:00"]),
])
def test_local_times_that_clocks_skip_or_repeat_follow_the_rule_live_in_advance_and_in_a_backfill(
    zone: str, cron: str, day: datetime, rule: dict[str, Any], expected: list[str],
) -> None:
    """G13"""
    def spec(paused: bool) -> ScheduleSpec[None]:
        return ScheduleSpec(workflow=stamped, cron=cron, timezone=zone, overlap="allow", paused=paused, **rule)

    async def main() -> None:
        async with testing.engine(workflows=ALL, at=day - timedelta(minutes=1)) as engine:
            handle = await engine.schedule("dst", spec(paused=False))
            seen = [at.isoformat() for at in await handle.next_times(10) if at < day + timedelta(hours=5)]
            await engine.skip("5h")
            assert await _stamps(engine) == seen == expected
        async with testing.engine(workflows=ALL, at=day - timedelta(minutes=1)) as engine:
            handle = await engine.schedule("dst", spec(paused=True))
            assert await handle.backfill(day, day + timedelta(hours=5)) == len(expected)
            await engine.skip("1s")
            assert await _stamps(engine) == expected

    asyncio.run(main())


def test_a_nightly_workflow_sees_the_instant_in_the_zone_of_its_schedule() -> None:
    @workflow("nightly")
    async def nightly(ctx: Any) -> str:
        await ctx.sleep("1h")
        return f"{ctx.scheduled_at:%A %H:%M} {ctx.scheduled_at.tzinfo}"

    async def main() -> None:
        async with testing.engine(workflows=[nightly], at=START) as engine:
            handle = await engine.schedule("n", ScheduleSpec(workflow=nightly, every="1d", timezone="Asia/Tokyo"))
            await engine.skip("1d")
            run_id = schedule_run_id("n", START + timedelta(days=1))
            assert await engine.handle(run_id).result() == "Sunday 09:00 Asia/Tokyo"
            assert (await handle.describe()).started == 1

    asyncio.run(main())


# Over a server.


def test_schedules_work_over_a_server_and_keep_firing_after_a_takeover(tmp_path: Path) -> None:
    """D21 to D23, C15, C17: with a new holder of the shards."""
    async def main() -> None:
        with serving(tmp_path / "data", shards=2) as tree:
            async with Client.connect(tree.address) as client:
                async with Worker.connect(tree.address, workflows=ALL) as worker:
                    handle = await worker.engine.schedule("s", ScheduleSpec(workflow=stamped, every="50ms", timezone=BERLIN))
                    for id in ("t", "u"):
                        await client.schedule(id, ScheduleSpec(workflow="tenfold", input=3, every="1ms", paused=True))
                    assert await client.schedule_handle("t").backfill(ms(1), ms(1200)) == 1200
                    before = await has_started(handle, 2)
                    assert [detail.id for detail in await client.schedules()] and before.spec.workflow == "stamped"
                async with Worker.connect(tree.address, workflows=ALL):
                    again = client.schedule_handle("s")
                    assert len(await again.next_times(3)) == 3
                    after = await has_started(again, before.started + 2)
                    assert await client.schedule_handle("t").backfill(ms(1), ms(1201)) == 1
                    assert await (await client.schedule_handle("u").trigger()).result(20) == 30
                    await again.delete()
                    with pytest.raises(NotFound):
                        await again.describe()
                    await until(lambda: _has_at_least(client, "stamped", after.started))
                    ids = await run_ids(client, "stamped")
                    assert len(set(ids)) == len(ids)

    run(main())


def test_nothing_is_lost_or_started_twice_when_the_whole_server_is_killed(tmp_path: Path) -> None:
    async def main() -> None:
        with serving(tmp_path / "data", shards=2) as tree:
            async with Client.connect(tree.address) as client, Worker.connect(tree.address, workflows=ALL):
                handle = await client.schedule("s", ScheduleSpec(workflow=stamped, every="20ms", overlap="allow", catch_up="1h"))
                events = [await client.batch(collected, "k", n, Batch(5, "500ms"), event_id=f"event-{n}") for n in range(7)]
                for _ in range(2):
                    before = await has_started(handle, (await handle.describe()).started + 3)
                    await asyncio.to_thread(tree.restart)
                    await has_started(handle, before.started + 3)
                await handle.pause()
                shown = await handle.describe()
                await until(lambda: _count_is(client, "stamped", shown.started))
                ids = await run_ids(client, "stamped")
                instants = sorted(int(id.partition("@")[2]) for id in ids)
                assert instants == list(range(instants[0], instants[-1] + 20, 20)) and shown.skipped == 0
                results = {each.id: await each.result(20) for each in events}
                assert sorted(n for result in results.values() for n in result) == list(range(7))

    run(main())
