"""The keeper as a process: what it promises to its owner."""
from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
from keeper_shard import OPTIONS, Shard, exists, in_loop, open_shard, until
from store_records import contents, folded, history, quiet, start, step

from fusee_mp.core import records as r
from fusee_mp.errors import Rejected, StorageError, Unavailable
from fusee_mp.keeper.owner import Keeper
from fusee_mp.log import Log, Position
from fusee_mp.store import Store
from fusee_mp.store.results import Found
from fusee_mp.store.schema import INDEXED_CHARS
from tests.processes import is_alive


@in_loop
async def test_a_read_waits_for_the_lsn_it_needs_and_no_longer_than_its_timeout(tmp_path: Path) -> None:
    async with open_shard(tmp_path) as shard:
        early = asyncio.create_task(shard.keeper.read("find", ("order-1",), min_lsn=2))
        await shard.append(start())
        assert await shard.keeper.read("find", ("order-1",), min_lsn=1) is not None and not early.done()
        await shard.append(quiet())
        found = await early
        assert isinstance(found, Found) and found.status == "suspended"
        with pytest.raises(Unavailable, match=r'"find" needs LSN 9 and its time is up at 2: the log is known to be durable to 2'):
            await shard.keeper.read("find", ("order-1",), min_lsn=9, timeout=0.05)


@in_loop
async def test_what_is_published_is_applied_without_anybody_asking(tmp_path: Path) -> None:
    async with open_shard(tmp_path, checkpoint_interval_ms=50) as shard:
        applied: list[int] = []
        safe: list[int] = []
        shard.keeper.on_applied, shard.keeper.on_checkpoint = applied.append, safe.append
        await shard.append(start(), step())
        assert shard.keeper.lag == 2
        await until(lambda: shard.keeper.applied_lsn == 2 and shard.keeper.checkpoint_lsn == 2)
        assert (applied, safe[-1], shard.keeper.lag) == ([2], 2, 0)


@in_loop
async def test_a_checkpoint_covers_everything_published_before_it(tmp_path: Path) -> None:
    async with open_shard(tmp_path) as shard:
        lsn = await shard.append(*(start(run, f"i{run}") for run in range(1, 100)))
        assert await shard.keeper.checkpoint() == lsn == shard.keeper.checkpoint_lsn
    with_rows = Store.open(tmp_path / "store.db")
    assert with_rows.checkpoint_lsn == lsn
    with_rows.close()


@asynccontextmanager
async def open_log(directory: Path, keeper: Keeper) -> AsyncIterator[Shard]:
    log = Log.open(directory / "log", OPTIONS, proven_lsn=keeper.applied_lsn, loop=asyncio.get_running_loop())
    try:
        yield Shard(log, keeper)
    finally:
        await log.close()


@in_loop
async def test_closing_with_a_checkpoint_leaves_nothing_to_fold(tmp_path: Path) -> None:
    keeper = await Keeper.start(tmp_path)
    async with open_log(tmp_path, keeper) as shard:
        lsn = await shard.append(start())
        await keeper.close(checkpoint=True)
        await keeper.close(checkpoint=True)
    assert keeper.checkpoint_lsn == lsn and not exists(keeper.pid)
    with pytest.raises(Unavailable, match="is gone"):
        await keeper.read("state")
    async with open_shard(tmp_path) as shard:
        assert shard.keeper.applied_lsn == shard.keeper.checkpoint_lsn == lsn


@in_loop
async def test_killed_at_any_moment_it_continues_from_its_applied_lsn_with_equal_rows(tmp_path: Path) -> None:
    rng = random.Random(11)
    records = history(3, 6000)
    written = 0
    for _ in range(12):
        keeper = await Keeper.start(tmp_path, checkpoint_interval_ms=20)
        assert keeper.applied_lsn <= written
        async with open_log(tmp_path, keeper) as shard:
            assert shard.log.last_lsn == written
            keeper.publish(shard.log.durable_position)
            lost: list[str] = []
            keeper.on_exit = lost.append
            for _ in range(10):
                written = await shard.append(*records[written : written + 50])
                asks = [asyncio.create_task(keeper.read("state", min_lsn=written)) for _ in range(2)]
            os.kill(keeper.pid, signal.SIGKILL) if rng.random() < 0.5 else asyncio.get_running_loop().call_later(
                rng.random() / 50, os.kill, keeper.pid, signal.SIGKILL)
            await until(lambda lost=lost: lost)
            answers = await asyncio.gather(*asks, return_exceptions=True)
            assert all(isinstance(answer, Unavailable) or answer.applied_lsn >= written for answer in answers)
            assert "ended by itself with status -9" in lost[0] and not exists(keeper.pid)
    async with open_shard(tmp_path) as shard:
        await shard.keeper.read("state", min_lsn=written)
        assert shard.keeper.trouble == ""
    store, whole = Store.open(tmp_path / "store.db"), folded(*records[:written])
    assert written == len(records) and contents(store) == contents(whole)
    store.close()


@in_loop
async def test_a_lock_of_another_program_is_lag_and_no_failure(tmp_path: Path) -> None:
    async with open_shard(tmp_path) as shard:
        keeper, troubles = shard.keeper, []
        keeper.on_trouble = troubles.append
        await keeper.checkpoint()
        user = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
        user.execute("begin immediate")
        lsn = await shard.append(start())
        with pytest.raises(Unavailable, match="locked by another program"):
            await keeper.read("state", min_lsn=lsn, timeout=0.3)
        assert (await keeper.read("state")).applied_lsn == 0 and keeper.lag == 1
        waiting = asyncio.create_task(keeper.read("find", ("order-1",), min_lsn=lsn))
        assert "locked by another program" in troubles[0] and keeper.trouble_kind == "locked"
        user.execute("rollback")
        user.close()
        assert (await waiting).run == 1
        await until(lambda: keeper.trouble == "")


@in_loop
async def test_a_record_that_is_none_halts_folding_and_says_where(tmp_path: Path) -> None:
    for _ in range(2):
        async with open_shard(tmp_path) as shard:
            keeper, log = shard.keeper, shard.log
            if log.last_lsn == 0:
                await shard.append(start(), step())
                bad = r.frame(r.encode(step())) + r.frame(b"\xc1nonsense")
                log.append(bad, 2, 1)
                await until(lambda log=log: log.durable_lsn == 4)
                await shard.append(step())
            await until(lambda keeper=keeper: keeper.trouble)
            assert keeper.trouble_kind == "record" and "LSN 4 cannot be folded" in keeper.trouble and "halted at LSN 2" in keeper.trouble
            assert (await keeper.read("find", ("order-1",), min_lsn=2)).lsn == 2
            with pytest.raises(Unavailable, match="cannot reach LSN 5: the record with LSN 4"):
                await keeper.read("find", ("order-1",), min_lsn=5)
            assert await keeper.read("count") == 1
            with pytest.raises(Unavailable, match="LSN 4"):
                await keeper.checkpoint()
            assert keeper.lag == 3 and exists(keeper.pid)


@in_loop
async def test_damage_of_the_log_halts_folding_and_says_where(tmp_path: Path) -> None:
    async with open_shard(tmp_path) as shard:
        await shard.append(start())
        await shard.keeper.read("state", min_lsn=1)
        shard.keeper.publish(Position(1, 0, 50))
        with pytest.raises(Unavailable, match="cannot reach LSN 50: "):
            await shard.keeper.read("state", min_lsn=50)
        assert shard.keeper.trouble_kind == "log" and (await shard.keeper.read("state")).applied_lsn == 1


@in_loop
async def test_a_slow_list_is_ended_at_its_deadline_and_holds_up_nothing(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store.db")
    name = "n" * (INDEXED_CHARS + 1)  # so that every run is looked at
    folded(*(start(run, f"i{run}", attributes=b'{"%b":1}' % name.encode()) for run in range(1, 20_001)), store=store)
    store.close()
    costly = {f"{name}{number}": {"exists": False} for number in range(60)} | {"finished": {"exists": True}}
    keeper = await Keeper.start(tmp_path)
    try:
        slow = [asyncio.create_task(keeper.read("list", (costly,), timeout=0.05)) for _ in range(3)]
        for n in range(20):
            assert (await keeper.read("find", (f"i{n + 1}",))).run == n + 1
        for answer in await asyncio.gather(*slow, return_exceptions=True):
            assert isinstance(answer, Unavailable) and "deadline" in str(answer)
        assert await keeper.read("count", ({name: 1},)) == 20_000
    finally:
        await keeper.close(checkpoint=False)


@in_loop
async def test_wrong_questions_are_answered_with_what_is_right(tmp_path: Path) -> None:
    keeper = await Keeper.start(tmp_path)
    try:
        with pytest.raises(Rejected, match="Expected `str`"):
            await keeper.read("find", (5,))
        with pytest.raises(Rejected, match='no read "drop"'):
            await keeper.read_bytes("drop", b"\x90")
        for malformed in (b"\xc1", b"\x81\x01\x02", b"\xa1x"):
            with pytest.raises(Rejected, match="malformed"):
                await keeper.read_bytes("find", malformed)
        with pytest.raises(Rejected, match="there are eq"):
            await keeper.read("list", ({"a": {"like": 1}},))
        with pytest.raises(Rejected, match="too large"):  # for any store
            await keeper.read("by_run", (1 << 63,))
        assert (await keeper.read("state")).applied_lsn == 0
    finally:
        await keeper.close(checkpoint=False)


@in_loop
async def test_a_second_keeper_waits_until_the_first_is_gone(tmp_path: Path) -> None:
    first = await Keeper.start(tmp_path)
    second = asyncio.create_task(Keeper.start(tmp_path))
    await until(lambda: len(psutil.Process().children()) == 2)
    await first.read("state")
    done, _ = await asyncio.wait([second], timeout=0.3)
    assert not done
    await first.close(checkpoint=False)
    await (await second).close(checkpoint=False)


@in_loop
async def test_one_that_waits_for_the_store_ends_when_its_start_is_cancelled(tmp_path: Path) -> None:
    first = await Keeper.start(tmp_path)
    second = asyncio.create_task(Keeper.start(tmp_path))
    await until(lambda: len(psutil.Process().children()) == 2)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    assert [child.pid for child in psutil.Process().children()] == [first.pid]
    await first.close(checkpoint=False)


OWNER = """
import asyncio, pathlib, sys
from fusee_mp.keeper.owner import Keeper
async def main():
    keeper = await Keeper.start(pathlib.Path(sys.argv[1]))
    print(keeper.pid, flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


@pytest.mark.parametrize("stop", [False, True])
def test_the_owners_death_ends_the_keeper_also_when_it_is_stopped_or_asked_to_end(tmp_path: Path, stop: bool) -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pid = int(owner.stdout.readline())
    keeper = psutil.Process(pid)
    for kind in (signal.SIGINT, signal.SIGTERM):
        keeper.send_signal(kind)
    assert is_alive(keeper)
    if stop:
        keeper.send_signal(signal.SIGSTOP)
    owner.kill()
    owner.wait()
    owner.stdout.close()
    psutil.wait_procs([keeper], timeout=30)
    assert not is_alive(keeper)


@in_loop
async def test_it_is_small_and_holds_only_its_own_descriptors(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    keeper = await Keeper.start(tmp_path, pass_fds=(write_end,))
    try:
        await keeper.read("state")
        process = psutil.Process(keeper.pid)
        assert process.memory_info().rss <= 25 << 20
        assert process.num_threads() == 1
        targets = [os.readlink(f"/proc/{keeper.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{keeper.pid}/fd")]
        assert os.readlink(f"/proc/self/fd/{write_end}") in targets
        assert len([target for target in targets if target.startswith("socket:")]) == 1
    finally:
        await keeper.close(checkpoint=False)
        os.close(write_end)
        os.close(read_end)


@in_loop
async def test_a_store_that_cannot_be_opened_is_an_error_of_the_start(tmp_path: Path) -> None:
    (tmp_path / "store.db").write_bytes(b"not a database" * 1000)
    with pytest.raises(StorageError, match="cannot be opened"):
        await Keeper.start(tmp_path)
    with pytest.raises(StorageError, match="cannot begin.*No such file"):
        await Keeper.start(tmp_path / "missing")
    assert psutil.Process().children() == []


@in_loop
async def test_publishing_is_coalesced_and_the_newest_position_counts(tmp_path: Path) -> None:
    async with open_shard(tmp_path) as shard:
        lsn = await shard.append(*(start(run, f"i{run}") for run in range(1, 50)))
        for _ in range(1000):
            shard.keeper.publish(shard.log.durable_position)
            shard.keeper.publish(Position(0, 0, 1))
        assert shard.keeper.published_lsn == lsn
        await shard.keeper.read("state", min_lsn=lsn)
        assert shard.keeper.lag == 0
