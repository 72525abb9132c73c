"""What can stand in the way of folding, without a process."""
from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from keeper_shard import OPTIONS, in_loop, until
from store_records import start

from fusee_mp.core import records as r
from fusee_mp.errors import ProtocolError
from fusee_mp.keeper import protocol as p
from fusee_mp.keeper import tail as module
from fusee_mp.keeper.tail import Tail
from fusee_mp.log import Log, join_records
from fusee_mp.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store.open(tmp_path / "store.db")
    yield store
    store.close()


async def write_log(directory: Path, batches: int) -> None:
    log = Log.open(directory, OPTIONS, proven_lsn=0, loop=asyncio.get_running_loop())
    for run in range(1, batches + 1):
        lsn = log.append(join_records([r.encode(start(run, f"i{run}", input=bytes(20_000)))]), 1, 1)
        await until(lambda lsn=lsn: log.durable_lsn >= lsn)
    await log.close()


@in_loop
async def test_a_full_disk_is_reported_once_and_folding_goes_on_when_there_is_room(store: Store, tmp_path: Path) -> None:
    await write_log(tmp_path / "log", 50)
    troubles: list[tuple[str, str]] = []
    tail = Tail(store, tmp_path / "log", lambda kind, reason: troubles.append((kind, reason)))
    tail.through_lsn = 50
    pages = store.db.execute("pragma page_count").fetchone()[0]
    store.db.execute(f"pragma max_page_count = {pages + 2}")
    tail.step(0.0)
    tail.step(0.05)
    tail.step(1.0)
    assert store.applied_lsn == 0 and [kind for kind, _ in troubles] == ["full"] and "disk is full" in tail.reason
    store.db.execute("pragma max_page_count = 1000000")
    tail.step(1.05)
    assert store.applied_lsn == 0, "it waits a moment before it tries again"
    tail.step(2.0)
    assert store.applied_lsn == 50 and troubles[-1] == ("", "") and tail.checkpoint(2.0) == 50


@in_loop
async def test_a_large_wal_is_reported_with_its_cause_and_folding_goes_on(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WAL_BYTES_REPORTED", 100_000)
    await write_log(tmp_path / "log", 40)
    user = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    user.execute("begin")
    user.execute("select count(*) from run").fetchone()
    troubles: list[tuple[str, str]] = []
    tail = Tail(store, tmp_path / "log", lambda kind, reason: troubles.append((kind, reason)))
    for lsn in (20, 40):
        tail.through_lsn = lsn
        tail.step(0.0)
    assert store.applied_lsn == 40 and troubles[0][0] == "wal" and "keeps a read transaction open" in troubles[0][1]
    user.close()
    assert store.shrink()
    tail.checkpoint(0.0)
    assert [kind for kind, _ in troubles] == ["wal", ""]


@in_loop
async def test_a_long_backlog_is_folded_in_slices(store: Store, tmp_path: Path) -> None:
    await write_log(tmp_path / "log", 400)
    tail = Tail(store, tmp_path / "log", lambda kind, reason: None)
    tail.through_lsn, steps = 400, 0
    while tail.is_behind:
        before = store.applied_lsn
        tail.step(0.0)
        assert store.applied_lsn > before
        steps += 1
    assert steps >= 2 and store.count_runs() == 400


def test_frames_may_arrive_in_any_pieces_and_a_long_one_is_refused() -> None:
    messages = [p.Publish(5), p.Ask(1, "find", b"\x90", 3, 1000), p.Close()]
    stream = b"".join(map(p.pack, messages))
    for size in (1, 3, len(stream)):
        frames = p.Frames(1000)
        bodies = [body for at in range(0, len(stream), size) for body in frames.feed(stream[at : at + size])]
        assert list(map(p.decode_for_keeper, bodies)) == messages
    with pytest.raises(ProtocolError, match="a frame of 4294967295 bytes"):
        p.Frames(1000).feed(b"\xff\xff\xff\xff")
