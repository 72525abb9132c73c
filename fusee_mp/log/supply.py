# Segment files ahead of need, and the space for them.
#
# A file goes round: it is filled (or retired), marked as a spare in both header copies, renamed to the next segment's name and the
# directory flushed; then it is *ready*, and beginning a segment takes no more than its header. A spare mark under a segment's name is
# therefore usual, and a missing header under one is damage.
#
# Space is claimed (fallocate) before the zeroes are written, so a full disk shows here, a whole segment ahead of need, and never in a
# write of the log. A segment that is needed before its zeroes are all written is taken as it stands: its flushes are a little slower.
#
# When the disk is full: the reserve file is deleted, which gives the keeper room to fold and checkpoint; new work is refused;
# running work goes on in the segment at hand and in whatever the checkpoint sets free. Every second it is tried again; new
# work is let in when a segment is ready and the reserve is whole, for which twice its size must be free (or it would flap).
"""Preparing, retiring and recycling segment files, and the reserve."""
from __future__ import annotations

import asyncio
import errno
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from fusee_mp import bounds
from fusee_mp.log.disk import Disk
from fusee_mp.log.format import BATCHES_OFFSET, COPY_OFFSETS, SPARE_MARK, batch_bytes
from fusee_mp.log.helper import Lane, Outcome, Script
from fusee_mp.log.options import LogOptions
from fusee_mp.log.segment import FILLING, RESERVE, opened, segment_name, spare_name

SPARES_MAX = 2
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class Ready(NamedTuple):
    """A segment file that only lacks its header."""

    number: int
    size: int
    is_fresh: bool

    def fits(self, body_bytes: int, block_bytes: int) -> bool:
        return BATCHES_OFFSET + batch_bytes(body_bytes, block_bytes) <= self.size


def marked(name: str) -> Script:
    """Make `name` a spare: one copy after the other, so that a header is whole at any moment."""
    return tuple(step for offset in COPY_OFFSETS for step in (("write", name, SPARE_MARK, offset), ("flush", name)))


def allocated(name: str, size: int) -> Script:
    return (("allocate", name, size), ("fill", name, size))


def promoted(name: str, number: int) -> Script:
    """Give a file the name of segment `number`, durably."""
    return (*marked(name), ("rename", name, segment_name(number)), ("flush_directory",))


def retired(number: int, keep: bool) -> Script:
    """Take a segment out of the log; kept as a spare, or deleted."""
    name = segment_name(number)
    last = ("rename", name, spare_name(number)) if keep else ("unlink", name)
    return (*marked(name), last, ("flush_directory",))


class Supply:
    """Keeps one segment ready. `lane` gives the lane to use now; `on_ready` follows each preparation, `on_failed` a broken disk."""

    def __init__(
        self, disk: Disk, options: LogOptions, loop: asyncio.AbstractEventLoop, *, lane: Callable[[], Lane], next_number: int,
        spares: list[tuple[str, int]], on_ready: Callable[[], None], on_failed: Callable[[OSError], None],
    ) -> None:
        self.ready: Ready | None = None
        self.is_full = False
        self._disk = disk
        self._options = options
        self._loop = loop
        self._lane = lane
        self._next_number = next_number
        self._on_ready = on_ready
        self._on_failed = on_failed
        self._spares = list(spares)
        self._to_retire: deque[tuple[int, int]] = deque()
        self._is_retiring = False
        self._is_preparing = False
        self._is_reserving = False
        self._is_closed = False
        self._has_reserve = options.reserve_bytes == 0
        self._retry: asyncio.TimerHandle | None = None

    def start(self, names: list[str]) -> None:
        """Claim the reserve, prepare the first segment."""
        if not self._has_reserve:
            self._has_reserve = self._is_reserve_whole(names) or self._claim_now()
        self.is_full = not self._has_reserve
        self._step()

    def close(self) -> None:
        self._is_closed = True
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    def take(self) -> Ready:
        """The ready segment, which is the caller's from now on; the next one is begun."""
        ready, self.ready = self.ready, None
        assert ready is not None
        self._loop.call_soon(self._step)
        return ready

    def hurry(self) -> None:
        """Somebody waits for a segment, and what is ready, if anything, is too small."""
        if self.ready is not None and not self.is_full:
            self._spares.append((segment_name(self.ready.number), self.ready.size))
            self.ready = None
        if self._is_preparing:
            self._lane().hurry()
        else:
            self._step()

    def retire(self, number: int, size: int) -> None:
        """Take back a segment whose records are all in the store: it becomes a spare, or goes.

        Strictly in the order of the calls, so that what is left of the log has no hole, whatever happens on the way.
        """
        self._to_retire.append((number, size))
        self._retire_next()

    def release_reserve(self) -> None:
        """The disk is full for somebody else: give them the reserve, and refuse new work until it is whole again."""
        self._fill_up()

    def _step(self) -> None:
        """Do what is due: a segment first, then the reserve."""
        if self._is_closed:
            return
        self._retire_next()
        if self.ready is None:
            self._prepare()
        elif not self._has_reserve:
            self._reserve()
        elif self.is_full:
            self.is_full = False
            self._drop_odd_spares()
            self._on_ready()

    def _prepare(self) -> None:
        if self._is_preparing:
            return
        self._is_preparing = True
        number, self._next_number = self._next_number, self._next_number + 1
        size = self._options.segment_bytes
        spare = self._choose_spare()
        if spare is not None:
            self._spares.remove(spare)
            name, size = spare
            script = promoted(name, number)
        else:
            script = (*self._margin(), *allocated(FILLING, size), *promoted(FILLING, number))
        self._lane().run(script, partial(self._prepared, Ready(number, size, is_fresh=spare is None)))

    def _choose_spare(self) -> tuple[str, int] | None:
        """One of the usual size; on a full disk any is better than none."""
        usual = [spare for spare in self._spares if spare[1] == self._options.segment_bytes]
        return next(iter(usual or (self._spares if self.is_full else ())), None)

    def _margin(self) -> Script:
        """While the disk is full, what the reserve set free is first of all the keeper's: half of it must stay."""
        return (("need_free", self._options.segment_bytes + self._options.reserve_bytes // 2),) if self.is_full else ()

    def _prepared(self, ready: Ready, outcome: Outcome) -> None:
        self._is_preparing = False
        if not self._went_well(outcome):
            return
        self.ready = ready
        if not self.is_full:
            self._drop_odd_spares()
        self._step()
        self._on_ready()

    def _drop_odd_spares(self) -> None:
        odd = [spare for spare in self._spares if spare[1] != self._options.segment_bytes]
        self._spares = [spare for spare in self._spares if spare not in odd]
        if odd:
            self._lane().run(tuple(("unlink", name) for name, _ in odd), self._went_well)

    def _reserve(self) -> None:
        if self._is_reserving:
            return
        self._is_reserving = True
        size = self._options.reserve_bytes
        self._lane().run((("need_free", 2 * size), ("allocate", RESERVE, size)), self._reserved)

    def _reserved(self, outcome: Outcome) -> None:
        self._is_reserving = False
        if self._went_well(outcome):
            self._has_reserve = True
            self._step()

    def _is_reserve_whole(self, names: list[str]) -> bool:
        if RESERVE not in names:
            return False
        with opened(self._disk, RESERVE) as file:
            return file.size == self._options.reserve_bytes

    def _claim_now(self) -> bool:
        size = self._options.reserve_bytes
        try:
            self._disk.need_free(2 * size)
            self._disk.allocate(RESERVE, size)
        except OSError as error:
            if error.errno not in FULL:
                raise
            return False
        finally:
            self._disk.let_go()
        return True

    def _retire_next(self) -> None:
        if not self._to_retire or self._is_retiring:
            return
        self._is_retiring = True
        number, size = self._to_retire[0]
        if segment_name(number) not in self._disk.names():  # Done by a helper that died before it could say so.
            self._retired(None, Outcome())
            return
        keep = len(self._spares) < SPARES_MAX if size == self._options.segment_bytes else self.is_full and not self._spares
        self._lane().run(retired(number, keep), partial(self._retired, (spare_name(number), size) if keep else None))

    def _retired(self, spare: tuple[str, int] | None, outcome: Outcome) -> None:
        self._is_retiring = False
        if not self._went_well(outcome):
            return
        self._to_retire.popleft()
        if spare is not None:
            self._spares.append(spare)
        self._step()

    def _went_well(self, outcome: Outcome) -> bool:
        """Whether it did; where not, arrange for what follows. A file whose script was lost is left to the next open."""
        if self._is_closed:
            return False
        if outcome.lost:
            self._loop.call_soon(self._step)
        elif outcome.error is not None and outcome.error.errno in FULL:
            self._fill_up()
        elif outcome.error is not None:
            self._on_failed(outcome.error)
        return outcome.error is None and not outcome.lost

    def _fill_up(self) -> None:
        self.is_full = True
        self._has_reserve = self._options.reserve_bytes == 0
        self._lane().run((("unlink", FILLING), ("unlink", RESERVE), ("flush_directory",)), self._gave_back)

    def _gave_back(self, outcome: Outcome) -> None:
        if not self._is_closed and self._retry is None:
            self._retry = self._loop.call_later(bounds.LOG_FULL_RETRY_MS / 1000, self._try_again)

    def _try_again(self) -> None:
        self._retry = None
        if self.is_full:
            self._step()
