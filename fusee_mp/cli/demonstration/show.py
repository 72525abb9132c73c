"""What the spectator sees: on a terminal one line that lives and the events above it, elsewhere plain lines."""
from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Callable
from typing import Final, TextIO

BAR_CHARS: Final = 30
LIVE_S: Final = 0.1
PLAIN_S: Final = 2.0


class Show:
    """`say` tells an event; within `progress` a line shows how far things are. Silent ones say nothing."""

    def __init__(self, out: TextIO = sys.stdout, is_silent: bool = False) -> None:
        self._out, self._is_silent = out, is_silent
        self._is_live = out.isatty()
        self._start = time.monotonic()

    def say(self, text: str) -> None:
        self._print(f"{time.monotonic() - self._start:5.1f} s  {text}")

    @contextlib.asynccontextmanager
    async def progress(self, what: str, done: Callable[[], int], whole: int) -> AsyncIterator[None]:
        """Show `done()` of `whole` regularly while the body runs."""
        task = asyncio.create_task(self._keep_showing(what, done, whole))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            if self._is_live and not self._is_silent:
                self._out.write("\r\033[K")

    async def _keep_showing(self, what: str, done: Callable[[], int], whole: int) -> None:
        before, last = done(), time.monotonic()
        while True:
            await asyncio.sleep(LIVE_S if self._is_live else PLAIN_S)
            now, count = time.monotonic(), done()
            rate = (count - before) / (now - last)
            if self._is_live:
                self._draw(f"{bar(count, whole)} {count:,} {what}, {rate:,.0f}/s")
            else:
                self.say(f"{count:,} {what}, {rate:,.0f}/s")
            if now - last >= 1:
                before, last = count, now

    def _draw(self, text: str) -> None:
        if not self._is_silent:
            self._out.write(f"\r\033[K{text}")
            self._out.flush()

    def _print(self, text: str) -> None:
        if not self._is_silent:
            self._out.write(f"\r\033[K{text}\n" if self._is_live else f"{text}\n")
            self._out.flush()


def bar(count: int, whole: int) -> str:
    """How far, and full when there is more than was planned."""
    filled = min(BAR_CHARS, BAR_CHARS * count // max(whole, 1))
    return f"[{'#' * filled}{'.' * (BAR_CHARS - filled)}]"
