"""The watch over the ordinary loop: what keeps it from turning is named in the log, with its line.

Leases and timers of a whole process wait for that loop, so a step body that blocks it (`time.sleep` in an `async def`) harms more than
its own run. It cannot be interrupted safely, but it can be named. A thread asks the loop for a sign of life, at most one at a time.
"""
from __future__ import annotations

import asyncio
import logging
import sys
import threading
from types import FrameType
from typing import Final

from fusee_mp.runtime.lines import is_library, is_ours

LOG: Final = logging.getLogger("fusee_mp.step")
LOOK_S: Final = 0.5
LOOKS_MAX: Final = 4  # 2 s


class LoopWatch:
    """`stop` ends it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, thread: int, look_s: float = LOOK_S) -> None:
        self._loop = loop
        self._thread = thread
        self._look_s = look_s
        self._stop = threading.Event()
        self._signs = self._asked = self._looks = 0
        threading.Thread(target=self._watch, name="fusee-loop-watch", daemon=True).start()

    def stop(self) -> None:
        self._stop.set()

    def _sign(self) -> None:
        self._signs += 1

    def _watch(self) -> None:
        while not self._stop.wait(self._look_s):
            if self._signs == self._asked:
                self._looks = 0
                self._asked += 1
                try:
                    self._loop.call_soon_threadsafe(self._sign)
                except RuntimeError:  # the loop is closed
                    return
            else:
                self._looks += 1
                if self._looks == LOOKS_MAX:
                    self._say()

    def _say(self) -> None:
        line = blocking_line(sys._current_frames().get(self._thread))
        if line:
            LOG.warning(
                "%s has kept the event loop busy for more than %g s: no other step, timer or lease of this process goes on meanwhile."
                ' Await instead of blocking, or make the step a plain `def`, which runs in a thread, or give it pool="process"',
                line, self._look_s * LOOKS_MAX,
            )


def blocking_line(frame: FrameType | None) -> str:
    """"file:line in function" of the user's innermost frame; "" where that is workflow code, which has a watch of its own, or none."""
    found = ""
    while frame is not None and not is_ours(frame):
        if not found and not is_library(frame):
            found = f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back
    return "" if _runs_workflow(frame) else found


def _runs_workflow(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_name == "drain" and is_ours(frame):
            return True
        frame = frame.f_back
    return False
