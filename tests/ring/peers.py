"""Processes at the other end of a link, and the waiting that tests do."""
from __future__ import annotations

import asyncio
import os
import random
import signal
import traceback
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import uvloop

from fusee_mp.ring.link import Link, LinkFds

TIMEOUT_SECONDS = 60.0


class Ends:
    """One end of a link, with what it got. Used inside a running loop."""

    def __init__(self, ends: LinkFds, on_frame: Callable[[bytes], None] | None = None) -> None:
        self.frames: list[bytes] = []
        self.reasons: list[str] = []
        self._changed = asyncio.Event()
        self._handle = on_frame or self.frames.append
        self.link = Link(asyncio.get_running_loop(), ends, self._on_frame, self._on_closed)

    def _on_frame(self, frame: bytes) -> None:
        self._changed.set()
        self._handle(frame)

    def _on_closed(self, reason: str) -> None:
        self.reasons.append(reason)
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def closed(self) -> str:
        await self.until(lambda: bool(self.reasons))
        return self.reasons[0]


@contextmanager
def forked(theirs: Callable[[], object]) -> Iterator[int]:
    """A child process that runs `theirs` and exits; the test fails if it raised. It is gone when the block is left."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm(int(TIMEOUT_SECONDS) * 2)
            theirs()
            status = 0
        except BaseException:  # noqa: BLE001 (whatever it was, a child must not go on as the test)
            traceback.print_exc()
        finally:
            os._exit(status)
    try:
        yield child
    except BaseException:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) in (0, -signal.SIGKILL), "the peer failed, see its traceback above"


@contextmanager
def peer(mine: LinkFds, theirs: LinkFds, act: Callable[[LinkFds], Coroutine[Any, Any, None]]) -> Iterator[int]:
    """A process that has one end, and only that, and runs `act` on uvloop."""

    def run() -> None:
        mine.close()
        uvloop.run(act(theirs))

    with forked(run) as child:
        theirs.close()
        yield child


def sample_frames(seed: int, count: int, longest: int) -> Iterator[bytes]:
    """The same frames for both sides: mostly short, some empty, some long."""
    chance = random.Random(seed)
    for number in range(count):
        length = chance.choice((0, 1, 8, chance.randrange(100), chance.randrange(longest + 1)))
        yield (number.to_bytes(8, "little") + chance.randbytes(16) * (length // 16 + 1))[:length]
