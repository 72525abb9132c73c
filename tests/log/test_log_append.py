from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest
from log_sim import ANYWHERE, SMALL, FakeLoop, SimDisk, append, read_all, records, sim_log

from fusee_mp.errors import Rejected, StorageError
from fusee_mp.log import Log, LogOptions, Position, join_records, read_batches, recover, split_records


@pytest.fixture
def loop() -> FakeLoop:
    return FakeLoop()


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk()


@pytest.fixture
def log(disk: SimDisk, loop: FakeLoop) -> Iterator[Log]:
    log = sim_log(disk, loop)
    yield log
    log.abandon()
    assert disk.open_descriptors == 0


def test_a_new_log_is_empty_and_durable(log: Log) -> None:
    assert (log.last_lsn, log.durable_lsn, log.recovery.last_lsn, log.recovery.torn, log.oldest_lsn) == (0, 0, 0, None, 1)


def test_lsns_are_dense_from_one_over_appends_and_opens(log: Log, loop: FakeLoop, disk: SimDisk) -> None:
    assert [append(log, 3), append(log), append(log, 2)] == [3, 4, 6]
    loop.run()
    log.abandon()
    again = sim_log(disk.killed(), loop)
    assert again.last_lsn == again.durable_lsn == 6
    assert append(again) == 7
    again.abandon()


def test_appends_of_one_turn_share_a_flush(log: Log, loop: FakeLoop) -> None:
    seen: list[int] = []
    log.on_durable = seen.append
    for _ in range(10):
        append(log)
    assert seen == [] and log.durable_lsn == 0
    loop.run()
    assert seen == [10] and log.metrics.flushes == 1 and log.metrics.records == 10


def test_nothing_is_durable_before_its_flush(log: Log, loop: FakeLoop, disk: SimDisk) -> None:
    durable_at_flush: list[int] = []
    flush = ("flush", "0000000000000001.seg")
    disk.before = lambda *operation: durable_at_flush.append(log.durable_lsn) if operation == flush else None
    append(log)
    loop.run()
    append(log)
    loop.run()
    assert durable_at_flush == [0, 1] and log.durable_lsn == 2


def test_an_append_from_the_durable_callback_is_written_next(log: Log, loop: FakeLoop) -> None:
    def more(lsn: int) -> None:
        if lsn < 5:
            append(log)

    log.on_durable = more
    append(log)
    loop.run()
    assert log.durable_lsn == 5


def test_a_batch_carries_one_epoch(log: Log, loop: FakeLoop, disk: SimDisk) -> None:
    for epoch in (1, 1, 2, 2, 3):
        append(log, epoch=epoch)
    loop.run()
    batches = list(read_batches(ANYWHERE, None, 5, disk=disk))
    assert [(batch.first_lsn, batch.count, batch.epoch) for batch in batches] == [(1, 2, 1), (3, 2, 2), (5, 1, 3)]


def test_an_epoch_never_falls_not_even_over_a_restart(log: Log, loop: FakeLoop, disk: SimDisk) -> None:
    append(log, epoch=7)
    loop.run()
    with pytest.raises(ValueError, match="epoch 6 came after one under epoch 7"):
        append(log, epoch=6)
    log.abandon()
    again = sim_log(disk.killed(), loop)
    assert again.recovery.epoch == 7
    again.abandon()


def test_the_epoch_survives_when_all_segments_with_records_are_gone(log: Log, loop: FakeLoop, disk: SimDisk) -> None:
    append(log, epoch=9)
    loop.run()
    log.abandon()
    second_disk = disk.killed()
    second = sim_log(second_disk, loop)
    second.checkpointed(1)
    loop.run()
    second.abandon()
    third = sim_log(second_disk.killed(), loop, proven_lsn=1)
    assert third.recovery.epoch == 9 and third.last_lsn == 1
    third.abandon()


@pytest.mark.parametrize("data, count", [(b"", 1), (b"12345", 0), (bytes(8193), 1)])
def test_an_append_out_of_bounds_is_refused_and_changes_nothing(log: Log, data: bytes, count: int) -> None:
    with pytest.raises(ValueError, match="8192"):
        log.append(data, count, 1)
    assert log.last_lsn == 0


def test_the_largest_append_fits_and_batches_stay_in_bounds(log: Log, loop: FakeLoop, disk: SimDisk) -> None:
    data = join_records([bytes(SMALL.append_bytes_max - 4)])
    for _ in range(9):
        log.append(data, 1, 1)
    loop.run()
    batches = list(read_batches(ANYWHERE, None, 9, disk=disk))
    assert sum(batch.count for batch in batches) == 9
    assert all(len(batch.body) <= SMALL.batch_bytes_max for batch in batches)


def test_options_that_do_not_fit_each_other_are_refused() -> None:
    for wrong in ({"block_bytes": 1000}, {"segment_bytes": 1 << 20}, {"append_bytes_max": 1 << 30}, {"starter_bytes": 8192}):
        with pytest.raises(Rejected):
            LogOptions(**wrong)  # type: ignore[arg-type]


def test_a_pause_seals_the_last_batch_and_wakes_nobody(log: Log, loop: FakeLoop, disk: SimDisk) -> None:
    seen: list[int] = []
    log.on_durable = seen.append
    append(log)
    loop.advance(0.1)
    assert log.metrics.batches == 1
    append(log)
    loop.advance(0.15)
    assert log.metrics.batches == 2, "the pause is counted from the last acknowledgment"
    loop.advance(10)
    assert log.metrics.batches == 3 and seen == [1, 2]
    found = recover(ANYWHERE, disk=disk)
    assert found.unproven == [] and found.last_lsn == 2


def test_a_position_reads_on_where_it_says(log: Log, loop: FakeLoop, disk: SimDisk) -> None:
    for _ in range(60):
        append(log, 3)
        loop.run()
    assert log.metrics.segments_begun > 1
    for first in read_batches(ANYWHERE, None, 180, disk=disk):
        rest = list(read_batches(ANYWHERE, first.next, 180, disk=disk))
        assert [batch.first_lsn for batch in rest] == list(range(first.last_lsn + 1, 181, 3))


def test_reading_stops_at_the_lsn_that_was_asked_for(log: Log, loop: FakeLoop, disk: SimDisk) -> None:
    for _ in range(4):
        append(log, 5)
        loop.run()
    assert read_all(disk, 0) == []
    assert read_all(disk, 4) == []
    assert read_all(disk, 12) == list(range(1, 11))
    assert read_all(disk, 20) == list(range(1, 21))


def test_reading_past_what_is_there_is_damage_not_a_wait(log: Log, loop: FakeLoop, disk: SimDisk) -> None:
    append(log, 5)
    loop.run()
    with pytest.raises(StorageError, match="LSN 6"):
        read_all(disk, 6)


def test_a_start_in_a_segment_that_is_gone_goes_on_by_its_lsn(log: Log, loop: FakeLoop, disk: SimDisk) -> None:
    append(log, 5)
    loop.run()
    start = Position(77, 12345, 3)
    with pytest.raises(StorageError):
        list(read_batches(ANYWHERE, Position(77, 12345, 5), 6, disk=disk))
    batches = list(read_batches(ANYWHERE, start, 5, disk=disk))
    assert [batch.first_lsn for batch in batches] == [1], "LSN 4 is in the middle of a batch, which comes whole"


def test_records_split_as_they_were_joined_and_wrong_lengths_are_refused() -> None:
    parts = [b"", b"a", b"bc" * 100]
    assert [bytes(part) for part in split_records(join_records(parts))] == parts
    for wrong in (b"\x01", b"\x05\0\0\0abc", b"\xff\xff\xff\xff"):
        with pytest.raises(StorageError, match="counted wrongly"):
            list(split_records(wrong))


def test_a_pinned_segment_stays_until_it_is_let_go(log: Log, loop: FakeLoop, disk: SimDisk) -> None:
    for _ in range(60):
        append(log, 3)
        loop.run()
    pin = log.pin(100)
    log.checkpointed(180)
    loop.run()
    assert 1 < log.oldest_lsn <= 100
    held = log.oldest_lsn
    assert read_all(disk, 180) == list(range(held, 181))
    log.unpin(pin)
    loop.run()
    assert log.oldest_lsn > held


def test_a_checkpoint_ahead_of_the_log_lets_only_durable_segments_go(log: Log, loop: FakeLoop) -> None:
    for _ in range(30):
        append(log, 3)
        loop.run()
    append(log)
    log.checkpointed(1 << 40)
    loop.run()
    assert log.durable_lsn == 91 and log.oldest_lsn <= 91


def test_close_flushes_seals_and_takes_no_more(tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.mktemp("log")

    async def main() -> None:
        log = Log.open(directory, replace(SMALL, flush="auto"), proven_lsn=0, loop=asyncio.get_running_loop())
        for _ in range(100):
            log.append(records(log.last_lsn + 1, 1), 1, 1)
        await log.close()
        await log.close()
        with pytest.raises(StorageError, match="was closed"):
            log.append(records(101, 1), 1, 1)

    asyncio.run(main())
    found = recover(directory)
    assert (found.last_lsn, found.unproven, found.torn, found.gaps) == (100, [], None, [])
    assert read_all(None, 100, directory) == list(range(1, 101))
