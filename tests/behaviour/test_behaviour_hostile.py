"""Calls that no honest client makes, clocks that jump, failures that carry the world: each costs its sender an error, nobody else."""
from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fusee_mp import Client, Ctx, Engine, PayloadError, Worker, update, workflow
from fusee_mp.core import calls as c
from fusee_mp.core.call_checks import fault
from fusee_mp.wire import messages as m
from tests.server.loopback import asynchronous
from tests.server.raw import RawClient
from tests.server.tree import Tree, serving

MIB = 1 << 20
LENGTH = update("length", str, returns=int)


@workflow
async def echo(ctx: Ctx, text: str) -> int:
    ctx.on_update(LENGTH, lambda value: len(value))
    return len(text)


@workflow
async def sleeps(ctx: Ctx, duration: str) -> bool:
    await ctx.sleep(duration)
    return True


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    with serving(tmp_path_factory.mktemp("hostile") / "data", shards=1) as tree:
        yield tree


WRONG = {
    "a deadline beyond every column": c.StartCall("x", "echo", b'"a"', "q1", deadline_ms=(1 << 63) - 1),
    "a negative deadline": c.StartCall("x", "echo", b'"a"', "q2", deadline_ms=-5),
    "attributes that are no JSON": c.StartCall("x", "echo", b'"a"', "q3", attributes=b"{bad"),
    "attributes that are no object": c.StartCall("x", "echo", b'"a"', "q4", attributes=b"[1]"),
    "an empty ID": c.StartCall("", "echo", b'"a"', "q5"),
    "a long ID": c.StartCall("x" * 3000, "echo", b'"a"', "q6"),
    "an empty request ID": c.StartCall("x", "echo", b'"a"', ""),
    "a signal without a name": c.SignalCall("x", "", b"1", "q7"),
    "more than a record holds": c.StartCall("x", "echo", b"1" * (7 * MIB), "q8"),
}


@pytest.mark.parametrize("call", WRONG.values(), ids=WRONG)
def test_a_call_that_cannot_become_records_has_a_fault(call: Any) -> None:
    assert fault(call) is not None


def test_a_good_call_has_none() -> None:
    assert fault(c.StartCall("x", "echo", b'"a"', "q", deadline_ms=1000, attributes=b'{"a":1}')) is None


def send_what_is_wrong(address: str) -> None:
    with RawClient(address, 0) as raw:
        for request, call in enumerate(WRONG.values(), 100):
            raw.call(call, request, 0)
            assert raw.expect(m.Error)[1].code in ("rejected", "payload")


@asynchronous
async def test_calls_that_no_honest_client_makes_are_answered_and_the_shard_goes_on(tree: Tree) -> None:
    async with Worker.connect(tree.address, workflows=[echo], name="w"), Client.connect(tree.address) as client:
        await asyncio.to_thread(send_what_is_wrong, tree.address)
        assert await client.execute(echo, "after", "abc") == 3
        status = await client.status("after")
        assert status is not None and status.status == "ok"


def test_values_that_fit_alone_but_not_together_are_refused_at_their_sender(tmp_path: Path) -> None:
    async def main() -> None:
        text = "x" * (4 * MIB - 2)
        async with Engine.open(tmp_path / "data", workflows=[echo]) as engine:
            with pytest.raises(PayloadError, match="together"):
                await engine.start(echo, "a", text, attributes={"a": text[:-10]})
            with pytest.raises(PayloadError, match="together"):
                await engine.update_with_start(echo, "b", text, LENGTH, text)
            assert await engine.execute(echo, "c", text) == len(text)

    asyncio.run(main())


def test_timers_go_on_when_the_time_of_day_was_back_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, offset = time.time_ns, [0]
    monkeypatch.setattr(time, "time_ns", lambda: real() + offset[0])

    async def main() -> None:
        async with Engine.open(tmp_path / "data", workflows=[sleeps]) as engine:
            before = await engine.start(sleeps, "before", "1s")
            offset[0] = -3600 * 10**9
            await asyncio.sleep(2)
            offset[0] = 0
            assert await engine.execute(sleeps, "after", "500ms")
            assert await before.result()

    asyncio.run(asyncio.wait_for(main(), 60))
