"""Payloads stored apart from the log, and payloads that are too large: nothing is lost, nothing is left, nothing is tried for ever."""
from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from behaviour_homes import until

from fusee_mp import (
    AesGcm,
    Client,
    Config,
    Ctx,
    Engine,
    PayloadError,
    StorageError,
    Worker,
    WorkflowFailed,
    current_step,
    export,
    query,
    update,
    workflow,
)
from fusee_mp import signal as signal_of
from fusee_mp.payload.apart import PAYLOADS, Apart
from fusee_mp.payload.sealing import Payloads
from fusee_mp.sdk.replayer import Replayer
from tests.server.tree import Tree

GO = signal_of("go", str)
GROW = update("grow", int, returns=str)
LONG = query("long", int, returns=str)
ABOVE = 1_000
LARGE = "x" * 5_000


@workflow
async def child(ctx: Ctx, text: str) -> str:
    return text + "!"


@workflow
async def large(ctx: Ctx, text: str) -> str:
    async def body() -> str:
        return text + "s"

    step = await ctx.step("body", body)
    of_child = await ctx.child(child, f"{ctx.workflow_id}/child", text)
    small = await ctx.step("small", lambda: "small")
    return step + of_child + small + await ctx.wait_for(GO)


RESULT = LARGE + "s" + LARGE + "!" + "small" + LARGE
WORKFLOWS = [large, child]
Main = Callable[[], Coroutine[Any, Any, None]]


def play(main: Main) -> None:
    asyncio.run(asyncio.wait_for(main(), 60))


def opened(directory: Path, **options: Any) -> Any:
    return Engine.open(Config(dir=directory, shards=2, **{"payload_offload_bytes": ABOVE, **options}), workflows=WORKFLOWS)


def files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.glob(f"shard-*/{PAYLOADS}/*/*") if path.is_file())


@pytest.mark.parametrize("codec", [None, AesGcm({"k1": b"k" * 32})], ids=["clear", "sealed"])
def test_large_payloads_stand_in_files_and_come_back(tmp_path: Path, codec: Any) -> None:
    async def main() -> None:
        async with opened(tmp_path / "data", codec=codec) as engine:
            await engine.start(large, "a", LARGE)
            await until(lambda: len(files(tmp_path / "data")) >= 4, "input, step, and the child's input and result")
        async with opened(tmp_path / "data", codec=codec, payload_offload_bytes=None) as engine:  # what is apart is read all the same
            await engine.handle("a").signal(GO, LARGE)
            assert await engine.handle("a").result() == RESULT
            detail = await engine.describe("a")
            assert detail is not None and detail.journal[0].fields["input"] == LARGE
        assert all(path.stat().st_size > ABOVE for path in files(tmp_path / "data"))
        if codec is not None:
            assert not any(LARGE.encode() in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())

    play(main)
    (journal,) = export(tmp_path / "data", "a")
    journal.write(tmp_path / "a.json")
    assert Replayer(workflows=WORKFLOWS, codec=codec).replay_file(tmp_path / "a.json").ok


def test_files_go_with_their_run_and_stay_with_an_archived_one(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "data", retention="1ms") as engine:
            await engine.execute(child, "gone", LARGE)
            await until(lambda: not files(tmp_path / "data"), "the files are removed")
        async with opened(tmp_path / "data", retention="1ms", archive_history=True) as engine:
            await engine.execute(child, "kept", LARGE)
            await until(lambda: _is_gone(engine), "the run is gone")
        async with opened(tmp_path / "data"):
            pass
        (journal,) = export(tmp_path / "data", "kept")
        assert journal.records[0].fields["input"] == LARGE

    async def _is_gone(engine: Any) -> bool:
        return await engine.status("kept") is None

    play(main)


def test_a_run_that_was_reset_has_files_of_its_own(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "data", retention="1s") as engine:
            run = await engine.start(large, "a", LARGE)
            await run.signal(GO, LARGE)
            assert await run.result() == RESULT
            await run.reset("small")
            assert await run.result() == RESULT
        runs = {path.parent.name for path in files(tmp_path / "data")}
        assert len(runs) >= 3

    play(main)


def test_files_that_a_crash_left_without_a_record_are_removed(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "data") as engine:
            await engine.start(large, "a", LARGE)
            await until(lambda: len(files(tmp_path / "data")) >= 4, "the files")
            status = await engine.status("a")
        kept = files(tmp_path / "data")
        of_run = tmp_path / "data" / f"shard-{status.shard:03}" / PAYLOADS / str(status.number)
        (of_run / "0123456789abcdef").write_bytes(LARGE.encode())
        lost = of_run.with_name("999")
        lost.mkdir()
        (lost / "0123456789abcdef").write_bytes(LARGE.encode())
        async with opened(tmp_path / "data") as engine:
            await engine.handle("a").signal(GO, LARGE)
            assert await engine.handle("a").result() == RESULT
            assert set(kept) <= set(files(tmp_path / "data"))
            assert not lost.exists() and not (of_run / "0123456789abcdef").exists()

    play(main)


PROGRAM = textwrap.dedent("""
    import asyncio, sys
    sys.path[:0] = sys.argv[2:]
    from test_behaviour_large_payloads import LARGE, large, opened
    async def main():
        async with opened(sys.argv[1]) as engine:
            for n in range(10_000):
                await engine.start(large, f"a{n}", LARGE)
                print(n, flush=True)
    asyncio.run(main())
""")


def test_what_was_acknowledged_before_a_kill_is_whole(tmp_path: Path) -> None:
    here = Path(__file__).parent
    program = [sys.executable, "-c", PROGRAM, str(tmp_path / "data"), str(here), str(here.parents[1])]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = -1
        for line in process.stdout:
            told = int(line)
            if told == 40:
                os.kill(process.pid, signal.SIGKILL)
    assert told >= 40

    async def main() -> None:
        async with opened(tmp_path / "data") as engine:
            for n in range(told + 1):
                await engine.handle(f"a{n}").signal(GO, LARGE)
                assert await engine.handle(f"a{n}").result() == RESULT

    play(main)


def test_a_file_that_is_missing_or_altered_is_told_by_its_name(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "data") as engine:
            await engine.execute(child, "a", LARGE)
        for path in files(tmp_path / "data"):
            path.write_bytes(path.read_bytes()[:-1] + b"?")
        async with opened(tmp_path / "data") as engine:
            with pytest.raises(StorageError, match="damaged"):
                await engine.handle("a").result()
        for path in files(tmp_path / "data"):
            path.unlink()
        async with opened(tmp_path / "data") as engine:
            with pytest.raises(StorageError, match="cannot be read"):
                await engine.handle("a").result()

    play(main)


@pytest.mark.parametrize("reference", [b"\x03", b"\x03\x94\x01\xa4/etc\x01\x01", b"\x03\x94\x01\xb0../../../../etc/x\x01\x01", b"\x02\xc1"])
def test_a_made_up_place_reads_no_file(tmp_path: Path, reference: bytes) -> None:
    with pytest.raises(PayloadError):
        Payloads(apart=Apart(tmp_path, None))._open(reference)


# What is too large is refused where it is sent (G14).


@workflow
async def sends(ctx: Ctx, what: str) -> str:
    ctx.on_update(GROW, lambda n: "u" * n)
    ctx.on_query(LONG, lambda n: "q" * n)

    def beats() -> str:
        current_step().heartbeat("h" * 2_000)
        return "beaten"

    if what == "step":
        await ctx.step("big", lambda: "r" * 2_000)
    elif what == "heartbeat":
        await ctx.step("beats", beats)
    elif what == "process":
        await ctx.step("beats", heartbeat_of, pool="process")
    elif what == "child":
        await ctx.child(child, "c", "i" * 2_000)
    elif what == "signal":
        await ctx.signal("other", GO, "v" * 2_000)
    elif what == "attributes":
        ctx.set_attributes(text="a" * 2_000)
    elif what == "continue":
        await ctx.continue_as_new(sends, "i" * 2_000)
    return "w" * 2_000 if what == "result" else await ctx.wait_for(GO)


def heartbeat_of() -> None:
    current_step().heartbeat("h" * 2_000)


SAYS = {
    "step": 'the result of step "big"', "heartbeat": "the value of heartbeat", "process": "the value of heartbeat",
    "child": 'the input of workflow "child"', "signal": 'the value of signal "go"', "attributes": "search attributes",
    "continue": 'the input of workflow "sends"', "result": 'the result of workflow "sends"',
}


@asynccontextmanager
async def embedded(directory: Path) -> AsyncIterator[Any]:
    async with Engine.open(Config(dir=directory / "data", payload_bytes_max=1_000), workflows=[sends, child]) as engine:
        yield engine


@asynccontextmanager
async def served(directory: Path) -> AsyncIterator[Any]:
    tree = Tree(directory / "served", payload_bytes_max=1_000)
    await asyncio.to_thread(tree.start)
    try:
        async with Worker.connect(tree.address, workflows=[sends, child]), Client.connect(tree.address) as client:
            yield client
    finally:
        await asyncio.to_thread(tree.close)


@pytest.mark.parametrize("home", [embedded, served])
def test_what_is_too_large_is_refused_at_its_sender_by_its_name(home: Any, tmp_path: Path) -> None:
    """G14: also where the server has a bound of its own."""
    async def main() -> None:
        async with home(tmp_path) as engine:
            for what, said in SAYS.items():
                with pytest.raises(WorkflowFailed) as failed:
                    await engine.execute(sends, what, what)
                assert isinstance(failed.value.__cause__, PayloadError), failed.value.__cause__
                assert f"{said} is too large: expected at most 1,000 bytes" in str(failed.value.__cause__)
            await callers(engine)

    async def callers(engine: Engine) -> None:
        run = await engine.start(sends, "w", "wait")
        for refused in (engine.start(sends, "x", "i" * 2_000), run.signal(GO, "v" * 2_000), run.query(LONG, 10**1_500),
                        engine.start(child, "y", "", attributes={"a": "a" * 2_000}), run.query(LONG, 2_000)):
            with pytest.raises(PayloadError, match="is too large: expected at most 1,000 bytes"):
                await refused
        with pytest.raises(WorkflowFailed, match="is too large"):
            await run.update(GROW, 2_000)
        assert await run.update(GROW, 10) == "u" * 10
        await run.signal(GO, "v" * 997 + "w")  # with its quotes it is of the greatest size
        assert await run.result() == "v" * 997 + "w"

    play(main)
