"""Where the tests of steps run: in memory, on a directory that is closed and opened again, on a server whose workers come and go."""
from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from fusee_mp import Client, Config, Engine, Worker, Workflow
from fusee_mp.duration import to_ms_or_none
from tests.server.tree import Tree

T = TypeVar("T")
PATIENCE_S = 20.0


class Place:
    """A place for engines. `dir` None is in memory, which forgets."""

    def __init__(self, dir: Path | None) -> None:
        self.dir = dir

    @contextlib.asynccontextmanager
    async def engine(self, workflows: Sequence[Workflow[Any, Any]], **config: Any) -> AsyncIterator[Any]:
        opening = (
            Engine.memory(workflows=workflows) if self.dir is None else Engine.open(Config(dir=self.dir, **config), workflows=workflows)
        )
        async with opening as engine:
            yield engine


class ServedPlace(Place):
    """A server on the directory, made as the first engine wants it. An engine there is a client beside a worker of its own, which gives
    its bodies no grace when it leaves."""

    _tree: Tree | None = None

    @contextlib.asynccontextmanager
    async def engine(
        self, workflows: Sequence[Workflow[Any, Any]], shards: int = 1, retention: str | None = None, checkpoint_on_shutdown: bool = True,
        **options: Any,
    ) -> AsyncIterator[Any]:
        if self._tree is None:
            assert self.dir is not None
            self._tree = Tree(self.dir, shards=shards, retention_ms=to_ms_or_none(retention, "retention"))
            await asyncio.to_thread(self._tree.start)
        address = self._tree.address
        async with Worker.connect(address, workflows=workflows, grace=0, **options), Client.connect(address) as client:
            yield client

    def close(self) -> None:
        if self._tree is not None:
            self._tree.close()


async def until(look: Callable[[], Awaitable[T]] | Callable[[], T]) -> T:
    """What `look` gives once that is true."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found: Any = look()
            found = await found if asyncio.iscoroutine(found) else found
            if found:
                return found  # type: ignore[no-any-return]
            await asyncio.sleep(0.005)


async def has_status(engine: Any, id: str, status: str) -> None:
    async def look() -> bool:
        found = await engine.status(id)
        return found is not None and found.status == status
    await until(look)


def run(main: Any) -> None:
    asyncio.run(asyncio.wait_for(main, 2 * PATIENCE_S))
