"""Definitions of step limits: on disk before they are in force, saved together, and no burden for anybody else on the shard."""
from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fusee_mp import Client, Engine, Limit, NotFound, Rejected, StorageError
from fusee_mp.core.calls import LimitCall
from fusee_mp.core.permits import LimitSpec
from fusee_mp.shardproc import limits
from fusee_mp.shardproc.limits import LimitTable
from fusee_mp.wire import messages as m
from tests.server.loopback import asynchronous
from tests.server.raw import RawClient
from tests.server.tree import serving

ONE, TWO, THREE = LimitSpec(1), LimitSpec(2), LimitSpec(3)


def saved(directory: Path) -> dict[str, LimitSpec | None]:
    permits = LimitTable(directory).permits
    return {name: permits.spec(name) for name in permits.names()}


def in_the_way(directory: Path) -> Path:
    """What no file can be written over."""
    path = directory / "limits.new"
    (path / "x").mkdir(parents=True)
    return path


def out_of_the_way(path: Path) -> None:
    (path / "x").rmdir()
    path.rmdir()


@pytest.fixture
def saves(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, LimitSpec]]:
    """What each save wrote."""
    seen: list[dict[str, LimitSpec]] = []
    save = limits._save

    def noted(directory: Path, specs: dict[str, LimitSpec]) -> None:
        seen.append(specs)
        save(directory, specs)

    monkeypatch.setattr(limits, "_save", noted)
    return seen


@asynchronous
async def test_a_definition_that_could_not_be_saved_is_not_in_force_and_the_same_again_is_saved(tmp_path: Path) -> None:
    """E16, E25: the same again is no news only when it was saved."""
    table = LimitTable(tmp_path)
    for before, spec in ((None, ONE), (ONE, TWO)):
        path = in_the_way(tmp_path)
        for _ in range(2):
            with pytest.raises(StorageError, match="limit definitions in .* cannot be written"):
                await table.define("gate", spec)
        assert table.permits.spec("gate") == saved(tmp_path).get("gate") == before
        out_of_the_way(path)
        await table.define("gate", spec)
        assert table.permits.spec("gate") == saved(tmp_path)["gate"] == spec


@asynchronous
async def test_after_a_failed_save_the_old_definition_is_written_again_when_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = LimitTable(tmp_path)
    await table.define("gate", ONE)

    def renamed_and_then_failed(disk: Any) -> None:
        raise OSError(5, "the directory could not be flushed")

    with monkeypatch.context() as patched:
        patched.setattr(limits.Disk, "flush_directory", renamed_and_then_failed)
        with pytest.raises(StorageError):
            await table.define("gate", TWO)
    assert saved(tmp_path) == {"gate": TWO}
    await table.define("gate", ONE)
    assert saved(tmp_path) == {"gate": ONE}


@asynchronous
async def test_the_same_again_writes_nothing(tmp_path: Path, saves: list[dict[str, LimitSpec]]) -> None:
    """E25"""
    for _ in range(2):
        table = LimitTable(tmp_path)
        await table.define("gate", ONE)
        await table.define("gate", ONE)
    assert saves == [{"gate": ONE}]


@asynchronous
async def test_what_is_defined_during_a_save_shares_the_next_in_its_order(
    tmp_path: Path, saves: list[dict[str, LimitSpec]], monkeypatch: pytest.MonkeyPatch
) -> None:
    table, may_go, save = LimitTable(tmp_path), threading.Event(), limits._save
    monkeypatch.setattr(limits, "_save", lambda *saved: may_go.wait(30) and save(*saved))
    first = asyncio.create_task(table.define("gate", ONE))
    await asyncio.sleep(0)
    asked = [("gate", TWO), *((f"n-{i}", ONE) for i in range(500)), ("gate", THREE)]
    later = [asyncio.create_task(table.define(name, spec)) for name, spec in asked]
    given_up = asyncio.create_task(table.define("given up", ONE))
    for _ in range(10):
        await asyncio.sleep(0)  # the loop goes on while the disk is slow
    assert not first.done() and table.permits.names() == []
    given_up.cancel()
    may_go.set()
    await asyncio.gather(first, *later)
    assert [specs["gate"] for specs in saves] == [ONE, THREE]
    assert table.permits.spec("gate") == THREE and len(saved(tmp_path)) == 502
    closing = asyncio.create_task(table.define("last", ONE))
    await asyncio.sleep(0)
    await table.close()
    assert saved(tmp_path)["last"] == ONE
    await closing


@asynchronous
async def test_a_shard_has_so_many_limits_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LIMITS_MAX", 3)
    table = LimitTable(tmp_path)
    path = in_the_way(tmp_path)
    with pytest.raises(StorageError):
        await table.define("unsaved", ONE)
    out_of_the_way(path)
    results = await asyncio.gather(*(table.define(f"n-{i}", ONE) for i in range(5)), return_exceptions=True)
    assert results[:3] == [None] * 3 and all(isinstance(result, Rejected) and "has 3 limits" in result.message for result in results[3:])
    await table.define("n-0", TWO)
    assert saved(tmp_path) == {"n-0": TWO, "n-1": ONE, "n-2": ONE}
    with pytest.raises(Rejected, match="limit name is empty"):
        await table.define("", ONE)


@asynchronous
async def test_a_limit_of_an_engine_is_on_disk_when_limit_returns(tmp_path: Path) -> None:
    """E16"""
    async with Engine.open(tmp_path / "data", shards=1) as engine:
        path = in_the_way(tmp_path / "data" / "shard-000")
        with pytest.raises(StorageError):
            await engine.limit("gate", Limit(concurrent=2))
        with pytest.raises(NotFound):
            await engine.limit_in_use("gate")
        out_of_the_way(path)
        await engine.limit("gate", Limit(concurrent=2))
        assert saved(tmp_path / "data" / "shard-000") == {"gate": TWO}


@asynchronous
async def test_a_definition_that_a_server_acknowledged_is_there_after_a_restart(tmp_path: Path) -> None:
    """E16: also when the save before it failed."""
    with serving(tmp_path / "data", shards=1) as tree:
        path = in_the_way(tmp_path / "data" / "shard-000")
        async with Client.connect(tree.address) as client:
            with pytest.raises(StorageError):
                await client.limit("gate", Limit(concurrent=2))
            out_of_the_way(path)
            await client.limit("gate", Limit(concurrent=2))
        tree.restart()
        async with Client.connect(tree.address) as client:
            assert [(limit.name, limit.concurrent) for limit in await client.list_limits()] == [("gate", 2)]


def pipelined(client: RawClient, frames: Callable[[int], bytes], count: int) -> list[m.Message]:
    """The answers to calls that are sent without waiting for any."""
    sender = threading.Thread(target=client.sock.sendall, args=(b"".join(map(frames, range(count))),))
    sender.start()
    answers: list[m.Message] = []
    while len(answers) < count:
        frame = client.frame()
        assert frame is not None
        answers.append(m.decode(frame))
    sender.join()
    return answers


def defines(number: int) -> bytes:
    return m.encode(m.Call("limit", msgspec.msgpack.encode(LimitCall(f"limit-{number}", ONE)), False), number + 10)


def looks(number: int) -> bytes:
    return m.encode(m.Call("limits", msgspec.msgpack.encode("")), number + 10)


@pytest.mark.parametrize(("flood", "count"), [(defines, 20_000), (looks, 2_000)])
def test_a_client_that_floods_a_shard_with_limits_holds_up_nobody_else(
    tmp_path: Path, flood: Callable[[int], bytes], count: int
) -> None:
    """The shard process is never so busy with them that it would be replaced, and another client is answered all along."""
    with serving(tmp_path / "data", shards=1, silence_ms=1_500) as tree:
        pid = tree.shard(0).pid
        with RawClient(tree.address, 0) as client, RawClient(tree.address, 0) as other, ThreadPoolExecutor(1) as beside:
            if flood is looks:
                pipelined(client, defines, 8_000)
            flooding = beside.submit(pipelined, client, flood, count)
            pings = 0
            while not flooding.done():
                other.ask(m.Ping(pings), m.Pong, request=pings + 100)
                pings += 1
        answers = flooding.result()
        refused = {answer.code for answer in answers if isinstance(answer, m.Error)}
        assert pings and any(isinstance(answer, m.Reply) for answer in answers) and refused <= {"busy", "rejected"}
        assert tree.shard(0).pid == pid
