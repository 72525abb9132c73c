"""Bad input, from callers and from workflow code: each a clear error with its code, nothing is left of it, and the engine goes on."""
from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from behaviour_bad_input import ADD, COUNT, FREE, GO, SAID, bad_calls, eats, open_run

from fusee_mp import Batch, Busy, Debounce, FuseeError, Limit, Rejected, Retry, ScheduleSpec

Call = Callable[[Any], Awaitable[Any]]
IDS = {"empty": "", "of 1,025 bytes": "é" * 512 + "x", "with NUL": "a\0b", "with a lone surrogate": "a\ud800", "no text": 7}
ring: list[Any] = []
ring.append(ring)
deep: Any = 1
for _ in range(300):
    deep = [deep]
VALUES = {"a set": {1}, "an object": object(), "bytes": b"x", "NaN": float("nan"), "keys that are numbers": {1: 2}, "a surrogate": "\ud800",
          "itself": ring, "300 levels": deep, "a tuple": (1, 2)}


def with_id(id: Any) -> dict[str, Call]:
    return {
        "start": lambda e: e.start(eats, id, "x"), "handle": lambda e: e.handle(id).result(), "status": lambda e: e.status(id),
        "update_with_start": lambda e: e.update_with_start(open_run, id, None, ADD, 1),
        "schedule": lambda e: e.schedule(id, ScheduleSpec(workflow=eats, input="x", every="1h", paused=True)),
        "schedule_handle": lambda e: e.schedule_handle(id).describe(),
        "debounce": lambda e: e.debounce(eats, id, "x", Debounce("1h")), "batch": lambda e: e.batch(FREE, id, "x", Batch(2, "1h")),
    }


def with_name(name: Any) -> dict[str, Call]:
    return {
        "start": lambda e: e.start(name, "new", "x"), "signal": lambda e: e.handle("open").signal(name, 1),
        "query": lambda e: e.handle("open").query(name), "update": lambda e: e.handle("open").update(name, 1),
        "update ID": lambda e: e.handle("open").update(ADD, 1, update_id=name),
        "request ID": lambda e: e.start(eats, "new", "x", request_id=name), "limit": lambda e: e.limit(name, Limit(concurrent=1)),
        "event ID": lambda e: e.debounce(eats, "d", "x", Debounce("1h"), event_id=name), "reset": lambda e: e.handle("open").reset(name),
    }


def with_value(value: Any) -> dict[str, Call]:
    return {
        "input": lambda e: e.start(FREE, "new", value), "signal": lambda e: e.handle("open").signal("free", value),
        "update": lambda e: e.handle("open").update("free", value), "query": lambda e: e.handle("open").query("free", value),
        "attribute": lambda e: e.start(eats, "new", "x", attributes={"a": value}),
        "debounced": lambda e: e.debounce(FREE, "d", value, Debounce("1h")),
        "gathered": lambda e: e.batch(FREE, "b", value, Batch(2, "1h")),
        "scheduled": lambda e: e.schedule("s", ScheduleSpec(workflow=FREE, input=value, every="1h")),
    }


async def made(make: Callable[[], Any]) -> None:
    make()


OTHERS: dict[str, tuple[str, str, Call]] = {
    "an unknown workflow": ("unknown_workflow", "Registered: ", lambda e: e.start("no_such", "new")),
    "an input of another type": ("payload", "expected str, found int", lambda e: e.start(eats, "new", 7)),
    "no input": ("payload", "expected str", lambda e: e.start(eats, "new")),
    "a signal of another type": ("payload", "expected int", lambda e: e.handle("open").signal(GO, "one")),
    "an update of another type": ("payload", "expected int", lambda e: e.handle("open").update(ADD, "one")),
    "a query of another type": ("payload", "expected int", lambda e: e.handle("open").query(COUNT, "one")),
    "an unknown update": ("rejected", '"add"', lambda e: e.handle("open").update("no_such", 1)),
    "an unknown query": ("rejected", '"said"', lambda e: e.handle("open").query("no_such")),
    "a signal to an ended run": ("rejected", "has ended as ok", lambda e: e.handle("over").signal(GO, 1)),
    "an update of an ended run": ("rejected", "has ended as ok", lambda e: e.handle("over").update(ADD, 1)),
    "a step that it does not have": ("rejected", "no_such", lambda e: e.handle("over").reset("no_such")),
    "a negative deadline": ("rejected", "deadline", lambda e: e.start(eats, "new", "x", deadline=-1)),
    "a deadline of a thousand years": ("rejected", "deadline", lambda e: e.start(eats, "new", "x", deadline=timedelta(days=365_000))),
    "a deadline that is no duration": ("rejected", "deadline", lambda e: e.start(eats, "new", "x", deadline="soon")),
    "a negative window": ("rejected", "window", lambda e: made(lambda: Debounce("-1s"))),
    "a negative wait": ("rejected", "wait", lambda e: made(lambda: Batch(1, -1))),
    "a negative interval": ("rejected", "every", lambda e: made(lambda: ScheduleSpec(workflow=eats, every="-1s"))),
    "a negative first pause": ("rejected", "initial", lambda e: made(lambda: Retry(initial=-1))),
    "a negative rate": ("rejected", "per_second", lambda e: made(lambda: Limit(per_second=-1.0))),
    "cron text of four fields": ("rejected", "cron", lambda e: made(lambda: ScheduleSpec(workflow=eats, cron="* * * *"))),
    "cron text out of range": ("rejected", "cron", lambda e: made(lambda: ScheduleSpec(workflow=eats, cron="61 * * * *"))),
    "cron text that never comes": ("rejected", "cron",
                                   lambda e: e.schedule("s", ScheduleSpec(workflow=eats, input="x", cron="0 0 31 2 *"))),
    "cron text that is none": ("rejected", "cron", lambda e: made(lambda: ScheduleSpec(workflow=eats, cron="every day"))),
    "an unknown zone": ("rejected", "zone", lambda e: made(lambda: ScheduleSpec(workflow=eats, cron="0 0 * * *", timezone="Mars/One"))),
    "attributes that are no mapping": ("rejected", "attributes", lambda e: e.start(eats, "new", "x", attributes=[1])),
    "no token": ("rejected", "token", lambda e: e.complete("no-token", 1)),
    "a token of another type": ("rejected", "token", lambda e: e.complete(7, 1)),
}


def every_bad_call() -> dict[str, tuple[tuple[str, ...], str, Call]]:
    found: dict[str, tuple[tuple[str, ...], str, Call]] = {what: ((code,), words, call) for what, (code, words, call) in OTHERS.items()}
    for what, id in IDS.items():
        found |= {f"{call} of an ID {what}": (("rejected",), "", make) for call, make in with_id(id).items()}
        found |= {f"{call} of a name {what}": (("rejected",), "", make) for call, make in with_name(id).items()}
    for what, value in VALUES.items():
        found |= {f"{call} with {what}": (("payload",), "", make) for call, make in with_value(value).items()}
    return found


def test_what_callers_give_wrong_is_refused_with_its_code_and_leaves_nothing(scene: Any) -> None:
    async def scenario(home: Any) -> None:
        engine, wrong = home.engine, []
        await engine.start(open_run, "open")
        await engine.execute(eats, "over", "x")
        for what, (codes, words, call) in every_bad_call().items():
            try:
                answer = await asyncio.wait_for(call(engine), 20)
                wrong.append(f"{what}: nothing was refused ({answer!r})")
            except FuseeError as e:
                if e.code not in codes or words not in e.message or not e.message:
                    wrong.append(f"{what}: {e.code}: {e.message}")
            except BaseException as e:
                wrong.append(f"{what}: {type(e).__name__}: {e}")
        assert not wrong, "\n".join(wrong)
        assert await engine.count() == 2 and await engine.schedules() == []
        assert await engine.handle("open").query(SAID) == []
        await engine.handle("open").signal(GO, 1)
        assert await engine.handle("open").result() == 1

    scene(scenario)


def test_what_workflow_code_gives_wrong_fails_there_and_can_be_caught(scene: Any) -> None:
    async def scenario(home: Any) -> None:
        said = await home.engine.execute(bad_calls, "bad")
        assert [line for line in said if not line.endswith(("PayloadError", "Rejected"))] == []
        assert len(said) > 20 and await home.engine.count() == 1

    scene(scenario)


def test_ten_thousand_calls_at_once_on_one_run_are_all_answered_and_the_engine_goes_on(scene: Any) -> None:
    """What is too many for now is Busy, and changed nothing."""
    async def scenario(home: Any) -> None:
        engine = home.engine
        run = await engine.start(open_run, "open")
        await engine.handle("open").update(ADD, 0)
        kinds: list[Callable[[int], Awaitable[Any]]] = [
            lambda n: run.update(ADD, n), lambda n: run.query(SAID), lambda n: run.signal("other", n), lambda n: run.status(),
        ]
        answers = await asyncio.gather(*(kinds[n % 4](n) for n in range(10_000)), return_exceptions=True)
        failed = Counter(type(answer) for answer in answers if isinstance(answer, BaseException))
        assert set(failed) <= {Busy}, failed
        added = sum(not isinstance(answer, BaseException) for answer in answers[::4])
        assert len(await run.query(SAID)) == 1 + added and added >= 1
        await run.signal(GO, 1)
        assert await run.result() == 1

    scene(scenario)


def test_any_other_id_is_one(scene: Any) -> None:
    async def scenario(home: Any) -> None:
        for each in ["a", "é" * 512, "a/b?c=d#e%20", "\U0001f4a5" * 256, " ", "..", "-"]:
            assert await home.engine.execute(eats, each, "x") == "x"
            assert (await home.engine.status(each)).id == each
        with pytest.raises(Rejected):
            await home.engine.execute(eats, "é" * 513, "x")

    scene(scenario)
