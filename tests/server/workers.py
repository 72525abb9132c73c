"""Workers in processes of their own."""
from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from tests.server.tree import PATIENCE_S, first_line

ROOT = Path(__file__).parents[2]


class WorkerProcess:
    """A worker with the workflows of flows.py, or of another such program; `with` it, and it is gone afterwards."""

    def __init__(self, address: str, name: str, effects: Path, max_shards: int = 0, program: str = "tests.server.flows") -> None:
        self.name = name
        self.log_path = effects.with_name(f"{name}.log")
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", program, address, name, str(max_shards), str(effects)], cwd=ROOT,
                stdout=subprocess.PIPE, stderr=log, text=True,
            )

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def holds(self) -> WorkerProcess:
        """Wait until it holds a shard."""
        line = first_line(self.process)
        assert line.startswith("holds"), f"expected a worker that holds a shard, found {line!r}; its log:\n{self.log}"
        return self

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def wait(self) -> int:
        return self.process.wait(PATIENCE_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
