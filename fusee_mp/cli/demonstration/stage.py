# The processes of the demonstration: who starts them, who kills them, and that none is left.
#
# Rule 1: they live in a directory of their own, and speak over a Unix socket in it: nothing here can meet another server.
# Rule 2: they die with this process, however it ends (see cli/parent.py).
from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Self

import psutil

from fusee_mp.cli.demonstration.shop import LEDGER_VARIABLE
from fusee_mp.cli.shards import ask_server_status
from fusee_mp.errors import FuseeError

SHARDS: Final = 2
WORKERS: Final = 2
LOOK_S: Final = 0.05
PATIENCE_S: Final = 30.0


class StageError(FuseeError):
    """Something on the stage did not come up."""

    code = "demo"


class Stage:
    """A server and its workers in a temporary directory. Use it as a context manager: nothing of it is left afterwards."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="fusee-demo-"))
        self.address = f"unix:{self.directory}/server"
        self.ledger = self.directory / "ledger"
        self._server: subprocess.Popen[bytes] | None = None
        self._workers: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in (self._workers, self._server):
            if process is not None:
                _kill(_family(process.pid))
                process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)

    # Coming up.

    async def start_server(self) -> None:
        """Start the server and wait until all shards are there."""
        self._server = self._start(
            "server", "serve", str(self.directory / "data"),
            "--listen=127.0.0.1:0", f"--unix={self.directory}/server", f"--shards={SHARDS}",
        )
        await self._until("the server is ready", lambda status: all(shard["state"] == "ready" for shard in status["shards"]))

    async def start_workers(self) -> None:
        """Start the worker processes and wait until each holds a shard."""
        self._workers = self._start(
            "workers", "worker", "fusee_mp.cli.demonstration.shop", f"--processes={WORKERS}", f"--address={self.address}",
        )
        await self.until_whole()

    async def until_whole(self) -> None:
        """Wait until every shard is up, has a keeper, and is held."""
        await self._until("every shard is held", is_whole)

    def _start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.directory / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "fusee_mp.cli", *arguments, f"--parent={os.getpid()}"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, LEDGER_VARIABLE: str(self.ledger)},
            )

    async def _until(self, what: str, holds: Callable[[dict[str, Any]], bool]) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + PATIENCE_S
        while loop.time() < end:
            with contextlib.suppress(FuseeError):
                if holds(await self.status()):
                    return
            self._check_alive()
            await asyncio.sleep(LOOK_S)
        raise StageError(f"waited {PATIENCE_S:.0f} s and it did not come about that {what}. The logs end so:\n{self.last_words()}")

    def _check_alive(self) -> None:
        for name, process in (("server", self._server), ("workers", self._workers)):
            if process is not None and process.poll() is not None:
                raise StageError(f"the {name} ended with code {process.returncode}. The logs end so:\n{self.last_words()}")

    async def status(self) -> dict[str, Any]:
        return await ask_server_status(self.address, 2_000)

    def last_words(self) -> str:
        """The ends of the logs, for a failure's report."""
        logs = sorted(self.directory.glob("*.log"))
        return "\n".join(f"{path.name}: {line}" for path in logs for line in path.read_text().splitlines()[-15:])

    # Going down.

    async def kill_worker(self) -> str:
        """Kill one worker process; its supervisor starts it again."""
        assert self._workers is not None
        victim = psutil.Process(self._workers.pid).children()[0].pid
        before = await self._holders()
        os.kill(victim, signal.SIGKILL)
        await self._until("the killed worker's shard is held again", lambda status: is_whole(status) and _holders(status) != before)
        return f"worker {victim}"

    async def kill_shard(self) -> str:
        """Kill one shard process; the router starts it again."""
        shard = (await self.status())["shards"][0]
        os.kill(shard["pid"], signal.SIGKILL)
        await self._until("the killed shard is back", lambda status: is_whole(status) and status["shards"][0]["pid"] != shard["pid"])
        return f"the process {shard['pid']} of shard 0"

    async def kill_keeper(self) -> str:
        """Kill one keeper; its shard process starts it again."""
        await self.until_whole()
        keeper = (await self.status())["shards"][1]["keeper_pid"]
        os.kill(keeper, signal.SIGKILL)
        await self._until("the killed keeper is back", lambda status: is_whole(status) and status["shards"][1]["keeper_pid"] != keeper)
        return f"the keeper {keeper} of shard 1"

    async def kill_server(self) -> str:
        """Kill the router and everything it started, all at once, and start the server again."""
        assert self._server is not None
        family, before = _family(self._server.pid), await self._holders()
        _kill(family)
        self._server.wait()
        await self.start_server()
        await self._until("every shard is held again", lambda status: is_whole(status) and _holders(status) != before)
        return f"the whole server ({len(family)} processes)"

    async def _holders(self) -> list[tuple[str, int]]:
        return _holders(await self.status())


def is_whole(status: dict[str, Any]) -> bool:
    return all(shard["state"] == "ready" and shard["worker"] and shard["keeper_pid"] for shard in status["shards"])


def _holders(status: dict[str, Any]) -> list[tuple[str, int]]:
    return [(shard["worker"], shard["epoch"]) for shard in status["shards"]]


def _family(pid: int) -> Sequence[psutil.Process]:
    """A process and its descendants, the ancestors first."""
    try:
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _kill(family: Sequence[psutil.Process]) -> None:
    """Kill all of them, and wait until none of them runs."""
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    end = time.monotonic() + PATIENCE_S
    while any(_runs(process) for process in family) and time.monotonic() < end:
        time.sleep(LOOK_S / 10)


def _runs(process: psutil.Process) -> bool:
    # One that nobody has reaped yet has ended all the same: who adopts orphans here may be slow at it.
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
