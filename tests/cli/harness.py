"""Real commands in real processes, and in this one where that tells the same faster."""
from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fusee_mp.cli.main import main

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PATIENCE_S = 30.0


@dataclass
class Answer:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Running:
    """A command in a process of its own. It dies with the tests."""

    def __init__(self, *arguments: str, cwd: Path = HERE, **environment: str) -> None:
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        self._err: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fusee_mp.cli", *arguments], cwd=cwd, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path, **environment},
        )
        self._reader = threading.Thread(target=self._read_err)
        self._reader.start()

    def _read_err(self) -> None:
        assert self.process.stderr is not None
        self._err += iter(self.process.stderr.readline, "")

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def err(self) -> str:
        return "".join(self._err)

    def line(self) -> str:
        """The next line of its output."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"it ended with code {self.process.wait(PATIENCE_S)}: {self.err}"
        return line.rstrip("\n")

    def end(self) -> Answer:
        """Wait for its end."""
        assert self.process.stdout is not None
        out = self.process.stdout.read()
        code = self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        self.process.stdout.close()
        assert self.process.stderr is not None
        self.process.stderr.close()
        return Answer(code, out, self.err)

    def stop(self) -> Answer:
        self.process.terminate()
        return self.end()


@contextlib.contextmanager
def running(*arguments: str, cwd: Path = HERE, **environment: str) -> Iterator[Running]:
    command = Running(*arguments, f"--parent={os.getpid()}", cwd=cwd, **environment)
    try:
        yield command
    finally:
        if command.process.returncode is None:
            command.stop()


@contextlib.contextmanager
def serving(directory: Path, *arguments: str, shards: int = 2) -> Iterator[tuple[Running, str]]:
    """A server on a free port, and its address."""
    with running("serve", str(directory), "--listen=127.0.0.1:0", f"--shards={shards}", "--json", *arguments) as server:
        yield server, json.loads(server.line())["ready"][0]


def until(holds: Callable[[], Any]) -> Any:
    """What it gives once that is true."""
    end = time.monotonic() + PATIENCE_S
    while not (found := holds()):
        assert time.monotonic() < end, f"{holds} did not come about within {PATIENCE_S:g} s"
        time.sleep(0.02)
    return found


class Cli:
    """The command line in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str], address: str) -> None:
        self._capsys, self.address = capsys, address

    def __call__(self, *arguments: str) -> Answer:
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main(list(arguments))
        told = self._capsys.readouterr()
        assert isinstance(end.value.code, int)
        return Answer(end.value.code, told.out, told.err)
