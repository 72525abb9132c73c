# Flushes by a helper that is awake, for a loop that is awake.
#
# A flush in this process makes it sleep, and it comes back with cold caches; one in the helper costs two sleeps more. So for flushes
# that come one by one the helper is asked to *attend* a segment: it turns on a page of shared memory, flushes when the page says so,
# and we turn our loop until the page says that it is done. Both stop LOG_AWAKE_US after the last request; then the helper's script
# ends, and says so over its socket, which wakes a loop that sleeps.
#
# Rule 1: a request is answered: on the page, or its script's end finds it unanswered and asks again, or the helper is lost.
# Rule 2: SEGMENT is stored before ASKED and the helper looks at them in the other order, so it flushes no request of another segment.
# Rule 3: number and errno of an answer are one word: it is there or it is not. FLUSH_NS is stored before it.
"""`AttendedFlushes`: both sides stay awake for a flush."""
from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable

from fusee_mp.bounds import LOG_AWAKE_US
from fusee_mp.log.disk import ASKED, DONE, ERRNO_BITS, FLUSH_NS, SEGMENT, UNTIL
from fusee_mp.log.helper import Lane, Outcome
from fusee_mp.log.segment import segment_name


class AttendedFlushes:
    """One flush at a time: the next `flush` may be called from the `done` of the one before."""

    def __init__(self, lane: Lane, words: memoryview, loop: asyncio.AbstractEventLoop) -> None:
        self._lane, self._words, self._loop = lane, words, loop
        self._asked = 0
        self._attended: int | None = None
        self._done: Callable[[Outcome], object] | None = None

    def flush(self, segment: int, done: Callable[[Outcome], object]) -> None:
        """Have the segment flushed; `done` hears how it went, within a turn of the loop after it did."""
        self._asked += 1
        self._done = done
        words = self._words
        words[SEGMENT] = segment
        words[UNTIL] = time.monotonic_ns() + LOG_AWAKE_US * 1000
        words[ASKED] = self._asked
        if self._attended != segment:
            self._attend(segment)
        self._loop.call_soon(self._look)

    def _attend(self, segment: int) -> None:
        self._attended = segment
        self._lane.run((("attend", segment_name(segment), segment),), lambda outcome: self._ended(segment, outcome))

    def _look(self) -> None:
        if self._done is None or self._answered():
            return
        if self._words[UNTIL] > time.monotonic_ns():
            self._loop.call_soon(self._look)

    def _answered(self) -> bool:
        number, errno = divmod(self._words[DONE], 1 << ERRNO_BITS)
        if number != self._asked:
            return False
        self._finish(Outcome(OSError(errno, os.strerror(errno)) if errno else None, self._words[FLUSH_NS] / 1e9))
        return True

    def _finish(self, outcome: Outcome) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(outcome)

    def _ended(self, segment: int, outcome: Outcome) -> None:
        """A script has ended. The request of now may have come too late for it, or be another segment's, whose script follows."""
        if self._attended != segment:
            return
        self._attended = None
        if self._done is None:
            return
        if outcome.lost or outcome.error is not None:
            self._finish(outcome)
        elif not self._answered():
            self._words[UNTIL] = time.monotonic_ns() + LOG_AWAKE_US * 1000
            self._attend(segment)
            self._loop.call_soon(self._look)
