# The flush of a file that was just written: inline, in the helper, or in the helper with both awake (attended.py).
#
# Rule 1: `then` is called only after a flush that succeeded, and at most once; a failure goes to `on_failed` and ends all.
# Rule 2: if the helper dies with a flush unanswered, it is repeated here. Our descriptor was open before the write, so the kernel
#         reports a failed write-back to it even if the helper's has been told already.
"""Flushing where it is cheapest, and the life of the helper process."""
from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from fusee_mp.bounds import LOG_AWAKE_RECORDS_MAX
from fusee_mp.log.attended import AttendedFlushes
from fusee_mp.log.awake import IdlePoll
from fusee_mp.log.disk import Disk
from fusee_mp.log.helper import Helper, InlineLane, Lane, Outcome
from fusee_mp.log.options import LogOptions
from fusee_mp.log.policy import AttendPolicy, FlushPolicy, Metrics
from fusee_mp.log.tail import Tail

HELPER_RETRY_S = 1.0


class Flusher:
    """One log's way to the disk. `close` ends the helper; nothing is called after it."""

    def __init__(
        self, disk: Disk, options: LogOptions, loop: asyncio.AbstractEventLoop, clock: Callable[[], float], metrics: Metrics,
        on_failed: Callable[[OSError], None],
    ) -> None:
        self._disk = disk
        self._options = options
        self._loop = loop
        self._clock = clock
        self._metrics = metrics
        self._on_failed = on_failed
        self._policy = FlushPolicy(options.flush)
        self._inline = InlineLane(disk, clock)
        self._idle_poll = IdlePoll()
        self._attend_policy = AttendPolicy(clock)
        self._attended: AttendedFlushes | None = None  # Where there is a helper, and a processor for everyone who stays awake.
        self._helper: Helper | None = None
        self._again: asyncio.TimerHandle | None = None
        self._helper_place: tuple[Path, tuple[int, ...]] | None = None
        self._is_closed = False

    @property
    def is_inline(self) -> bool:
        """Whether the next flush blocks the loop."""
        return self._helper is None or self._policy.is_inline

    @property
    def helper_pid(self) -> int | None:
        return None if self._helper is None else self._helper.pid

    def start_helper(self, directory: Path, inherit: tuple[int, ...]) -> None:
        """Start the helper, and again whenever it ends by itself. Until it runs, all is done inline."""
        self._helper_place = directory, inherit
        self._try_helper()

    def work_lane(self) -> Lane:
        return self._inline if self._helper is None else self._helper.work

    def flush(self, tail: Tail, records: int, then: Callable[[], None]) -> None:
        """Flush what was just written to the tail, `records` of them."""
        if not self.is_inline:
            assert self._helper is not None
            self._metrics.mode = "helper"
            self._helper.flushes.run((("flush", tail.name),), partial(self._flushed_by_helper, tail, then))
        elif not 0 < records <= LOG_AWAKE_RECORDS_MAX or self._helper is None:
            self._flush_inline(tail, then)
        elif self._attended is not None and self._attend_policy.is_wanted(self._metrics.flush_latency):
            self._metrics.mode = "attended"
            self._attended.flush(tail.number, partial(self._flushed_attended, tail, then, self._clock()))
        else:
            self._idle_poll.extend()
            self._flush_inline(tail, then)

    def close(self) -> None:
        self._is_closed = True
        self._idle_poll.close()
        if self._again is not None:
            self._again.cancel()
        if self._helper is not None:
            helper, self._helper, self._attended = self._helper, None, None
            helper.close()

    def _flush_inline(self, tail: Tail, then: Callable[[], None]) -> None:
        self._metrics.mode = "inline"
        started = self._clock()
        try:
            self._disk.flush_fd(tail.fd)
        except OSError as error:
            self._on_failed(error)
        else:
            self._measure(self._clock() - started)
            then()

    def _flushed_by_helper(self, tail: Tail, then: Callable[[], None], outcome: Outcome) -> None:
        if self._is_closed:
            return
        if outcome.lost:
            self._flush_inline(tail, then)
        elif outcome.error is not None:
            self._on_failed(outcome.error)
        else:
            self._measure(outcome.elapsed_s)
            then()

    def _flushed_attended(self, tail: Tail, then: Callable[[], None], started: float, outcome: Outcome) -> None:
        self._attend_policy.observe(self._clock() - started)
        self._flushed_by_helper(tail, then, outcome)

    def _measure(self, elapsed_s: float) -> None:
        self._metrics.flushes += 1
        self._metrics.flush_latency.add(elapsed_s)
        self._policy.observe(elapsed_s * 1000)

    def _try_helper(self) -> None:
        self._again = None
        assert self._helper_place is not None
        directory, inherit = self._helper_place
        try:
            self._helper = Helper(directory, self._loop, self._lost, emulated_flush_ms=self._options.emulated_flush_ms, inherit=inherit)
        except OSError:
            self._again = self._loop.call_later(HELPER_RETRY_S, self._try_helper)
            return
        if self._helper.words is not None and self._options.flush == "auto" and _processors() > self._options.awake_processes:
            self._attended = AttendedFlushes(self._helper.flushes, self._helper.words, self._loop)

    def _lost(self) -> None:
        self._helper = self._attended = None
        self._metrics.helper_restarts += 1
        self._again = self._loop.call_later(HELPER_RETRY_S, self._try_helper)


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
