# The program of a process that runs step bodies, one after the other (processes.py has the rules and the messages).
#
# The main thread runs bodies. Another one reads the socket, and ends the process when that is at its end, whatever the body does.
from __future__ import annotations

import asyncio
import ctypes
import inspect
import os
import queue
import runpy
import signal
import socket
import sys
import threading
from contextlib import suppress
from types import ModuleType
from typing import Any, Final, NoReturn

from fusee_mp.bounds import FRAME_BYTES_MAX
from fusee_mp.errors import PayloadError
from fusee_mp.payload.failure import encode_failure
from fusee_mp.runtime import pickles
from fusee_mp.runtime.processes import BEAT, CALL, FAILED, LENGTH_BYTES, VALUE
from fusee_mp.runtime.steps import CURRENT

_PR_SET_PDEATHSIG: Final = 1
# The main module's name while it is run a second time, so that its `if __name__ == "__main__"` does not hold.
GUISE: Final = "__fusee_main__"


class Link:
    """The socket to the parent. Any thread may send."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._reader = self._socket.makefile("rb")
        self._lock = threading.Lock()

    def send(self, kind: int, content: bytes) -> None:
        with self._lock:
            self._socket.sendall((len(content) + 1).to_bytes(LENGTH_BYTES, "little") + bytes((kind,)) + content)

    def receive(self) -> bytes | None:
        """The next call; None at the end."""
        length = self._reader.read(LENGTH_BYTES)
        frame = self._reader.read(int.from_bytes(length, "little")) if len(length) == LENGTH_BYTES else b""
        return frame[1:] if frame and frame[0] == CALL else None


class RemoteStep:
    """The step of this process's body, as `current_step` reaches it."""

    def __init__(self, link: Link, key: str, progress: bytes | None, bytes_max: int) -> None:
        self._link = link
        self.key = key
        self.progress = progress
        self.bytes_max = bytes_max

    def report(self, _generation: int, payload: bytes) -> None:
        self._link.send(BEAT, payload)


def main() -> NoReturn:
    fd, parent = int(sys.argv[2]), int(sys.argv[3])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    _die_with(parent)
    link = Link(fd)
    calls: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(link, calls), daemon=True).start()
    while True:
        _run(link, calls.get())


def _die_with(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def _read(link: Link, calls: queue.SimpleQueue[bytes]) -> None:
    with suppress(OSError):
        while (call := link.receive()) is not None:
            calls.put(call)
    os._exit(1)


def _run(link: Link, call: bytes) -> None:
    try:
        (key, attempt, progress, bytes_max, program), body = pickles.loads(call)
        if b"__main__" in body:
            _load_main(*program)
        fn, args, kwargs = pickles.loads(body)
        CURRENT.set((RemoteStep(link, key, progress, bytes_max), 0, attempt))
        value = fn(*args, **kwargs)
        if inspect.isawaitable(value):
            value = asyncio.run(_awaited(value))
        content = pickles.dumps(value)
        if len(content) > FRAME_BYTES_MAX:
            raise PayloadError(f"the result is too large: expected at most {FRAME_BYTES_MAX:,} bytes, found {len(content):,}."
                               " Store it elsewhere and send its address.", limit=FRAME_BYTES_MAX, size=len(content))
    except BaseException as e:
        link.send(FAILED, encode_failure(e))
    else:
        link.send(VALUE, content)


async def _awaited(value: Any) -> Any:
    return await value


def _load_main(name: str, path: str) -> None:
    """Once, and only in a program that has a main module of its own: run it under another name, and put it where its names are sought."""
    if getattr(sys.modules["__main__"], "fusee_loaded", False) or not path or not os.path.exists(path):
        return
    module = ModuleType("__main__")
    module.__dict__["fusee_loaded"] = True
    sys.modules["__main__"] = module
    content = runpy.run_module(name, run_name=GUISE) if name else runpy.run_path(path, run_name=GUISE)
    module.__dict__.update(content)
    for value in content.values():
        if getattr(value, "__module__", "") == GUISE:
            with suppress(AttributeError, TypeError):
                value.__module__ = "__main__"
