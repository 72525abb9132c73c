# Two lanes to the disk.
#
# A lane takes scripts (see disk.py) and says how each went, in order, one at a time. The inline lane runs them on the spot. The
# helper process has two lanes, so that a flush never waits for work ahead.
#
# Rule 1: a script whose outcome was lost with the helper has the outcome `lost`. The caller must find out for itself what happened: a
#         flush is repeated on a descriptor that was open before the write, which reports an error even if another has seen it.
# Rule 2: both ends of a socket are closed by whoever made them: the helper's ends here right after the start, ours in `close`.
"""Running scripts of file steps: on the spot, or in the helper process."""
from __future__ import annotations

import asyncio
import marshal
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from fusee_mp.log import disk as program
from fusee_mp.log.disk import LENGTH_BYTES, REPLY_BYTES, Disk, run_script
from fusee_mp.log.page import Page

# Imported, not run as a script: compiling it anew would cost the helper 0.8 MiB for good.
PROGRAM = "import sys; sys.path.append(sys.argv[1]); import disk; disk.main(*sys.argv[2:])"

Script = tuple[tuple[Any, ...], ...]


class Outcome(NamedTuple):
    """How a script went: done in `elapsed_s`, failed with `error`, or `lost` with the process that ran it."""

    error: OSError | None = None
    elapsed_s: float = 0.0
    lost: bool = False


Done = Callable[[Outcome], object]


class Lane(Protocol):
    """Runs scripts in order and reports each once."""

    def run(self, script: Script, done: Done) -> None: ...

    def hurry(self) -> None:
        """End a fill that is under way: its script goes on with the next step."""


class InlineLane:
    """Runs a script at once in this process. It leaves fills out: they only save time later, and would take it now."""

    def __init__(self, disk: Disk, clock: Callable[[], float]) -> None:
        self._disk = disk
        self._clock = clock

    def run(self, script: Script, done: Done) -> None:
        started = self._clock()
        try:
            run_script(self._disk, (step for step in script if step[0] != "fill"))
        except OSError as error:
            done(Outcome(error))
        else:
            done(Outcome(None, self._clock() - started))
        finally:
            self._disk.let_go()

    def hurry(self) -> None:
        pass


class _SocketLane:
    """Our end of one socket of the helper."""

    def __init__(self, ours: socket.socket, loop: asyncio.AbstractEventLoop, on_lost: Callable[[], None]) -> None:
        self._socket = ours
        self._loop = loop
        self._on_lost = on_lost
        self._queued: deque[tuple[Script, Done]] = deque()
        self._sent: deque[Done] = deque()
        self._busy = False
        self._answers = b""
        ours.setblocking(False)
        loop.add_reader(ours.fileno(), self._readable)

    def run(self, script: Script, done: Done) -> None:
        if self._socket.fileno() < 0:
            done(Outcome(lost=True))
            return
        self._queued.append((script, done))
        if not self._busy:
            self._next()

    def hurry(self) -> None:
        # Any arrival ends a fill, so an empty script does. No more than one is ever unread.
        if self._busy and len(self._sent) == 1:
            self._send((), _ignore)

    def close(self) -> None:
        """Stop listening and give every unanswered script the outcome `lost`."""
        if self._socket.fileno() < 0:
            return
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        unanswered = [*self._sent, *(done for _, done in self._queued)]
        self._sent.clear()
        self._queued.clear()
        for done in unanswered:
            done(Outcome(lost=True))

    def _next(self) -> None:
        script, done = self._queued.popleft()
        self._busy = True
        self._send(script, partial(self._finished, done))

    def _finished(self, done: Done, outcome: Outcome) -> None:
        self._busy = False
        if self._queued:
            self._next()
        done(outcome)

    def _send(self, script: Script, done: Done) -> None:
        data = marshal.dumps(script)
        self._sent.append(done)
        try:
            # A script is a few KiB and at most two are unread: it fits the socket's buffer whole.
            self._socket.send(len(data).to_bytes(LENGTH_BYTES, "little") + data)
        except OSError:
            self._loop.call_soon(self._on_lost)

    def _readable(self) -> None:
        try:
            data = self._socket.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._on_lost()
            return
        self._answers += data
        while len(self._answers) >= REPLY_BYTES:
            answer, self._answers = self._answers[:REPLY_BYTES], self._answers[REPLY_BYTES:]
            self._sent.popleft()(_outcome(answer))


def _ignore(outcome: Outcome) -> None:
    pass


def _outcome(answer: bytes) -> Outcome:
    errno, elapsed_s = int(answer[:6]), float(answer[6:])
    return Outcome(OSError(errno, os.strerror(errno)) if errno else None, elapsed_s)


class Helper:
    """The helper process of one log. `flushes` and `work` are its lanes; `on_lost` is called once if it ends by itself."""

    def __init__(
        self, directory: Path, loop: asyncio.AbstractEventLoop, on_lost: Callable[[], None], *, emulated_flush_ms: float = 0,
        inherit: Iterable[int] = (),
    ) -> None:
        self._page = _page()
        pairs = [socket.socketpair(), socket.socketpair()]
        try:
            self._process = _spawn(directory, [pair[1].fileno() for pair in pairs], self._page, emulated_flush_ms, inherit)
        except BaseException:
            for pair in pairs:
                pair[0].close()
            if self._page is not None:
                self._page.close()
            raise
        finally:
            for pair in pairs:
                pair[1].close()
        self._on_lost = on_lost
        self.flushes = _SocketLane(pairs[0][0], loop, self._lost)
        self.work = _SocketLane(pairs[1][0], loop, self._lost)
        self._closed = False

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def words(self) -> memoryview | None:
        """The page that a step `attend` looks at, where there is one."""
        return None if self._page is None else self._page.words

    def close(self) -> None:
        """End the process and wait for that. What it was doing is undone or done: each script survives a kill at any step."""
        if self._closed:
            return
        self._closed = True
        self._process.kill()
        self._process.wait()
        self.flushes.close()
        self.work.close()
        if self._page is not None:
            self._page.close()

    def _lost(self) -> None:
        if not self._closed:
            self.close()
            self._on_lost()


def _page() -> Page | None:
    try:
        return Page("fusee-flushes")
    except OSError:
        return None


def _spawn(
    directory: Path, sockets: list[int], page: Page | None, emulated_flush_ms: float, inherit: Iterable[int]
) -> subprocess.Popen[bytes]:
    pages = [] if page is None else [page.fd]
    arguments = [*map(str, sockets), *map(str, pages or [-1]), str(os.getpid()), str(directory), str(emulated_flush_ms)]
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", PROGRAM, str(Path(program.__file__).parent), *arguments],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=(*sockets, *pages, *inherit), close_fds=True,
    )
