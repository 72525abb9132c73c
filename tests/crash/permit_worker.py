"""A worker whose one workflow has one step under a limit. Its bodies say outside when they begin and end.

As a program: ADDRESS NAME MAX_SHARDS FILE.
"""
from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Final, NamedTuple

from fusee_mp import Ctx, current_step, workflow
from tests.server.flows import boot_time, main

FILE: Final = "FUSEE_TEST_HOLDS"
LIMIT: Final = "five"


class Note(NamedTuple):
    """A body began, or ended, on a clock that all processes share."""

    what: str
    key: str
    pid: int
    at: float


def note(what: str) -> None:
    fd = os.open(os.environ[FILE], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(fd, json.dumps(Note(what, current_step().key, os.getpid(), boot_time())).encode() + b"\n")
    finally:
        os.close(fd)


def notes(path: Path) -> list[Note]:
    return [Note(*json.loads(line)) for line in path.read_text().splitlines()]


async def hold(value: int) -> int:
    note("begin")
    try:
        await asyncio.sleep(0.02 + value % 60 / 1000)
    finally:
        note("end")
    return value


@workflow("holder")
async def holder(ctx: Ctx, value: int) -> int:
    return int(await ctx.step("hold", hold, value, limit=LIMIT))


if __name__ == "__main__":
    main([holder], FILE)
