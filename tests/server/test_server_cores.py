"""Shard processes that stay on processors of the operator's choice."""
from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import psutil
import pytest

from fusee_mp import Client, Ctx, Rejected, Worker, workflow
from fusee_mp.router.options import ServeOptions
from tests.server.tree import serving, until


@workflow
async def quick(ctx: Ctx, value: int) -> int:
    return value


def test_shard_processes_stay_on_their_processors_and_their_children_do_not(tmp_path: Path) -> None:
    usable = sorted(os.sched_getaffinity(0))
    cores = [usable[-1], usable[0]]

    def where(process: psutil.Process) -> list[int]:
        return sorted(process.cpu_affinity())

    async def works(address: str) -> None:
        async with Worker.connect(address, workflows=[quick]), Client.connect(address) as client:
            assert await asyncio.gather(*(client.execute(quick, None, n) for n in range(20))) == list(range(20))

    with serving(tmp_path / "data", shards=3, cores=cores) as tree:
        assert [where(tree.shard(shard)) for shard in range(3)] == [[cores[0]], [cores[1]], [cores[0]]]
        os.kill(tree.keeper(0).pid, signal.SIGKILL)
        until(lambda: tree.keeper(0).is_running())
        for shard in range(3):
            for child in tree.shard(shard).children():
                until(lambda child=child: where(child) == usable)  # type: ignore[misc]
        asyncio.run(works(tree.address))


def test_a_processor_that_is_not_there_is_refused_at_the_start() -> None:
    with pytest.raises(Rejected, match="cores"):
        ServeOptions("data", cores=(9_999,))
