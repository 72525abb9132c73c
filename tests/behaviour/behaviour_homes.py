"""The homes that the behaviour suite runs over. Each has `open()`, `close()`, `engine` (the methods) and, where runs outlive the engine
(`keeps`), `restart()`. A further home needs these and a line in HOMES."""
from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, ClassVar

from behaviour_workflows import WORKFLOWS

from fusee_mp import Config, Engine


class MemoryHome:
    """Nothing outlives the engine: what restarts is not played here."""

    keeps = False
    shards: ClassVar[int] = 3

    def __init__(self, directory: Path, **options: Any) -> None:
        self.engine: Any = None

    async def open(self) -> None:
        self.engine = await Engine.memory(workflows=[*WORKFLOWS.values()], shards=self.shards)

    async def close(self) -> None:
        await self.engine.close()


class EmbeddedHome:
    """A directory with real files, closed without a checkpoint: what is not in the log is gone. tests/crash kills such an engine."""

    keeps = True
    shards: ClassVar[int] = 3

    def __init__(self, directory: Path, **options: Any) -> None:
        self._config = Config(dir=directory / "data", shards=self.shards, checkpoint_on_shutdown=False, **{"park_after": "10s", **options})
        self.engine: Any = None

    async def open(self) -> None:
        self.engine = await Engine.open(self._config, workflows=[*WORKFLOWS.values()])

    async def close(self) -> None:
        await self.engine.close()

    async def restart(self) -> None:
        await self.close()
        await self.open()


HOMES = {"memory": MemoryHome, "embedded": EmbeddedHome}


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
