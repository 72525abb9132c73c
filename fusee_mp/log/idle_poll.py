# Keeps a processor from going to sleep while its only task waits for the disk.
#
# A processor with nothing to run goes to sleep, and needs tens of microseconds to come back, with cold caches: on a fast disk as long as
# the flush itself. So this program runs on the processor of a thread that flushes, at the one priority that takes no time from anybody
# (SCHED_IDLE), and turns until a moment that the page tells. Then it sleeps until its bell rings.
#
# The page holds three words: until when to turn (monotonic, ns), how many flushes there were, and whether we sleep. They are written
# without a barrier, so that a bell may be left out when both sides look at the same moment: one flush is then as slow as without us.
#
# It runs in a process of its own, as a thread here would hold the interpreter's lock at the wrong moment, and must stay small: hence no
# import beyond these.
"""A program that polls in place of an idle processor; `IdlePoll` in `awake.py` runs it."""
from __future__ import annotations

import mmap
import os
import select
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

PAGE_BYTES = 4096
UNTIL, FLUSHES, ASLEEP = range(3)
PROCESSOR_FIELD = 36  # of /proc/PID/task/TID/stat, counted behind the name in brackets


class _Poller:
    def __init__(self, page: int, bell: int, parent: int, thread: int) -> None:
        self._words = memoryview(mmap.mmap(page, PAGE_BYTES)).cast("Q")
        self._bell = bell
        self._parent = parent
        self._poll = select.poll()
        self._poll.register(bell, select.POLLIN)
        self._stat = os.open(f"/proc/{parent}/task/{thread}/stat", os.O_RDONLY)
        self._processor = -1

    def run(self) -> NoReturn:
        while True:
            self._words[ASLEEP] = 1
            if self._words[UNTIL] <= time.monotonic_ns():
                self._sleep()
            self._words[ASLEEP] = 0
            self._turn()

    def _sleep(self) -> None:
        # The bell ends with the parent, unless a process it forked holds a copy: hence the second look.
        while not self._poll.poll(1000):
            if os.getppid() != self._parent:
                os._exit(0)
        if not os.read(self._bell, PAGE_BYTES):
            os._exit(0)

    def _turn(self) -> None:
        words, now, seen = self._words, time.monotonic_ns, 0
        while words[UNTIL] > now():
            if words[FLUSHES] != seen:
                seen = words[FLUSHES]
                self._follow()

    def _follow(self) -> None:
        """Go to the processor that the thread is on."""
        processor = int(os.pread(self._stat, PAGE_BYTES, 0).rpartition(b")")[2].split()[PROCESSOR_FIELD])
        if processor != self._processor:
            os.sched_setaffinity(0, (processor,))
            self._processor = processor


def main(page: str, bell: str, parent: str, thread: str) -> None:
    """Poll until the parent is gone, or the thread. Ends at once with OSError where the system lets nobody change his priority."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    _Poller(int(page), int(bell), int(parent), int(thread)).run()
