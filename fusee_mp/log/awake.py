# Rule: without the program all is as with it, but slower. So its failure is none of ours, and it is not tried again.
"""`IdlePoll`: the processor that waits for a flush stays awake."""
from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from fusee_mp.bounds import LOG_AWAKE_US
from fusee_mp.log import idle_poll as program
from fusee_mp.log.idle_poll import ASLEEP, FLUSHES, UNTIL
from fusee_mp.log.page import Page

PROGRAM = "import sys; sys.path.append(sys.argv[1]); import idle_poll; idle_poll.main(*sys.argv[2:])"


class IdlePoll:
    """Call `extend` on the thread that flushes, right before a flush: its processor stays awake for LOG_AWAKE_US. The first call starts
    a process; `close` ends it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._is_over = False

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def extend(self) -> None:
        if self._process is None:
            self._start()
            return
        words = self._page.words
        words[UNTIL] = time.monotonic_ns() + LOG_AWAKE_US * 1000
        words[FLUSHES] += 1
        if words[ASLEEP]:
            words[ASLEEP] = 0
            self._ring()

    def close(self) -> None:
        """End the process and wait for that."""
        self._is_over = True
        if self._process is not None:
            process, self._process = self._process, None
            process.kill()
            process.wait()
            self._bell.close()
            self._page.close()

    def _ring(self) -> None:
        try:
            self._bell.send(b"!")
        except BlockingIOError:  # It was rung often enough.
            pass
        except OSError:  # It has ended.
            self.close()

    def _start(self) -> None:
        if self._is_over:
            return
        try:
            self._page = Page("fusee-idle-poll")
        except OSError:
            self._is_over = True
            return
        try:
            self._spawn()
        except OSError:
            self._is_over = True
            self._bell.close()
            self._page.close()

    def _spawn(self) -> None:
        self._bell, theirs = socket.socketpair()
        self._bell.setblocking(False)
        with theirs:
            handed = self._page.fd, theirs.fileno()
            arguments = map(str, (*handed, os.getpid(), threading.get_native_id()))
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", PROGRAM, str(Path(program.__file__).parent), *arguments],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, pass_fds=handed, close_fds=True,
            )
