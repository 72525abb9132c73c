# Several worker processes, kept running.
#
# Rule 1: nothing happens but by a signal or a restart that is due, and both are waited for in one place. So there are no handlers and no
#         threads, and no signal can be missed.
# Rule 2: a child that dies is started again after a pause that grows with every death and shrinks back after a good while of work.
# Rule 3: a child that says "wrong use" will say so again: all end with that code.
# Rule 4: children die with the supervisor (see parent.py). They have sessions of their own, so that a Ctrl-C at the terminal
#         reaches the supervisor alone, which then asks each child once.
"""`supervise`: N worker processes of one module."""
from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import Final

from fusee_mp.cli.main import EXIT_USAGE
from fusee_mp.cli.shards import ask_server_status
from fusee_mp.security.token import check_leasing

LOG: Final = logging.getLogger("fusee_mp.supervisor")
WATCHED: Final = frozenset((signal.SIGCHLD, signal.SIGTERM, signal.SIGINT))
PAUSE_FIRST_S: Final = 0.25
PAUSE_MOST_S: Final = 30.0
GOOD_WHILE_S: Final = 60.0
CONNECT_MS: Final = 10_000


@dataclass
class Child:
    """One place for a worker process."""

    command: list[str]
    process: subprocess.Popen[bytes] | None = None
    started_s: float = 0.0
    pause_s: float = 0.0
    due_s: float | None = field(default=0.0)  # of the next start; None: not to be started

    def start(self, now_s: float) -> None:
        self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, start_new_session=True)
        self.started_s, self.due_s = now_s, None

    def ended(self, now_s: float) -> None:
        self.process = None
        if now_s - self.started_s >= GOOD_WHILE_S:
            self.pause_s = 0.0
        self.pause_s = min(2 * self.pause_s or PAUSE_FIRST_S, PAUSE_MOST_S)
        self.due_s = now_s + self.pause_s


def supervise(module: str, processes: int, max_shards: int | None, name: str, flags: list[str], address: str) -> int:
    """Keep so many workers running until SIGTERM or SIGINT; the exit code. Raises Unavailable when there is no server at first, Denied when
    it lets in no worker with this address."""
    shards = _shards(address)
    share = -(-shards // processes) if max_shards is None else max_shards
    base = [sys.executable, "-m", "fusee_mp.cli", "worker", module, f"--max-shards={share}", f"--parent={os.getpid()}", "--patient", *flags]
    children = [Child([*base, *([f"--name={name}-{number}"] if name else [])]) for number in range(1, processes + 1)]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    try:
        return _keep(children)
    finally:
        for child in children:
            if child.process is not None:
                child.process.kill()
                child.process.wait()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _shards(address: str) -> int:
    """How many the server has. Raises Unavailable, and Denied when it would let in no worker with this address."""
    facts = asyncio.run(ask_server_status(address, CONNECT_MS))
    check_leasing(facts.get("scope", "full"))
    return len(facts["shards"])


def _keep(children: list[Child]) -> int:
    code: int | None = None
    while code is None or any(child.process for child in children):
        now_s = time.monotonic()
        if code is None:
            for child in children:
                if child.due_s is not None and child.due_s <= now_s:
                    child.start(now_s)
        number = _wait([child.due_s for child in children if child.due_s is not None and code is None], now_s)
        if number in (signal.SIGTERM, signal.SIGINT):
            code = code or 0
            _tell(children)
        for child in children:
            status = None if child.process is None else child.process.poll()
            if status is None:
                continue
            _report(child, status, is_stopping=code is not None)
            child.ended(time.monotonic())
            if status == EXIT_USAGE and code is None:
                code = EXIT_USAGE
                _tell(children)
    return code


def _wait(due_s: list[float], now_s: float) -> int | None:
    """The next signal, or None when a start is due before it."""
    if not due_s:
        return signal.sigwaitinfo(WATCHED).si_signo
    found = signal.sigtimedwait(WATCHED, max(0.0, min(due_s) - now_s))
    return None if found is None else found.si_signo


def _tell(children: list[Child]) -> None:
    for child in children:
        if child.process is not None:
            child.process.terminate()


def _report(child: Child, status: int, is_stopping: bool) -> None:
    assert child.process is not None
    how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"exited with code {status}"
    LOG.log(logging.INFO if is_stopping else logging.WARNING, "worker process %d %s%s", child.process.pid, how,
            "" if is_stopping else "; ending all: it will say so again" if status == EXIT_USAGE else "; starting it again")
