"""Completions, pauses and heartbeats, with a crash behind every record: nothing is sent twice that was sent, no token changes its
meaning, no attempt is forgotten."""
from __future__ import annotations

import asyncio
from typing import Any

from runtime_rig import Rig
from runtime_warp import run

from fusee_mp import Rejected, Retry, current_step
from fusee_mp.core import records as r
from fusee_mp.core.calls import CompleteCall, PauseCall, ResumeCall
from fusee_mp.core.token import read_token
from fusee_mp.sdk.definitions import Workflow

SENT: list[tuple[int, str]] = []
ATTEMPTS: list[tuple[int, Any]] = []


async def send(token: str) -> None:
    SENT.append((current_step().attempt, token))
    await asyncio.sleep(0.01)
    if current_step().attempt == 1:
        raise ValueError("the post is closed")


async def asks(ctx: Any) -> str:
    answer = await ctx.completion("ask", send, returns=str, timeout="1h", retry=Retry(attempts=3, initial="1s"))
    await ctx.sleep("1s")
    return str(answer)


async def complete(rig: Rig, token: str, value: bytes = b'"yes"', request: str = "") -> None:
    said = read_token(token)
    await rig.call(CompleteCall(said.id, said.run, said.op, said.attempt, said.seal, "ok", value, request or rig._request()))


def tokens(log: list[bytes]) -> list[int]:
    return [record.attempt for record in map(r.decode, log) if isinstance(record, r.Awaiting) and not record.sent]


def test_whatever_a_crash_leaves_of_a_completion_the_last_token_sent_completes_it() -> None:
    asking = Workflow(asks, "asks")

    async def first() -> tuple[list[bytes], list[tuple[int, str]]]:
        SENT.clear()
        async with Rig([asking]) as rig:
            await rig.start(asking, "a")
            await rig.until(lambda: "awaiting" in rig.kinds() and r.Awaiting in map(type, rig.records()) and any(
                isinstance(record, r.Awaiting) and record.sent for record in rig.records()))
            await complete(rig, SENT[-1][1])
            assert (await rig.outcome("a")).payload == b'"yes"'
        return rig.log, list(SENT)

    async def again(log: list[bytes], handed_out: dict[int, str]) -> None:
        SENT.clear()
        records = [r.decode(data) for data in log]
        was_sent = any(isinstance(record, r.Awaiting) and record.sent for record in records)
        is_done = any(isinstance(record, r.Completed) for record in records)
        async with Rig([asking], log) as rig:
            if not is_done:
                await rig.until(lambda: any(isinstance(record, r.Awaiting) and record.sent for record in rig.records()))
                good = max(tokens(rig.log))
                for attempt, token in {**handed_out, **dict(SENT)}.items():
                    if attempt < good:
                        await refused(rig, token, "stale")
                await complete(rig, dict(SENT).get(good) or handed_out[good])
            assert (await rig.outcome("a")).payload == b'"yes"'
            await refused(rig, handed_out[2], "ended")
        assert not (was_sent or is_done) or SENT == []  # a token that was sent is not sent again
        assert all(handed_out.get(attempt, token) == token for attempt, token in SENT)

    log, sent = run(first())
    assert [attempt for attempt, _ in sent] == [1, 2]
    start = next(at for at, data in enumerate(log) if isinstance(r.decode(data), r.Start))
    for cut in range(start + 1, len(log) + 1):
        run(again(log[:cut], dict(sent)))


async def refused(rig: Rig, token: str, words: str) -> None:
    try:
        await complete(rig, token)
    except Rejected as e:
        assert words in e.message
    else:
        raise AssertionError(f"the token was taken, and is {words}")


async def work() -> str:
    here = current_step()
    ATTEMPTS.append((here.attempt, here.progress(int)))
    here.heartbeat(here.attempt)
    await asyncio.sleep(0.2)
    if here.attempt < 5:
        raise ValueError("not yet")
    return "done"


async def tries(ctx: Any) -> str:
    return str(await ctx.step("work", work, retry=Retry(attempts=3, initial="1s")))


def test_whatever_a_crash_leaves_a_paused_run_waits_and_a_resumed_one_has_all_its_attempts_again() -> None:
    trying = Workflow(tries, "tries", on_exhausted="pause")

    async def play(log: list[bytes] | None, first_cut: bool) -> list[bytes]:
        ATTEMPTS.clear()
        async with Rig([trying], log or []) as rig:
            if log is None:
                await rig.start(trying, "a")
            while not (rig.runtime.by_id.get("a") is None or rig.status("a") == "ok"):
                if rig.status("a") == "paused":
                    seen = list(ATTEMPTS)
                    await asyncio.sleep(100)  # of the loop's seconds: nothing begins by itself
                    assert seen == ATTEMPTS and rig.status("a") == "paused"
                    await rig.call(ResumeCall("a", rig._request()))
                await asyncio.sleep(0.05)
            assert (await rig.outcome("a")).payload == b'"done"'
        return rig.log

    log = run(play(None, True))
    assert ATTEMPTS == [(1, None), (2, 1), (3, 2), (4, 3), (5, 4)]
    kinds = [r.KIND[type(r.decode(data))] for data in log]
    assert kinds.count("attempt") == 4 and kinds.count("paused") == kinds.count("resumed") == 1 and kinds.count("heartbeat") == 5
    for cut in range(kinds.index("start") + 1, len(log)):
        whole = run(play(log[:cut], False))
        made = [record.attempt for record in map(r.decode, whole) if isinstance(record, r.Attempt)]
        assert made == [1, 2, 3, 4], f"cut behind {kinds[:cut]}"
        known = [record.attempt for record in map(r.decode, log[:cut]) if isinstance(record, (r.Attempt, r.Heartbeat))]
        if ATTEMPTS and known:
            assert ATTEMPTS[0][1] == max(known)


def test_a_paused_run_holds_its_steps_and_is_quiet_also_when_it_is_loaded_again() -> None:
    async def waits(ctx: Any) -> str:
        await ctx.wait_for("go")
        return str(await ctx.step("say", say))

    async def say() -> str:
        SENT.append((0, "said"))
        return "said"

    waiting = Workflow(waits, "waits")

    async def main() -> None:
        SENT.clear()
        async with Rig([waiting], park_after_ms=500) as rig:
            await rig.start(waiting, "w")
            await rig.call(PauseCall("w", "", "p"))
            await rig.signal("w", "go")
            await rig.until(lambda: "w" not in rig.runtime.by_id, "parked")
            assert rig.status("w") == "paused" and SENT == []
        async with rig.again(park_after_ms=500) as rig:
            await asyncio.sleep(10)
            assert rig.status("w") == "paused" and SENT == []
            await rig.call(ResumeCall("w", "r"))
            assert (await rig.outcome("w")).payload == b'"said"'

    run(main())


def test_a_signal_that_arrives_while_the_pause_is_not_durable_starts_no_step() -> None:
    async def waits(ctx: Any) -> str:
        await ctx.wait_for("go")
        return str(await ctx.step("say", say))

    async def say() -> str:
        SENT.append((0, "said"))
        return "said"

    waiting = Workflow(waits, "waits")

    async def main() -> None:
        SENT.clear()
        async with Rig([waiting]) as rig:
            await rig.start(waiting, "w")
            asking = asyncio.gather(rig.call(PauseCall("w", "", "p")), rig.signal("w", "go"), rig.call(ResumeCall("w", "r1")),
                                    rig.call(PauseCall("w", "", "p2")))
            await asking
            await asyncio.sleep(1)
            assert len(SENT) <= 1
            await rig.call(ResumeCall("w", "r2"))
            await rig.outcome("w")
            assert len(SENT) == 1  # whatever the order, never two bodies

    run(main())
