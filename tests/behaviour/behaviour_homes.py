"""The homes that the behaviour suite runs over. Each has `open()`, `close()`, `engine` (the methods) and, where runs outlive the engine
(`keeps`), `restart()`. Only some take options of the engine (`takes_options`). A further home needs these and a line in HOMES."""
from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, ClassVar

from behaviour_bad_input import bad_calls, eats, open_run, takes_anything
from behaviour_life import LIFE
from behaviour_workflows import WORKFLOWS

from fusee_mp import Client, Config, Engine, Worker
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
    shards: ClassVar[int] = 3

    def __init__(self, directory: Path, **options: Any) -> None:
        self._config = Config(dir=directory / "data", shards=self.shards, checkpoint_on_shutdown=False, **{"park_after": "10s", **options})
        self.engine: Any = None

    async def open(self) -> None:
        self.engine = await Engine.open(self._config, workflows=ALL)

    async def close(self) -> None:
        await self.engine.close()

    async def restart(self) -> None:
        await self.close()
        await self.open()

    @property
    def runtimes(self) -> list[Any]:
        return list(self.engine.runtimes)


class ServerHome:
    """A real server, a worker in this process and a client; `restart` kills the server and leaves worker and client to find it again."""

    keeps = True
    takes_options = False
    shards: ClassVar[int] = 3

    def __init__(self, directory: Path) -> None:
        self._tree = Tree(directory / "served", shards=self.shards)
        self._worker: Any = None
        self.engine: Any = None

    async def open(self) -> None:
        await asyncio.to_thread(self._tree.start)
        self._worker = await Worker.connect(self._tree.address, workflows=ALL, name="w")
        self.engine = await Client.connect(self._tree.address)
        await until(lambda: len(self._worker.held) == self.shards, "the worker holds every shard")

    async def close(self) -> None:
        if self.engine is not None:
            await self.engine.close()
            await self._worker.close()
        await asyncio.to_thread(self._tree.close)

    async def restart(self) -> None:
        await asyncio.to_thread(self._tree.restart)
        await until(lambda: len(self._worker.held) == self.shards, "the worker holds every shard again")

    @property
    def runtimes(self) -> list[Any]:
        return list(self._worker._runtimes.values())


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
