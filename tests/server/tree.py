"""A server tree in processes of its own: start it, find its processes, end them, start it again on the same port."""
from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import psutil

from tests.processes import is_alive

PATIENCE_S = 30.0
PROGRAM = """
import json, logging, sys
from fusee_mp.router.main import run
from fusee_mp.router.options import ServeOptions
logging.basicConfig(level=logging.INFO, format="%(asctime)s router %(levelname)s %(message)s")
options = json.loads(sys.argv[1])
sys.exit(run(ServeOptions(**{name: tuple(value) if isinstance(value, list) else value for name, value in options.items()})))
"""
T = TypeVar("T")


def until(look: Callable[[], T], story: Callable[[], str] = lambda: "it did not come true") -> T:
    """What `look` gives once that is true."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := look()):
        assert time.monotonic() < deadline, story()
        time.sleep(0.005)
    return found


def first_line(process: subprocess.Popen[str]) -> str:
    """What a process says first; empty when it says nothing within the patience."""
    assert process.stdout is not None
    readable, _, _ = select.select([process.stdout], [], [], PATIENCE_S)
    return process.stdout.readline() if readable else ""


class Tree:
    """A server. `start` it; `close` leaves no process of it."""

    def __init__(self, directory: Path, **options: Any) -> None:
        self.directory = directory
        self.log_path = directory.with_suffix(".log")
        self._options = {"dir": str(directory), "listen": ["127.0.0.1:0"], "shards": 2, "grace_ms": 5_000, **options}
        self.router: subprocess.Popen[str] | None = None
        self.address = ""

    def start(self) -> Tree:
        """Start the processes and wait for the ready line. Again on the same port when it ran before."""
        if self.address:
            self._options["listen"] = [self.address]
        with open(self.log_path, "ab") as log:
            self.router = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, json.dumps(self._options)], stdout=subprocess.PIPE, stderr=log, text=True,
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            )
        line = first_line(self.router)
        assert " ready on " in line, f"expected the ready line, found {line!r}; the log:\n{self.log}"
        self.address = line.partition(" ready on ")[2].partition(" ")[0]
        return self

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    @property
    def processes(self) -> list[psutil.Process]:
        """Everything below the router, and the router itself first."""
        assert self.router is not None
        router = psutil.Process(self.router.pid)
        return [router, *router.children(recursive=True)]

    def shard(self, shard: int) -> psutil.Process:
        """The process of a shard, once it is there."""
        return until(lambda: self._find(lambda words: "fusee_mp.shardproc" in words and json.loads(words[-1])["shard"] == shard))

    def keeper(self, shard: int) -> psutil.Process:
        """The keeper of a shard, once it is there."""
        name = f"shard-{shard:03d}"
        return until(lambda: self._find(lambda words: "fusee_mp.keeper" in words and any(word.endswith(name) for word in words)))

    def _find(self, is_it: Callable[[list[str]], bool]) -> psutil.Process | None:
        for process in self.processes:
            try:
                if is_it(process.cmdline()) and is_alive(process):
                    return process
            except psutil.NoSuchProcess:
                continue
        return None

    def kill_router(self) -> list[psutil.Process]:
        """SIGKILL it, and return what was below it."""
        assert self.router is not None
        below = self.processes[1:]
        self.router.kill()
        self.router.wait()
        return below

    def restart(self, how: signal.Signals = signal.SIGKILL) -> Tree:
        """End the router with this signal, wait until its processes are gone, and start again on the same port."""
        assert self.router is not None
        below = self.processes[1:]
        self.router.send_signal(how)
        self.router.wait(PATIENCE_S)
        until(lambda: not any(map(is_alive, below)))
        self._close_output()
        return self.start()

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        assert self.router is not None
        self.router.terminate()
        return self.router.wait(PATIENCE_S)

    def close(self) -> None:
        if self.router is not None and self.router.poll() is None:
            for process in self.processes:
                if is_alive(process):
                    process.send_signal(signal.SIGCONT)
            below = self.kill_router()
            until(lambda: not any(map(is_alive, below)))
        self._close_output()

    def _close_output(self) -> None:
        if self.router is not None and self.router.stdout is not None:
            self.router.stdout.close()


@contextmanager
def serving(directory: Path, **options: Any) -> Iterator[Tree]:
    """A server that is ready, and gone afterwards."""
    tree = Tree(directory, **options)
    try:
        yield tree.start()
    finally:
        tree.close()
