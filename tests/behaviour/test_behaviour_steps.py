"""Sizes at their limits, failures that are hard to carry, and every feature of steps once through a real server."""
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from behaviour_places import Place, has_status, run, until
from behaviour_step_worker import TOKEN_FILE, all_features

from fusee_mp import Client, Ctx, PayloadError, Rejected, workflow
from fusee_mp.bounds import PAYLOAD_BYTES_MAX
from tests.server.tree import serving

ROOT = Path(__file__).parents[2]
SIZES = [(PAYLOAD_BYTES_MAX - 1, True), (PAYLOAD_BYTES_MAX, True), (PAYLOAD_BYTES_MAX + 1, False), (10 * PAYLOAD_BYTES_MAX, False)]
CALLS: list[int] = []


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A real disk for what gets there; what is refused before needs none."""
    CALLS.clear()
    return Place(tmp_path / "data" if request.node.callspec.params.get("fits", True) else None)


async def text_of(size: int) -> str:
    CALLS.append(size)
    return "x" * (size - 2)


@workflow
async def results(ctx: Ctx, size: int) -> str:
    try:
        return str(len(await ctx.step("large", text_of, size)))
    except PayloadError as e:
        return e.message


@workflow
async def signals(ctx: Ctx) -> int:
    return len(await ctx.wait_for("large"))


async def shouts(size: int) -> None:
    raise ValueError("x" * size)


@workflow
async def failures(ctx: Ctx, size: int) -> list[Any]:
    try:
        await ctx.step("shout", shouts, size)
    except ValueError as e:
        return [len(str(e)) < PAYLOAD_BYTES_MAX, str(e)[0], str(e)[-1]]
    return []


@pytest.mark.parametrize(("size", "fits"), SIZES)
def test_a_result_beyond_the_limit_is_refused_at_the_step_with_its_size(place: Place, size: int, fits: bool) -> None:
    """G14"""
    async def main() -> None:
        async with place.engine([results]) as engine:
            said = await engine.execute(results, "r", size)
        if fits:
            assert said == str(size - 2)
        else:
            assert said.startswith('the result of step "large" is too large') and f"{PAYLOAD_BYTES_MAX:,}" in said and f"{size:,}" in said
        assert CALLS == [size]  # and it is not tried again

    run(main())


@pytest.mark.parametrize(("size", "fits"), SIZES)
def test_a_signal_beyond_the_limit_is_refused_at_its_sender(place: Place, size: int, fits: bool) -> None:
    """G14"""
    async def main() -> None:
        async with place.engine([signals]) as engine:
            handle = await engine.start(signals, "s")
            if fits:
                await handle.signal("large", "x" * (size - 2))
                assert await handle.result() == size - 2
            else:
                with pytest.raises(PayloadError, match="too large"):
                    await handle.signal("large", "x" * (size - 2))
                await handle.terminate()

    run(main())


def test_many_results_at_the_limit_at_once_are_written_in_batches_that_fit(tmp_path: Path) -> None:
    """G14"""
    @workflow
    async def many(ctx: Ctx) -> int:
        return sum(map(len, await ctx.all([ctx.step("large", text_of, PAYLOAD_BYTES_MAX) for _ in range(8)])))

    async def main() -> None:
        async with Place(tmp_path / "data").engine([many]) as engine:
            assert await engine.execute(many, "m") == 8 * (PAYLOAD_BYTES_MAX - 2)

    run(main())


@pytest.mark.parametrize("size", [PAYLOAD_BYTES_MAX - 1, PAYLOAD_BYTES_MAX, PAYLOAD_BYTES_MAX + 1, 10 * PAYLOAD_BYTES_MAX])
def test_the_text_of_a_failure_is_cut_so_that_it_always_fits(place: Place, size: int) -> None:
    """G14"""
    async def main() -> None:
        async with place.engine([failures]) as engine:
            assert await engine.execute(failures, "f", size) == [True, "x", "x"]

    run(main())


def test_a_run_hit_by_a_too_large_result_is_repaired_by_new_code(tmp_path: Path) -> None:
    """G14"""
    @workflow("report", on_exhausted="pause")
    async def old(ctx: Ctx) -> int:
        return len(await ctx.step("make", text_of, PAYLOAD_BYTES_MAX + 1))

    @workflow("report", on_exhausted="pause")
    async def new(ctx: Ctx) -> int:
        return len(await ctx.step("make", text_of, 100))

    async def main() -> None:
        async with Place(tmp_path / "data").engine([old]) as engine:
            await engine.start(old, "r")
            await has_status(engine, "r", "paused")
        async with Place(tmp_path / "data").engine([new]) as engine:
            await engine.handle("r").resume()
            assert await engine.handle("r", new).result() == 98

    run(main())


def test_every_feature_works_through_a_server(tmp_path: Path) -> None:
    """D11, D12, D13"""
    token_file = tmp_path / "token"

    async def scenario(address: str) -> None:
        async with Client.connect(address) as client:
            handle = await client.start(all_features, "all")
            await until(lambda: token_file.exists() and token_file.read_text().endswith("\n"))
            tokens = token_file.read_text().split()
            if len(tokens) < 2:
                await until(lambda: len(token_file.read_text().split()) == 2)
                tokens = token_file.read_text().split()
            with pytest.raises(Rejected, match="stale"):
                await client.complete(tokens[0], 1)
            with pytest.raises(Rejected, match="expected int"):
                await client.complete(tokens[1], "one")
            await client.complete(tokens[1], 1)
            await has_status(client, "all", "paused")  # type: ignore[arg-type]
            detail = await handle.describe()
            assert detail is not None and "ValueError: broken until resumed" in detail.reason
            await handle.resume()
            found = await handle.result()
            assert found["completed"] == 1 and found["progress"] == [None, 3] and found["elsewhere"] is True and found["resumed"] == 3
            await client.start("waiting", "other")
            await client.handle("other").pause("stocktaking")
            await has_status(client, "other", "paused")  # type: ignore[arg-type]
            await client.handle("other").cancel("enough")
            with pytest.raises(Exception, match="enough"):
                await client.handle("other").result()

    with serving(tmp_path / "data", shards=1) as tree:
        worker = subprocess.Popen(
            [sys.executable, str(ROOT / "tests/behaviour/behaviour_step_worker.py"), tree.address],
            env={**os.environ, "PYTHONPATH": str(ROOT), TOKEN_FILE: str(token_file)},
        )
        try:
            run(scenario(tree.address))
        finally:
            worker.terminate()
            worker.wait(20)


