# What the log does to files, and a program that does it for another process.
#
# `Disk` is the one door to the file system: the real one here, a failing and a forgetting one in the tests. A *script* is a list of
# named steps on files of one directory, so that the same list can be run in this process or sent to another.
#
# Its `main` is the flush helper, in a process that has imported nothing of the package but this file. It takes scripts from two
# sockets, one thread each: flushes on the first, work ahead (filling, marking, renaming) on the second. It decides nothing, and ends
# when its parent does. It must stay small in memory: hence no import beyond what the interpreter itself has loaded, and no typing at
# run time.
"""The file operations of the log, and the helper program."""
from __future__ import annotations

import _thread
import marshal
import os
import select
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    Step = tuple[Any, ...]

FILL_PIECE_BYTES = 262_144  # bounds.LOG_FILL_PIECE_BYTES, which cannot be imported here; a test holds them equal
FILL_PAUSE_MS = 10
FULL_SYNC = 51  # F_FULLFSYNC of macOS: fsync there leaves the data in the drive's cache
LENGTH_BYTES = 4
REPLY_BYTES = 24
# The words of the page that a step `attend` looks at: the segment to flush, how many flushes were asked for, until when (monotonic, ns)
# more are expected; and its answers: how long the last took, and its number with its errno in the low bits.
SEGMENT, ASKED, UNTIL, FLUSH_NS, DONE = range(5)
ERRNO_BITS = 12
PAGE_BYTES = 4096  # page.PAGE_BYTES
STEPS = frozenset({"write", "flush", "rename", "unlink", "flush_directory", "allocate", "fill", "need_free", "attend"})


class Disk:
    """Files of one directory. Every method raises OSError; whoever opens a descriptor closes it."""

    def __init__(self, directory: str, emulated_flush_ms: float = 0) -> None:
        self.directory = directory
        self._emulated_flush_s = emulated_flush_ms / 1000
        self._held: tuple[str, int] | None = None

    def path(self, name: str) -> str:
        return f"{self.directory}/{name}"

    def names(self) -> list[str]:
        return sorted(os.listdir(self.directory))

    def open(self, name: str, create: bool = False) -> int:
        return os.open(self.path(name), os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o640)

    def close(self, fd: int) -> None:
        os.close(fd)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def read(self, fd: int, size: int, offset: int) -> bytes:
        return os.pread(fd, size, offset)

    def write_at(self, fd: int, data: bytes, offset: int) -> None:
        """Write all of `data`, however many calls that takes."""
        written = os.pwrite(fd, data, offset)
        while written < len(data):
            written += os.pwrite(fd, data[written:], offset + written)

    def flush_fd(self, fd: int) -> None:
        """Return once the file's data is on the disk. After an error nothing is known about any of it."""
        if sys.platform == "darwin":
            _full_sync(fd)
        else:
            os.fdatasync(fd)
        if self._emulated_flush_s:
            time.sleep(self._emulated_flush_s)

    def allocate_fd(self, fd: int, size: int) -> None:
        """Claim the space of a file of `size` bytes, so that no later write to it meets a full disk."""
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, size)
        else:
            os.ftruncate(fd, size)

    def free_bytes(self) -> int:
        state = os.statvfs(self.directory)
        return state.f_bavail * state.f_frsize

    # The steps of scripts, by name of the file.

    def rename(self, old: str, new: str) -> None:
        self._let_go()
        os.rename(self.path(old), self.path(new))

    def unlink(self, name: str) -> None:
        self._let_go()
        try:
            os.unlink(self.path(name))
        except FileNotFoundError:
            pass

    def flush_directory(self) -> None:
        fd = os.open(self.directory, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def write(self, name: str, data: bytes, offset: int) -> None:
        self.write_at(self._hold(name), data, offset)

    def flush(self, name: str) -> None:
        self.flush_fd(self._hold(name))

    def allocate(self, name: str, size: int) -> None:
        self.allocate_fd(self._hold(name, create=True), size)

    def fill(self, name: str, size: int, pause: Callable[[], bool] | None = None) -> None:
        """Write zeroes over a file in flushed pieces until the end or until `pause`, called between them, returns True."""
        fd = self._hold(name)
        piece = bytes(FILL_PIECE_BYTES)
        for start in range(0, size, FILL_PIECE_BYTES):
            self.write_at(fd, piece[: size - start], start)
            self.flush_fd(fd)
            if pause is not None and pause():
                return

    def attend(self, name: str, segment: int, words: memoryview) -> None:
        """Flush a file whenever the page asks for it, until the page expects no more, or asks for another segment."""
        fd, done = self._hold(name), words[DONE] >> ERRNO_BITS
        while words[UNTIL] > time.monotonic_ns():
            asked = words[ASKED]
            if words[SEGMENT] != segment:
                return
            if asked != done:
                started = time.monotonic_ns()
                errno = self._flush_errno(fd)
                words[FLUSH_NS] = time.monotonic_ns() - started
                words[DONE] = asked << ERRNO_BITS | errno
                done = asked

    def _flush_errno(self, fd: int) -> int:
        try:
            self.flush_fd(fd)
        except OSError as error:
            return error.errno or 5
        return 0

    def need_free(self, size: int) -> None:
        if self.free_bytes() < size:
            raise OSError(28, os.strerror(28))

    def let_go(self) -> None:
        """Close what the steps hold open."""
        self._let_go()

    def _hold(self, name: str, create: bool = False) -> int:
        if self._held is None or self._held[0] != name:
            self._let_go()
            self._held = name, self.open(name, create)
        return self._held[1]

    def _let_go(self) -> None:
        if self._held is not None:
            held, self._held = self._held, None
            self.close(held[1])


def _full_sync(fd: int) -> None:
    import fcntl

    fcntl.fcntl(fd, FULL_SYNC)


def run_script(
    disk: Disk, script: Iterable[Step], pause: Callable[[], bool] | None = None, words: memoryview | None = None
) -> None:
    """Run steps in order; the first error ends the script."""
    extra = {"fill": (pause,), "attend": (words,)}
    for name, *arguments in script:
        if name not in STEPS:
            raise OSError(22, f"no such step: {name!r}")
        getattr(disk, name)(*arguments, *extra.get(name, ()))


class _Server:
    """One socket of the helper: scripts in, the outcome of each out, in order."""

    def __init__(self, disk: Disk, fd: int, parent: int, words: memoryview | None = None) -> None:
        self._disk = disk
        self._words = words
        self._fd = fd
        self._parent = parent
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)

    def serve(self) -> None:
        try:
            while True:
                self._wait()
                self._reply(*self._run(marshal.loads(self._receive())))
        finally:
            os._exit(0)

    def _wait(self) -> None:
        # The socket ends with the parent, unless a process it forked holds a copy: hence the second look.
        while not self._poll.poll(1000):
            if os.getppid() != self._parent:
                os._exit(0)

    def _receive(self) -> bytes:
        return self._exactly(int.from_bytes(self._exactly(LENGTH_BYTES), "little"))

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = os.read(self._fd, size - len(data))
            if not part:
                os._exit(0)
            data += part
        return data

    def _run(self, script: Sequence[Step]) -> tuple[int, float]:
        started = time.monotonic()
        try:
            run_script(self._disk, script, self._pause, self._words)
        except OSError as error:
            return error.errno or 5, 0.0
        return 0, time.monotonic() - started

    def _pause(self) -> bool:
        return bool(self._poll.poll(FILL_PAUSE_MS))

    def _reply(self, errno: int, elapsed_s: float) -> None:
        os.write(self._fd, f"{errno:<6d}{elapsed_s:<18.9f}".encode()[:REPLY_BYTES])


def _mapped(page: int) -> memoryview | None:
    """The words of an inherited page; -1 stands for none."""
    if page < 0:
        return None
    import mmap

    words = memoryview(mmap.mmap(page, PAGE_BYTES)).cast("Q")
    os.close(page)
    return words


def main(flushes: str, work: str, page: str, parent: str, directory: str, emulated_flush_ms: str) -> None:
    """Serve both sockets until the parent is gone."""
    if cores := os.environ.get("FUSEE_CORES"):  # the parent stays on one, and is not to be disturbed there
        os.sched_setaffinity(0, map(int, cores.split(",")))
    flusher = _Server(Disk(directory, float(emulated_flush_ms)), int(flushes), int(parent), _mapped(int(page)))
    worker = _Server(Disk(directory), int(work), int(parent))
    _thread.start_new_thread(worker.serve, ())
    flusher.serve()
