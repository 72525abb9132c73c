"""Updates behind a crash after every record: the same code sees the same, and whoever asks again gets the first answer."""
from __future__ import annotations

import asyncio
from typing import Any

import pytest
from runtime_rig import Rig, turns
from runtime_warp import run

from fusee_mp import Rejected, Unavailable, Workflow
from fusee_mp.core import records as r
from fusee_mp.core.calls import Outcome, QueryCall, StartWithUpdateCall, UpdateCall
from fusee_mp.errors import FuseeError

TRACE: list[str] = []


async def double(n: int) -> int:
    return 2 * n


async def busy(ctx: Any, start: int) -> int:
    """Handlers and main interleave steps, timers, tasks and a lock."""
    total, lock = start, asyncio.Lock()
    TRACE.clear()

    async def add(n: int) -> int:
        nonlocal total
        TRACE.append(f"add {n} begins at {total}")
        async with lock:
            doubled = await ctx.step("double", double, n)
            await asyncio.gather(ctx.sleep(1 + n % 3), ctx.step("again", double, doubled))
            total += doubled
        TRACE.append(f"add {n} ends at {total}")
        return total

    def check(n: int) -> None:
        if n == 0:
            raise ValueError("nothing to add")

    ctx.on_update("add", add, check)
    ctx.on_query("total", lambda: total)
    await ctx.wait_until(lambda: total >= start + 20)
    TRACE.append(f"main ends at {total}")
    await ctx.step("end", double, total)
    return total


BUSY = Workflow(busy, "busy")


async def update(rig: Rig, n: int) -> Outcome:
    found: Outcome = await rig.call(UpdateCall("a", "add", b"%d" % n, f"u-{n}", f"r-{n}-{len(rig.log)}-{id(rig)}"))
    return found


async def live() -> tuple[Rig, list[Outcome]]:
    async with Rig([BUSY]) as rig:
        first = asyncio.create_task(rig.call(StartWithUpdateCall("a", "busy", b"100", "add", b"1", "u-1", "r-1")))
        await rig.until(lambda: rig.log)
        outcomes = await asyncio.gather(first, *[update(rig, n) for n in (2, 3, 4)])
        await rig.outcome("a")
        return rig, outcomes


def test_a_crash_behind_any_record_changes_no_answer_that_was_given() -> None:
    async def main() -> None:
        rig, outcomes = await live()
        trace, records = list(TRACE), rig.records()
        assert [outcome.status for outcome in outcomes] == ["ok"] * 4
        for kept in range(1, len(records) + 1):
            accepted = {record.id for record in records[:kept] if isinstance(record, r.Update)}
            answered = {record.id: record.payload for record in records[:kept] if isinstance(record, r.UpdateDone)}
            async with rig.again(kept) as again:
                found = await asyncio.gather(*[update(again, n) for n in (1, 2, 3, 4)])
                assert (await again.outcome("a")).payload == b"120", again.kinds()
                for n, outcome in enumerate(found, 1):
                    assert outcome.status == "ok" and answered.get(f"u-{n}", outcome.payload) == outcome.payload
                ids = [record.id for record in again.records() if isinstance(record, r.Update)]
                assert sorted(ids) == ["u-2", "u-3", "u-4"] and accepted <= set(ids)
                journal = [record for record in again.records() if not isinstance(record, r.Quiet)]
                mine = [record for record in records[:kept] if not isinstance(record, r.Quiet)]
                assert journal[: len(mine)] == mine
            if kept == len(records):
                assert trace == list(TRACE) or not TRACE

    run(main())


def test_a_query_of_what_has_ended_replays_apart_and_records_nothing() -> None:
    async def main() -> None:
        rig, _ = await live()
        trace = list(TRACE)
        async with rig.again() as again:
            TRACE.clear()
            size = len(again.log)
            assert (await again.call(QueryCall("a", "total", b"null"))).payload == b"120"
            assert trace == TRACE and len(again.log) == size and not again.runtime.by_number

    run(main())


def test_answers_wait_for_the_disk() -> None:
    async def main() -> None:
        async with Rig([BUSY]) as rig:
            await rig.start(BUSY, "a", 100)
            rig.is_disk_stuck = True
            calls = [
                asyncio.create_task(rig.call(call)) for call in (
                    UpdateCall("a", "add", b"0", "u-0", "r-0"), UpdateCall("a", "add", b"2", "u-2", "r-2"),
                    QueryCall("a", "total", b"null"), UpdateCall("a", "gone", b"0", "u-3", "r-3"),
                )]
            await turns(50)
            done = [call.done() for call in calls]
            # The refusal before the update rests on the start alone, which is on disk; what follows rests on the update.
            assert done == [True, False, False, False] and isinstance(calls[0].exception(), Rejected)
            rig.is_disk_stuck = False
            rig.flush()
            assert (await calls[2]).payload == b"100" and isinstance(await asyncio.wait_for(asyncio.shield(_error(calls[3])), 9), Rejected)
            assert (await calls[1]).payload == b"104"

    run(main())


async def _error(call: asyncio.Task[Any]) -> BaseException | None:
    await asyncio.wait([call])
    return call.exception()


def test_who_waits_is_told_when_the_shard_leaves() -> None:
    async def main() -> None:
        async with Rig([BUSY]) as rig:
            await rig.start(BUSY, "a", 100)
            rig.is_disk_stuck = True
            calls = [asyncio.create_task(rig.call(call)) for call in (
                UpdateCall("a", "add", b"2", "u-2", "r-2"), UpdateCall("a", "add", b"2", "u-2", "r-9"), QueryCall("a", "total", b"null"))]
            await turns(50)
            rig.runtime.close(Unavailable("it leaves"))
            assert all(isinstance(error, FuseeError) for error in [await _error(call) for call in calls])

    run(main())


def test_a_request_that_was_accepted_before_a_takeover_is_not_accepted_again() -> None:
    """The caller's retry is marked as a repeat: its request leads to the run that has it, also when another bears the ID by then."""
    async def main() -> None:
        rig, outcomes = await live()
        async with rig.again() as again:
            await again.start(BUSY, "a", 100)
            for n, outcome in enumerate(outcomes, 1):
                request = next(x.request for x in rig.records() if isinstance(x, r.Update) and x.id == f"u-{n}") if n > 1 else "r-1"
                repeated = await again.call(UpdateCall("a", "add", b"9", f"u-{n}", request, True))
                assert repeated == outcome
            assert again.records()[-1] != rig.records()[-1] and not any(isinstance(x, r.Update) for x in again.records()[len(rig.log):])

    run(main())


async def deaf(ctx: Any, start: int) -> int:
    await ctx.sleep(1)
    return start


async def other(ctx: Any, start: int) -> int:
    async def add(n: int) -> int:
        return n

    ctx.on_update("add", add)
    await ctx.wait_until(lambda: False)
    return 0


@pytest.mark.parametrize(("code", "words"), [(deaf, ""), (other, "answer")])
def test_code_that_treats_an_accepted_update_otherwise_is_set_aside(code: Any, words: str) -> None:
    async def main() -> None:
        rig, _ = await live()
        kept = next(i for i, record in enumerate(rig.records()) if isinstance(record, r.UpdateDone)) + 1
        changed = Rig([Workflow(code, "busy")], rig.log[:kept])
        async with changed:
            await changed.until(lambda: "quarantined" in changed.kinds())
            with pytest.raises(Rejected, match="quarantined"):
                await changed.call(QueryCall("a", "total", b"null"))
            said = next(record.message for record in changed.records() if isinstance(record, r.Quarantined))
            assert words in said
        async with Rig([BUSY], changed.log) as again:
            assert (await again.call(UpdateCall("a", "add", b"1", "u-1", "r-99"))).status == "ok"

    run(main())
