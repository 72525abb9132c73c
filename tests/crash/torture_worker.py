"""Workflows that speak with each other over shards, and whose step bodies say outside under which lease they began.

As a program, a worker with them: ADDRESS NAME MAX_SHARDS BODIES-FILE.
"""
from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any, Final, NamedTuple

from fusee_mp import Ctx, Retry, Workflow, current_step, workflow
from fusee_mp.runtime.steps import CURRENT
from tests.server.flows import boot_time, main

FILE: Final = "FUSEE_TEST_BODIES"
# One body in so many fails at its first attempt.
FAILS_EVERY: Final = 8


class Body(NamedTuple):
    """The beginning of a body. `base_lsn` is the LSN of the grant of its lease, `at` a time on a clock that all processes share."""

    key: str
    attempt: int
    value: int
    shard: int
    epoch: int
    base_lsn: int
    pid: int
    at: float


def write_body(value: int) -> int:
    """Write it down, on disk when this returns; its attempt. Nothing is awaited before: the lease is that under which it began."""
    current = CURRENT.get()
    assert current is not None
    step, home = current_step(), current[0].run.shard.home  # type: ignore[attr-defined]
    body = Body(step.key, step.attempt, value, home.shard, home.epoch, home.base_lsn, os.getpid(), boot_time())
    fd = os.open(os.environ[FILE], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(fd, json.dumps(body).encode() + b"\n")
        os.fsync(fd)
    finally:
        os.close(fd)
    return step.attempt


def bodies(path: Path) -> list[Body]:
    return [Body(*json.loads(line)) for line in path.read_text().splitlines()]


async def act(value: int) -> int:
    attempt = write_body(value)
    await asyncio.sleep(value % 50 / 1000)
    if attempt == 1 and value % FAILS_EVERY == 0:
        raise RuntimeError(f"{value} fails at first")
    return value


RETRY: Final = Retry(attempts=3, initial="10ms")


@workflow("caller")
async def caller(ctx: Ctx, plan: list[Any]) -> list[int]:
    """A step, a child on another shard, a signal to a third run on another shard."""
    child, ledger, value = plan
    acted = await ctx.step("act", act, value, retry=RETRY)
    doubled = await ctx.child("doubler", child, value)
    await ctx.signal(ledger, "note", value)
    return [acted, doubled]


@workflow("doubler")
async def doubler(ctx: Ctx, value: int) -> int:
    return 2 * int(await ctx.step("act", act, value, retry=RETRY))


@workflow("ledger")
async def ledger(ctx: Ctx, expected: int) -> list[int]:
    """Enters each note that it gets, and those beyond the expected that come within 2 s."""
    entered: list[int] = []
    while (value := await ctx.wait_for("note", timeout="10m" if len(entered) < expected else "2s")) is not None:
        entered.append(int(await ctx.step("enter", act, int(value), retry=RETRY)))
    return entered


WORKFLOWS: list[Workflow[Any, Any]] = [caller, doubler, ledger]


if __name__ == "__main__":
    main(WORKFLOWS, FILE)
