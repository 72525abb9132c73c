"""Writes and flushes that fail, and disks that fill up."""
from __future__ import annotations

import asyncio
import errno
import os
import random
from dataclasses import replace

import pytest
from log_sim import SMALL, FakeLoop, SimDisk, append, read_all, sim_log

from fusee_mp.errors import StorageError, StorageFull
from fusee_mp.log import Log
from fusee_mp.log.format import COPY_OFFSETS, HEADER_BYTES
from fusee_mp.log.segment import RESERVE


def broken(kind: str, name: str) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO), f"{kind} {name}")


def work(log: Log, loop: FakeLoop, rounds: int) -> None:
    for _ in range(rounds):
        if log.is_full:
            return
        append(log, 3)
        loop.run()
        log.checkpointed(log.durable_lsn - 40)
        loop.run()


def test_a_failure_of_any_operation_is_final_and_loses_nothing_acknowledged() -> None:
    failed_at: set[str] = set()
    for fail_at in range(260):
        disk, loop = SimDisk(), FakeLoop()
        log = sim_log(disk, loop)
        failures: list[BaseException] = []
        acknowledged: list[int] = []
        log.on_failed = failures.append
        log.on_durable = acknowledged.append
        left = fail_at

        def before(kind: str, name: str) -> None:
            nonlocal left
            left -= 1
            if left == -1:
                failed_at.add(kind)
                broken(kind, name)

        disk.before = before
        try:
            work(log, loop, 150)
        except StorageError:
            pass
        assert len(failures) == 1, "it is told once"
        operations = len(disk.operations)
        durable = log.durable_lsn
        with pytest.raises(StorageError, match="takes no more records"):
            append(log)
        log.checkpointed(durable)
        loop.advance(10)
        assert (len(disk.operations), log.durable_lsn) == (operations, durable), "nothing is written after a failure"
        log.abandon()
        assert disk.open_descriptors == 0
        again = sim_log(disk.crashed(random.Random(fail_at)), loop, proven_lsn=max(0, durable - 40))
        assert again.last_lsn >= durable == (acknowledged[-1] if acknowledged else 0)
        again.abandon()
    assert failed_at >= {"write", "flush", "rename", "flush_directory", "allocate", "create"}


def test_a_batch_whose_flush_failed_is_not_trusted_though_it_reads_back_whole() -> None:
    """The kernel marks the pages of a failed flush clean: they are in the page cache and not on the disk."""
    disk, loop = SimDisk(), FakeLoop()
    log = sim_log(disk, loop)
    append(log, 3)
    loop.run()
    disk.before = lambda kind, name: broken(kind, name) if kind == "flush" else None
    append(log, 3)
    loop.run()
    assert log.durable_lsn == 3
    log.abandon()
    restarted_disk = disk.killed()
    restarted = sim_log(restarted_disk, loop)
    assert restarted.last_lsn == restarted.durable_lsn == 6 and restarted.recovery.copied_batches == 1
    restarted.abandon()
    after_power_cut = sim_log(restarted_disk.crashed(random.Random(1)), loop)
    assert after_power_cut.last_lsn == 6
    after_power_cut.abandon()


def test_a_failed_open_closes_what_it_opened_and_can_be_repeated() -> None:
    disk, loop = SimDisk(), FakeLoop()
    log = sim_log(disk, loop)
    append(log, 5)
    loop.run()
    log.abandon()
    for fail_at in range(40):
        left = fail_at

        def before(kind: str, name: str) -> None:
            nonlocal left
            left -= 1
            if left == -1:
                broken(kind, name)

        disk = disk.killed()
        disk.before = before
        try:
            log = sim_log(disk, loop)
        except StorageError:
            pass
        else:
            log.abandon()
        assert disk.open_descriptors == 0
    final = sim_log(disk.killed(), loop)
    assert final.last_lsn == 5
    final.abandon()


def test_at_any_moment_one_copy_of_each_segment_header_is_at_rest() -> None:
    """So that a write torn anywhere, even within a sector, leaves a header."""
    disk, loop = SimDisk(), FakeLoop()

    def before(kind: str, name: str) -> None:
        for file, inode in disk.files.items():
            touched = {at for offset, data in inode.dirty for at in COPY_OFFSETS if offset < at + HEADER_BYTES and offset + len(data) > at}
            assert len(touched) < 2 or not file.endswith(".seg"), f"both headers of {file} are in flight at {kind} {name}"

    disk.before = before
    log = sim_log(disk, loop)
    work(log, loop, 150)
    assert log.metrics.segments_begun > 3 and log.metrics.segments_retired > 3
    log.abandon()


# A disk that fills up.

OPTIONS = replace(SMALL, reserve_bytes=24 * 1024)


def fill_disk(disk: SimDisk) -> None:
    disk.taken_by_others += disk.free_bytes()


def on_full_disk() -> tuple[SimDisk, FakeLoop, Log]:
    disk, loop = SimDisk(200 * 1024), FakeLoop()
    log = sim_log(disk, loop, OPTIONS)
    loop.run()
    fill_disk(disk)
    return disk, loop, log


def until_refused(log: Log, loop: FakeLoop, *, running: bool) -> StorageFull:
    for _ in range(500):
        try:
            append(log, 3, running=running)
        except StorageFull as error:
            return error
        loop.run()
    raise AssertionError("never refused")


def test_a_full_disk_refuses_new_work_first_and_running_work_last() -> None:
    disk, loop, log = on_full_disk()
    error = until_refused(log, loop, running=False)
    assert "new work is refused" in error.message and "resumes by itself" in error.message
    assert RESERVE not in disk.files and disk.free_bytes() >= OPTIONS.reserve_bytes, "the keeper has room now"
    before = log.last_lsn
    append(log, 3, running=True)
    loop.run()
    assert log.durable_lsn == before + 3, "running work goes on"
    fill_disk(disk)
    assert "this record is refused" in until_refused(log, loop, running=True).message
    loop.run()
    assert log.durable_lsn == log.last_lsn, "what was taken was acknowledged"
    log.abandon()
    assert disk.open_descriptors == 0


def test_work_resumes_by_itself_when_space_comes_back() -> None:
    disk, loop, log = on_full_disk()
    until_refused(log, loop, running=False)
    loop.advance(5)
    assert log.is_full
    disk.taken_by_others = 0
    loop.advance(5)
    assert not log.is_full and RESERVE in disk.files
    append(log, 3, running=False)
    loop.run()
    assert log.durable_lsn == log.last_lsn
    log.abandon()
    assert read_all(disk, log.durable_lsn) == list(range(1, log.durable_lsn + 1))


def test_work_resumes_when_a_checkpoint_sets_segments_free() -> None:
    disk, loop, log = on_full_disk()
    until_refused(log, loop, running=True)
    durable = log.durable_lsn
    log.checkpointed(durable)
    loop.advance(5)
    for _ in range(100):
        append(log, 3, running=True)
        loop.run()
        log.checkpointed(log.durable_lsn)
        loop.run()
    assert log.durable_lsn == durable + 300, "running work goes round in recycled segments"
    log.abandon()


def test_a_full_disk_does_not_flap() -> None:
    """Space for the reserve alone is not enough to let new work in: the next fold would need it again."""
    disk, loop = SimDisk(200 * 1024), FakeLoop()
    log = sim_log(disk, loop, OPTIONS)
    loop.run()
    log.release_reserve()
    disk.taken_by_others += disk.free_bytes() - OPTIONS.reserve_bytes - 1024
    loop.advance(5)
    assert log.is_full
    with pytest.raises(StorageFull):
        append(log, running=False)
    disk.taken_by_others -= OPTIONS.reserve_bytes
    loop.advance(5)
    assert not log.is_full
    log.abandon()


def test_a_log_opens_on_a_full_disk_from_what_it_has() -> None:
    disk, loop = SimDisk(200 * 1024), FakeLoop()
    log = sim_log(disk, loop, OPTIONS)
    append(log, 3)
    loop.run()
    for _ in range(12):
        log.abandon()
        disk = disk.killed()
        fill_disk(disk)
        log = sim_log(disk, loop, OPTIONS)
        assert log.last_lsn == 3
    log.abandon()


def test_an_open_that_finds_no_room_says_so_and_loses_nothing() -> None:
    disk, loop = SimDisk(4 * 1024), FakeLoop()
    with pytest.raises(StorageFull, match="bytes are free. Free some disk space"):
        sim_log(disk, loop, OPTIONS)
    assert disk.open_descriptors == 0
    disk.capacity = 1 << 20
    sim_log(disk, loop, OPTIONS).abandon()


def test_a_superseded_segment_is_no_damage() -> None:
    """A crash between the header of the segment that took a batch over and the retirement of the one it came from."""
    disk, loop = SimDisk(), FakeLoop()
    log = sim_log(disk, loop)
    append(log, 3)
    loop.run()
    log.abandon()

    def before(kind: str, name: str) -> None:
        if ".spare" in name or kind == "unlink":
            broken(kind, name)

    for _ in range(3):
        disk = disk.killed()
        disk.before = before
        with pytest.raises(StorageError, match="cannot be opened"):
            sim_log(disk, loop)
        assert read_all(disk, 3) == [1, 2, 3]
    disk = disk.killed()
    log = sim_log(disk, loop)
    assert log.last_lsn == 3 and read_all(disk, 3) == [1, 2, 3]
    log.abandon()


def test_a_seal_that_never_got_to_the_disk_is_not_claimed_by_the_next_segment() -> None:
    for seed in range(20):
        disk, loop = SimDisk(), FakeLoop()
        log = sim_log(disk, loop)
        append(log, 3)
        loop.run()
        disk.before = lambda kind, name: broken(kind, name) if kind == "flush" else None
        loop.advance(1)
        log.abandon()
        restarted_disk = disk.killed()
        sim_log(restarted_disk, loop).abandon()
        again = sim_log(restarted_disk.crashed(random.Random(seed)), loop)
        assert again.last_lsn == 3
        again.abandon()


def test_a_batch_that_the_small_segment_of_a_full_disk_cannot_hold_waits_for_space() -> None:
    disk, loop, log = on_full_disk()
    until_refused(log, loop, running=True)
    log.checkpointed(log.durable_lsn)
    disk.taken_by_others += disk.free_bytes()
    loop.advance(3)
    assert log._supply.ready is not None
    log._supply.ready = log._supply.ready._replace(size=9 * 1024)
    for _ in range(3):
        append(log, 10, running=True)
    loop.advance(3)
    assert log.durable_lsn < log.last_lsn
    disk.taken_by_others = 0
    loop.advance(3)
    assert log.durable_lsn == log.last_lsn and not log.is_full
    log.abandon()


def test_close_on_a_full_disk_ends_and_says_what_was_not_acknowledged() -> None:
    disk, loop, log = on_full_disk()
    until_refused(log, loop, running=True)
    durable = log.durable_lsn
    log._pending.add(b"x" * 8000, 1, 1)
    log.last_lsn += 1
    log._wake()
    loop.run()

    async def close() -> None:
        log._loop = asyncio.get_running_loop()
        with pytest.raises(StorageFull, match=f"records {durable + 1} to {durable + 1} found no room"):
            await log.close()

    asyncio.run(close())
    assert disk.open_descriptors == 0
