"""The homes that the behaviour suite runs over. Each has `open()`, `close()`, `engine` (the methods) and, where runs outlive the engine
(`keeps`), `restart()`, and `stop()` before another `open()`. Only some take options of the engine (`takes_options`). A further home needs
these and a line in HOMES."""
from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from pathlib import Path
from typing import Any, ClassVar

from behaviour_bad_input import bad_calls, eats, open_run, takes_anything
from behaviour_life import LIFE
from behaviour_workflows import WORKFLOWS

from fusee_mp import Client, Config, Engine, FuseeError, NotFound, Rejected, Worker
from tests.server.tree import Tree

ALL = [*({**LIFE, **WORKFLOWS}.values()), bad_calls, eats, open_run, takes_anything]


class MemoryHome:
    """Nothing outlives the engine: what restarts is not played here."""

    keeps = False
    takes_options = False
    shards: ClassVar[int] = 3

    def __init__(self, directory: Path, **options: Any) -> None:
        self.engine: Any = None

    async def open(self) -> None:
        self.engine = await Engine.memory(workflows=ALL, shards=self.shards)

    async def close(self) -> None:
        await self.engine.close()


class EmbeddedHome:
    """A directory with real files, closed without a checkpoint: what is not in the log is gone. tests/crash kills such an engine."""

    keeps = True
    takes_options = True
    shards: ClassVar[int] = 2  # each has a process, which takes longer to start than most scenarios take

    def __init__(self, directory: Path, **options: Any) -> None:
        self._config = Config(dir=directory / "data", shards=self.shards, checkpoint_on_shutdown=False, **{"park_after": "10s", **options})
        self.engine: Any = None

    async def open(self) -> None:
        self.engine = await Engine.open(self._config, workflows=ALL)

    async def stop(self) -> None:
        await self.engine.close()

    close = stop

    async def restart(self) -> None:
        await self.stop()
        await self.open()

    @property
    def runtimes(self) -> list[Any]:
        return list(self.engine.runtimes)


class ServerHome:
    """A real server, a worker in this process and a client; `restart` kills the server and leaves worker and client to find it again.

    A server takes a second of both cores to start, so one serves scenario after scenario (`Lent`), each with a worker and a client of its
    own. What a scenario leaves is deleted, as an operator would; where that cannot be, the next one gets another server."""

    keeps = True
    takes_options = False
    shards: ClassVar[int] = 3

    def __init__(self, directory: Path) -> None:
        self._tree = LENT.take(self.shards)
        self._is_stopped = False
        self._worker: Any = None
        self.engine: Any = None

    async def open(self) -> None:
        if self._is_stopped:
            await asyncio.to_thread(self._tree.start)
            self._is_stopped = False
        self._worker = await Worker.connect(self._tree.address, workflows=ALL, name="w")
        self.engine = await Client.connect(self._tree.address)
        await until(lambda: len(self._worker.held) == self.shards, "the worker holds every shard")

    async def close(self) -> None:
        if self.engine is not None:
            is_clean = await self._forget()
            await self._leave()
            if is_clean:
                LENT.give_back(self._tree)

    async def stop(self) -> None:
        await self._leave()
        await asyncio.to_thread(self._tree.close)
        self._is_stopped = True

    async def _leave(self) -> None:
        await self.engine.close()
        await self._worker.close()

    async def _forget(self) -> bool:
        """Delete every run and schedule; whether that succeeded soon."""
        try:
            async with asyncio.timeout(5):
                for schedule in await self.engine.schedules():
                    await self.engine.schedule_handle(schedule.id).delete()
                while runs := await self.engine.list(limit=MANY + 1):
                    if len(runs) > MANY:
                        return False
                    await asyncio.gather(*(self._delete(run) for run in runs))
        except (FuseeError, TimeoutError):
            return False
        return True

    async def _delete(self, run: Any) -> None:
        handle = self.engine.handle(run.id)
        with contextlib.suppress(NotFound, Rejected):  # It ended, or was deleted with a later run of its ID, in between.
            if run.is_open:
                await handle.terminate("the scenario is over")
            await handle.delete()

    async def restart(self) -> None:
        await asyncio.to_thread(self._tree.restart)
        await until(lambda: len(self._worker.held) == self.shards, "the worker holds every shard again")

    @property
    def runtimes(self) -> list[Any]:
        return list(self._worker._runtimes.values())


MANY = 100


class Lent:
    """The server that homes use one after the other. What was not given back is closed before there is another."""

    def __init__(self) -> None:
        self._tree: Tree | None = None
        self._is_free = False

    def take(self, shards: int) -> Tree:
        if self._tree is None or not self._is_free:
            self.close()
            self._tree = Tree(Path(tempfile.mkdtemp(prefix="served-")) / "data", shards=shards).start()
        self._is_free = False
        return self._tree

    def give_back(self, tree: Tree) -> None:
        self._is_free = tree is self._tree

    def close(self) -> None:
        if self._tree is not None:
            self._tree.close()
            shutil.rmtree(self._tree.directory.parent)
            self._tree = None


LENT = Lent()
HOMES = {"memory": MemoryHome, "embedded": EmbeddedHome, "server": ServerHome}


async def until(holds: Any, what: str = "") -> Any:
    """Wait for a condition, which may be a coroutine function."""
    deadline = asyncio.get_running_loop().time() + 30
    while True:
        found = holds()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return found
        assert asyncio.get_running_loop().time() < deadline, f"never came: {what}"
        await asyncio.sleep(0.02)
