"""A disk that forgets and fails, a loop without time of its own, and records that prove themselves."""
from __future__ import annotations

import errno
import os
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fusee_mp.log import Log, LogOptions, join_records, read_batches, split_records
from fusee_mp.log.disk import Disk

SECTOR = 512
SMALL = LogOptions(
    segment_bytes=32 * 1024, starter_bytes=16 * 1024, flush="inline", reserve_bytes=8 * 1024, append_bytes_max=8 * 1024,
    batch_bytes_max=16 * 1024,
)
ANYWHERE = Path("sim")


class Crash(BaseException):
    """The machine stops before this operation."""


class Inode:
    def __init__(self, data: bytes = b"") -> None:
        self.cached = bytearray(data)
        self.durable = bytearray(data)
        self.dirty: list[tuple[int, bytes]] = []


class SimDisk(Disk):
    """Files in memory with a page cache: what was not flushed may be lost, sector by sector, in a crash.

    `before(kind, name)` is called before each operation that changes something, and may raise. `capacity` bounds the sum of sizes.
    """

    def __init__(self, capacity: int = 1 << 40) -> None:
        super().__init__("sim")
        self.files: dict[str, Inode] = {}
        self.durable_files: dict[str, Inode] = {}
        self.directory_log: list[dict[str, Inode]] = []
        self.capacity = capacity
        self.taken_by_others = 0
        self.operations: list[tuple[str, str]] = []
        self.before: Callable[[str, str], None] = lambda kind, name: None
        self._fds: dict[int, tuple[str, Inode]] = {}
        self._next_fd = 1000

    @property
    def open_descriptors(self) -> int:
        return len(self._fds)

    def _operation(self, kind: str, name: str) -> None:
        self.before(kind, name)
        self.operations.append((kind, name))

    def names(self) -> list[str]:
        return sorted(self.files)

    def open(self, name: str, create: bool = False) -> int:
        if name not in self.files:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file", name)
            self._operation("create", name)
            self.files[name] = Inode()
            self._directory_changed()
        self._next_fd += 1
        self._fds[self._next_fd] = name, self.files[name]
        return self._next_fd

    def close(self, fd: int) -> None:
        del self._fds[fd]

    def size(self, fd: int) -> int:
        return len(self._fds[fd][1].cached)

    def read(self, fd: int, size: int, offset: int) -> bytes:
        return bytes(self._fds[fd][1].cached[offset : offset + size])

    def write_at(self, fd: int, data: bytes, offset: int) -> None:
        name, inode = self._fds[fd]
        self._operation("write", name)
        if offset + len(data) > len(inode.cached):
            self._grow(inode, offset + len(data))
        inode.cached[offset : offset + len(data)] = data
        inode.dirty.append((offset, bytes(data)))

    def flush_fd(self, fd: int) -> None:
        name, inode = self._fds[fd]
        try:
            self._operation("flush", name)
        except OSError:
            inode.dirty.clear()  # As Linux does: the pages are clean now, and not on the disk.
            raise
        inode.durable[:] = _sized(inode.durable, len(inode.cached))
        for offset, data in inode.dirty:
            inode.durable[offset : offset + len(data)] = data
        inode.dirty.clear()

    def allocate_fd(self, fd: int, size: int) -> None:
        name, inode = self._fds[fd]
        self._operation("allocate", name)
        self._grow(inode, size)

    def free_bytes(self) -> int:
        return self.capacity - self.taken_by_others - sum(len(inode.cached) for inode in self.files.values())

    def rename(self, old: str, new: str) -> None:
        self.let_go()
        self._operation("rename", f"{old}>{new}")
        self.files[new] = self.files.pop(old)
        self._directory_changed()

    def unlink(self, name: str) -> None:
        self.let_go()
        if name in self.files:
            self._operation("unlink", name)
            del self.files[name]
            self._directory_changed()

    def flush_directory(self) -> None:
        self._operation("flush_directory", "")
        self.durable_files = dict(self.files)
        self.directory_log.clear()

    def killed(self) -> SimDisk:
        """The disk after the process was killed: the page cache stays."""
        return self._survivor(dict(self.files))

    def crashed(self, rng: random.Random) -> SimDisk:
        """The disk after the power went: directory changes up to some point, and of the unflushed sectors any."""
        names = rng.choice([self.durable_files, *self.directory_log])
        for inode in {id(inode): inode for inode in names.values()}.values():
            inode.durable[:] = _sized(inode.durable, len(inode.cached))
            for offset, data in inode.dirty:
                _tear(inode.durable, offset, data, rng)
            inode.cached[:] = inode.durable
            inode.dirty.clear()
        return self._survivor(dict(names), durable=True)

    def _survivor(self, names: dict[str, Inode], durable: bool = False) -> SimDisk:
        after = SimDisk(self.capacity)
        after.taken_by_others = self.taken_by_others
        after.files = names
        after.durable_files = dict(names) if durable else dict(self.durable_files)
        after.directory_log = [] if durable else list(self.directory_log)
        return after

    def _grow(self, inode: Inode, size: int) -> None:
        if size - len(inode.cached) > self.free_bytes():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        inode.cached[:] = _sized(inode.cached, size)

    def _directory_changed(self) -> None:
        self.directory_log.append(dict(self.files))


def _sized(data: bytearray, size: int) -> bytes:
    return bytes(data[:size]).ljust(size, b"\0")


def _tear(durable: bytearray, offset: int, data: bytes, rng: random.Random) -> None:
    """Each sector of a write gets there or does not; now and then one is left half written."""
    at = 0
    mood = rng.choice((0.0, 0.5, 0.9, 1.0))
    while at < len(data):
        size = min(SECTOR - (offset + at) % SECTOR, len(data) - at)
        kept = size if rng.random() < mood else 0
        if rng.random() < 0.02:
            kept = rng.randrange(size)
        durable[offset + at : offset + at + kept] = data[at : at + kept]
        at += size


class FakeLoop:
    """As much of an event loop as the log uses; `clock` moves only by `advance`."""

    def __init__(self) -> None:
        self.now = 0.0
        self._ready: list[Callable[[], None]] = []
        self._timers: list[_Timer] = []

    def clock(self) -> float:
        return self.now

    def call_soon(self, callback: Callable[..., None], *arguments: Any) -> None:
        self._ready.append(lambda: callback(*arguments))

    def call_later(self, delay: float, callback: Callable[..., None], *arguments: Any) -> _Timer:
        timer = _Timer(self.now + delay, lambda: callback(*arguments))
        self._timers.append(timer)
        return timer

    def run(self) -> None:
        """Run what is ready, and what that makes ready, until nothing is."""
        while self._ready:
            self._ready.pop(0)()

    def advance(self, seconds: float) -> None:
        until = self.now + seconds
        self.run()
        while due := sorted((timer for timer in self._timers if timer.due <= until), key=lambda timer: timer.due):
            self._timers.remove(due[0])
            self.now = due[0].due
            if not due[0].is_cancelled:
                due[0].callback()
            self.run()
        self.now = until


class _Timer:
    def __init__(self, due: float, callback: Callable[[], None]) -> None:
        self.due = due
        self.callback = callback
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Salts:
    """Salts that never repeat."""

    def __init__(self, first: int = 1) -> None:
        self.next = first

    def __call__(self) -> int:
        self.next += 1
        return self.next * 0x9E3779B97F4A7C15 % (1 << 64)


SALTS = Salts()


def sim_log(disk: SimDisk, loop: FakeLoop, options: LogOptions = SMALL, proven_lsn: int = 0) -> Log:
    return Log.open(ANYWHERE, options, proven_lsn=proven_lsn, loop=loop, clock=loop.clock, salt=SALTS, disk=disk)  # type: ignore[arg-type]


def record(lsn: int) -> bytes:
    """A record that knows its LSN; its size varies with it."""
    return struct.pack("<Q", lsn) + bytes([lsn % 251]) * (lsn * 7919 % 400)


def records(first: int, count: int) -> bytes:
    return join_records([record(lsn) for lsn in range(first, first + count)])


def append(log: Log, count: int = 1, *, epoch: int = 1, running: bool = True) -> int:
    return log.append(records(log.last_lsn + 1, count), count, epoch, running=running)


def read_all(disk: Disk | None, through: int, directory: Path = ANYWHERE) -> list[int]:
    """The LSNs of a log from its oldest record on, each proven by its bytes."""
    found: list[int] = []
    for batch in read_batches(directory, None, through, disk=disk):
        for lsn, view in enumerate(split_records(batch.body), batch.first_lsn):
            assert bytes(view) == record(lsn)
            found.append(lsn)
        assert found[-1] == batch.last_lsn
    return found
