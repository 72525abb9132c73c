"""Workflow code that blocks: it is named while it blocks, and only its own run pays for it."""
from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from behaviour_homes import until

from fusee_mp import Client, Config, Ctx, Engine, Rejected, Worker, signal, workflow
from tests.server.tree import Tree

GO = signal("go", int)
PATIENCE_S = 30.0
released = threading.Event()
came_free: list[bool] = []
Home = Callable[[Path, str], AbstractAsyncContextManager[Any]]


class Names(logging.Handler):
    """Hears what is said of the blocked run, and only then ends what blocks it."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())
        released.set()


@pytest.fixture
def names() -> Iterator[Names]:
    released.clear()
    came_free.clear()
    handler, log = Names(), logging.getLogger("fusee_mp.workflow")
    log.addHandler(handler)
    yield handler
    log.removeHandler(handler)


@workflow
async def blocks(ctx: Ctx) -> str:
    await ctx.sleep("1ms")
    try:
        released.wait(PATIENCE_S)  # it waits in C, as time.sleep and a socket do
    finally:
        came_free.append(released.is_set())
    return "not reached"


@workflow
async def fine(ctx: Ctx) -> int:
    return 1 + await ctx.wait_for(GO)


@asynccontextmanager
async def embedded(directory: Path, limit: str) -> AsyncIterator[Any]:
    async with Engine.open(Config(dir=directory / "data", turn_timeout=limit), workflows=[blocks, fine]) as engine:
        yield engine


@asynccontextmanager
async def served(directory: Path, limit: str) -> AsyncIterator[Any]:
    tree = Tree(directory / "served", shards=1)
    await asyncio.to_thread(tree.start)
    try:
        async with (
            Worker.connect(tree.address, workflows=[blocks, fine], turn_timeout=limit),
            Client.connect(tree.address) as client,
        ):
            yield client
    finally:
        await asyncio.to_thread(tree.close)


@pytest.mark.parametrize("home", [embedded, served])
def test_code_that_blocks_is_named_with_its_run_and_line_while_it_blocks_and_set_aside_when_it_returns(
    home: Home, tmp_path: Path, names: Names,
) -> None:
    async def main() -> str:
        async with home(tmp_path, "200ms") as engine:
            other = await engine.start(fine, "fine")
            run = await engine.start(blocks, "stuck")
            detail = await until(lambda: set_aside(run), "the run is set aside")
            await other.signal(GO, 6)
            assert await other.result(timeout=PATIENCE_S) == 7
            await run.terminate("seen")
            return str(detail.reason)

    reason = asyncio.run(main())
    assert came_free == [True], "it was named before it returned by itself"
    lines, first = inspect.getsourcelines(blocks.fn)
    place = f"{__file__}:{first + next(n for n, line in enumerate(lines) if 'it waits in C' in line)}"
    assert place in reason and "0.2 s" in reason
    assert len(names.said) == 1 and place in names.said[0] and 'workflow "blocks", ID "stuck", run ' in names.said[0]


async def set_aside(run: Any) -> Any:
    found = await run.status()
    return found if found is not None and found.status == "quarantined" else None


@pytest.mark.parametrize("limit", ["99ms", 0, "-1s", "x"])
def test_a_limit_under_which_nothing_could_be_computed_is_refused(limit: Any) -> None:
    with pytest.raises(Rejected, match="turn_timeout"):
        Config(dir="data", turn_timeout=limit)
    with pytest.raises(Rejected, match="turn_timeout"):
        Worker.connect("localhost:1", workflows=[fine], turn_timeout=limit)
