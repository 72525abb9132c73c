# The outside world of the demonstration: a file in which every step leaves a line when it does its work.
#
# Each line has the step's idempotency key, which is the same in all its attempts, the number of the attempt, an entry number, which is
# never the same twice, and the time. A step returns its entry number, so its journal says which of the lines was recorded as its outcome.
#
# Rule 1: lines are only ever appended, by one system call each: all processes share one order, and a kill leaves no half of one.
# Rule 2: a line is written before anything is awaited, while the worker certainly holds the shard. So the lines of one key are in the
#         order of its attempts.
# Rule 3: a step goes on only when its line is on disk.
from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple


class Ledger:
    """The writer's side, for one worker process. Lines that come while the disk is busy share the next flush."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._waiting: list[asyncio.Future[None]] = []
        self._flusher: asyncio.Task[None] | None = None

    async def write(self, key: str, attempt: int) -> str:
        """Leave a line for this key; its entry number, once the line is on disk."""
        entry = secrets.token_hex(8)
        os.write(self._fd, f"{key} {attempt} {entry} {now_ms()}\n".encode())
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        self._waiting.append(done)
        if self._flusher is None:
            self._flusher = loop.create_task(self._flush())
        await done
        return entry

    async def _flush(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                flushed, self._waiting = self._waiting, []
                await loop.run_in_executor(None, os.fdatasync, self._fd)
                for done in flushed:
                    if not done.done():
                        done.set_result(None)
        finally:
            self._flusher = None

    def close(self) -> None:
        os.close(self._fd)


class Line(NamedTuple):
    attempt: int
    entry: str
    at_ms: int


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def read_ledger(path: Path) -> dict[str, list[Line]]:
    """The lines of each key, in the order in which they were written."""
    lines: defaultdict[str, list[Line]] = defaultdict(list)
    for text in path.read_text().splitlines():
        key, attempt, entry, at_ms = text.split(" ")
        lines[key].append(Line(int(attempt), entry, int(at_ms)))
    return dict(lines)
