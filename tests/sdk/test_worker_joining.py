"""How a worker joins: the server first, then lifespan, then the shards."""
from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from fusee_mp import Ctx, Rejected, Unavailable, Worker, workflow
from fusee_mp.cli.demonstration.stage import Stage


@workflow("nothing")
async def nothing(ctx: Ctx) -> None:
    return None


def test_a_worker_without_a_server_never_enters_lifespan() -> None:
    entered: list[str] = []

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        entered.append("entered")
        yield

    async def join() -> None:
        async with Worker.connect("unix:/nowhere/at/all", workflows=[nothing], lifespan=lifespan):
            pass

    with pytest.raises(Unavailable, match="no server answers"):
        asyncio.run(join())
    assert entered == []


@pytest.mark.parametrize(("name", "count", "said"), [
    ("x" * 600, 1, "at most 512 bytes together"), ("w", 1_001, "at most 1,000 workflows, this one has 1,001"), ("a\0", 1, "NUL"),
])
def test_a_worker_that_no_server_takes_is_refused_before_it_connects(name: str, count: int, said: str) -> None:
    async def fn(ctx: Ctx) -> None:
        return None

    with pytest.raises(Rejected, match=said):
        Worker.connect("unix:/nowhere/at/all", workflows=[workflow(f"w{number}")(fn) for number in range(count)], name=name)


def test_a_session_that_is_lost_while_lifespan_is_entered_is_made_again() -> None:
    async def join(address: str) -> list[int]:
        @asynccontextmanager
        async def lifespan() -> AsyncIterator[None]:
            session = joining._worker._session
            assert session is not None and session.is_open and not joining._worker.held
            session.abort("the path to the server broke")
            yield

        joining = Worker.connect(address, workflows=[nothing], lifespan=lifespan)
        async with joining as worker:
            return worker.held

    with Stage() as stage:
        asyncio.run(stage.start_server())
        assert asyncio.run(join(stage.address)) != []
