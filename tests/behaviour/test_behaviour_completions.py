"""Completions: a sender hands out a token, and whoever has the good one decides."""
from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from behaviour_places import Place, has_status, run, until

from fusee_mp import Ctx, PayloadError, Rejected, Retry, StepFailed, workflow
from fusee_mp.core.token import PREFIX

TOKENS: list[str] = []
TROUBLE: list[Exception] = []
GATE: list[asyncio.Event] = []


class Declined(Exception):
    def __init__(self, *, code: int) -> None:
        super().__init__(f"declined with {code}")
        self.code = code


@pytest.fixture(autouse=True)
def nothing_sent() -> None:
    TOKENS.clear()
    TROUBLE.clear()
    GATE.clear()


@pytest.fixture(params=["memory", "embedded"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return Place(None if request.param == "memory" else tmp_path / "data")


async def send(token: str) -> None:
    TOKENS.append(token)
    if GATE:
        await GATE[0].wait()
    if TROUBLE:
        raise TROUBLE.pop()


@workflow
async def approval(ctx: Ctx) -> bool:
    return await ctx.completion("approve", send, returns=bool, retry=Retry(attempts=3, initial="1ms"))


@dataclass
class Verdict:
    granted: bool
    by: str


@workflow
async def judged(ctx: Ctx) -> str:
    verdict = await ctx.completion("judge", send, returns=Verdict)
    return f"{verdict.granted} {verdict.by}"


@workflow
async def impatient(ctx: Ctx) -> str:
    try:
        return await ctx.completion("answer", send, returns=str, timeout="200ms")
    except TimeoutError as e:
        await ctx.wait_for("end")
        return str(e)


@workflow
async def careful(ctx: Ctx) -> list[Any]:
    try:
        return [await ctx.completion("charge", send, returns=int)]
    except Declined as e:
        return [e.code, type(e.__cause__).__name__]
    except StepFailed as e:
        return [e.message, "StepFailed"]


async def refused(engine: Any, token: str, words: str, value: Any = True) -> None:
    with pytest.raises(Rejected, match=words):
        await asyncio.wait_for(engine.complete(token, value), 5)


def test_a_failed_sender_is_called_again_with_a_new_token_and_only_that_is_good(anywhere: Place) -> None:
    """D12, D13"""
    async def main() -> None:
        TROUBLE.append(ValueError("the post is closed"))
        async with anywhere.engine([approval]) as engine:
            handle = await engine.start(approval, "a")
            await until(lambda: len(TOKENS) == 2)
            assert len(set(TOKENS)) == 2
            await refused(engine, TOKENS[0], "the token is stale")
            await engine.complete(TOKENS[1], True)
            assert await handle.result() is True
            await refused(engine, TOKENS[1], "has ended as ok")

    run(main())


def test_tokens_keep_their_meaning_across_a_restart_with_the_run_parked(lasting: Place) -> None:
    """D13"""
    async def main() -> None:
        TROUBLE.append(ValueError("the post is closed"))
        async with lasting.engine([approval], park_after="10ms") as engine:
            await engine.start(approval, "a")
            await has_status(engine, "a", "parked")
            assert len(TOKENS) == 2
        async with lasting.engine([approval], park_after="10ms") as engine:
            await refused(engine, TOKENS[0], "the token is stale")
            await engine.complete(TOKENS[1], True)
            await refused(engine, TOKENS[1], "used|ended")
            assert await engine.handle("a", approval).result() is True
        async with lasting.engine([approval]) as engine:
            await refused(engine, TOKENS[1], "has ended as ok")
        assert len(TOKENS) == 2  # the sender was not called again

    run(main())


def test_a_stop_while_the_token_is_sent_sends_the_same_token_again(tmp_path: Path) -> None:
    async def main() -> None:
        GATE.append(asyncio.Event())
        async with Place(tmp_path / "data").engine([approval]) as engine:
            await engine.start(approval, "a")
            await until(lambda: TOKENS)
        GATE.clear()
        async with Place(tmp_path / "data").engine([approval]) as engine:
            await until(lambda: len(TOKENS) == 2)
            assert TOKENS[0] == TOKENS[1]
            await engine.complete(TOKENS[0], False)
            assert await engine.handle("a", approval).result() is False

    run(main())


def test_the_value_may_be_an_instance_of_what_the_workflow_waits_for_or_its_json(anywhere: Place) -> None:
    async def main() -> None:
        async with anywhere.engine([judged]) as engine:
            for number, value in enumerate((Verdict(True, "ann"), {"granted": True, "by": "ann"})):
                TOKENS.clear()
                handle = await engine.start(judged, f"j{number}")
                await until(lambda: TOKENS)
                with pytest.raises(Rejected):
                    await engine.complete(TOKENS[0], {"granted": "perhaps"})
                with pytest.raises(PayloadError, match="the value of the completion"):
                    await engine.complete(TOKENS[0], object())
                await engine.complete(TOKENS[0], value)
                assert await handle.result() == "True ann"

    run(main())


def test_the_answer_may_come_before_the_sender_has_returned(place: Place) -> None:
    async def main() -> None:
        GATE.append(asyncio.Event())
        async with place.engine([approval]) as engine:
            handle = await engine.start(approval, "a")
            await until(lambda: TOKENS)
            await engine.complete(TOKENS[0], True)
            assert await handle.result() is True
            GATE[0].set()

    run(main())


def test_a_token_that_is_damaged_foreign_or_invented_is_refused_and_harms_nothing(anywhere: Place) -> None:
    async def main() -> None:
        async with Place(None).engine([approval]) as other:
            await other.start(approval, "a")
            await until(lambda: TOKENS)
        foreign = TOKENS.pop()
        async with anywhere.engine([approval]) as engine:
            handle = await engine.start(approval, "a")
            await until(lambda: TOKENS)
            token = TOKENS[0]
            await engine.start(approval, "b")
            await until(lambda: len(TOKENS) == 2)
            await engine.complete(TOKENS[1], False)  # a token is good for its own run
            assert (await handle.status()).is_open
            for bad in ("", "hello", PREFIX, token[:-4], token + "AA", PREFIX + "A" * 99_999, foreign):
                await refused(engine, bad, "token")
            await engine.complete(token, True)
            assert await handle.result() is True

    run(main())


def test_no_single_changed_character_of_a_token_completes_anything() -> None:
    async def main() -> None:
        async with Place(None).engine([approval]) as engine:
            handle = await engine.start(approval, "a")
            await until(lambda: TOKENS)
            token = TOKENS[0]
            for at in range(len(token)):
                changed = token[:at] + ("A" if token[at] != "A" else "Q") + token[at + 1:]
                with pytest.raises(Rejected):
                    await engine.complete(changed, True)
            await engine.complete(token, True)
            assert await handle.result() is True

    run(main())


def test_a_value_that_does_not_fit_is_refused_and_the_token_stays_good(place: Place) -> None:
    async def main() -> None:
        async with place.engine([approval], park_after="10ms") as engine:
            handle = await engine.start(approval, "a")
            await until(lambda: TOKENS)
            await refused(engine, TOKENS[0], 'completion "approve": expected bool.*still good', "yes")
            if place.dir is not None:
                await has_status(engine, "a", "parked")
                await refused(engine, TOKENS[0], "still good", 7)
            await engine.complete(TOKENS[0], True)
            assert await handle.result() is True

    run(main())


def test_a_failure_from_outside_is_raised_as_it_is(place: Place) -> None:
    async def main() -> None:
        async with place.engine([careful]) as engine:
            for number, (error, expected) in enumerate([(Declined(code=7), [7, "StepFailed"]), ("no money", ["no money", "StepFailed"])]):
                handle = await engine.start(careful, f"c{number}")
                await until(lambda: len(TOKENS) > number)  # noqa: B023
                await engine.fail(TOKENS[-1], error)
                assert await handle.result() == expected

    run(main())


def test_a_sender_without_attempts_left_fails_the_completion(place: Place) -> None:
    async def main() -> None:
        TROUBLE.append(Declined(code=9))
        async with place.engine([careful]) as engine:
            assert await engine.execute(careful, "c") == [9, "StepFailed"]
            await refused(engine, TOKENS[0], "ended")

    run(main())


def test_a_completion_that_takes_too_long_raises_and_its_token_is_good_no_more(place: Place) -> None:
    async def main() -> None:
        async with place.engine([impatient]) as engine:
            handle = await engine.start(impatient, "i")
            async def is_late() -> bool:
                detail = await handle.describe()
                return detail is not None and detail.journal[-1].fields.get("status") == "cancelled"
            await until(is_late)
            await refused(engine, TOKENS[0], "no longer waits", "late")
            await handle.signal("end")
            assert "not completed within its timeout of 0.2 s" in await handle.result()

    run(main())


def test_cancelling_the_run_makes_its_token_useless(place: Place) -> None:
    async def main() -> None:
        async with place.engine([approval]) as engine:
            handle = await engine.start(approval, "a")
            await until(lambda: TOKENS)
            await handle.cancel("enough")
            await has_status(engine, "a", "cancelled")
            await refused(engine, TOKENS[0], "ended as cancelled")

    run(main())


def test_a_repeated_request_completes_once(place: Place) -> None:
    async def main() -> None:
        async with place.engine([approval]) as engine:
            handle = await engine.start(approval, "a")
            await until(lambda: TOKENS)
            for _ in range(3):
                await engine.complete(TOKENS[0], True, request_id="mine")
            assert await handle.result() is True
            await engine.complete(TOKENS[0], True, request_id="mine")

    run(main())
