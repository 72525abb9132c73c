# What the bodies of one step report while they run.
#
# Rule 1: a report counts only while its attempt runs. What comes later, from a thread or a process that could not be stopped, is dropped.
# Rule 2: reports are recorded at most every 100 ms, the newest of them; one that waits when its attempt fails is recorded first, so that
#         the next attempt sees it.
# Rule 3: a report costs the loop no timer: the watch over the time-out looks when it is due, and again when the newest one ends. Time in
#         which the loop itself was held up does not count: the body could not report either.
from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from fusee_mp.core import records as r

if TYPE_CHECKING:
    from fusee_mp.runtime.steps import StepCall

RECORD_EVERY_S: Final = 0.1
LATE_S: Final = 0.02


class Heartbeats:
    """The reports of one step. `progress` is what its earlier attempts last recorded. On the loop's thread, except `report`."""

    __slots__ = ("_call", "progress", "_recorded", "_newest", "_resting", "_watch", "_last_s", "_look_s")

    def __init__(self, call: StepCall, progress: bytes | None = None) -> None:
        self._call = call
        self.progress = self._recorded = progress
        self._newest: bytes | None = None
        self._resting: asyncio.TimerHandle | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._last_s = self._look_s = 0.0

    def watch(self, generation: int, limit_ms: int) -> None:
        """From now on the attempt fails when it is silent for longer than this."""
        self._last_s = self._call.run.shard.loop.time()
        self._look_after(limit_ms / 1000, generation, limit_ms)

    def _look_after(self, wait_s: float, generation: int, limit_ms: int) -> None:
        loop = self._call.run.shard.loop
        self._look_s = loop.time() + wait_s
        self._watch = loop.call_later(wait_s, self._look, generation, limit_ms)

    def _look(self, generation: int, limit_ms: int) -> None:
        now_s = self._call.run.shard.loop.time()
        if (late_s := now_s - self._look_s) > LATE_S:
            self._last_s += late_s
        left_s = self._last_s + limit_ms / 1000 - now_s
        if left_s > 0:
            self._look_after(left_s, generation, limit_ms)
        else:
            silence = f'step "{self._call.name}" called no heartbeat for its heartbeat_timeout of {limit_ms / 1000:g} s'
            self._call.expire(generation, TimeoutError(silence))

    def report(self, generation: int, payload: bytes) -> None:
        """From the body, on whatever thread it runs."""
        loop = self._call.run.shard.loop
        if asyncio._get_running_loop() is loop:
            self._reported(generation, payload)
        else:
            with suppress(RuntimeError):  # the loop is closed: the attempt has ended
                loop.call_soon_threadsafe(self._reported, generation, payload)

    def _reported(self, generation: int, payload: bytes) -> None:
        call = self._call
        if generation != call.generation or not call.is_open:
            return
        self._last_s = call.run.shard.loop.time()
        self._newest = payload
        if self._resting is None:
            self._record_and_rest()

    def _record_and_rest(self) -> None:
        self._record()
        self._resting = self._call.run.shard.loop.call_later(RECORD_EVERY_S, self._rested)

    def _rested(self) -> None:
        self._resting = None
        if self._newest is not None:
            self._record_and_rest()

    def _record(self) -> None:
        call, run, newest = self._call, self._call.run, self._newest
        if newest is None:
            return
        self._newest, self._recorded = None, newest
        run.record(r.Heartbeat(run.number, run.tick(), call.op, call.name, call.attempt, newest))
        run.shard.work_soon()

    def end(self, is_failed: bool) -> None:
        """The attempt is over."""
        for timer in (self._resting, self._watch):
            if timer is not None:
                timer.cancel()
        self._resting = self._watch = None
        if is_failed:
            self._record()
        self._newest, self.progress = None, self._recorded
