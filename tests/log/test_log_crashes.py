"""The log on a disk that forgets: power cuts and kills before any operation, over several lives, against a model."""
from __future__ import annotations

import copy
import os
import random
import struct
from collections import Counter
from dataclasses import replace

import pytest
from log_sim import ANYWHERE, SALTS, SMALL, Crash, FakeLoop, SimDisk, sim_log

from fusee_mp.log import Log, join_records, read_batches, recover, split_records

LONG = os.environ.get("FUSEE_LONG") == "1"
SMALLEST = replace(SMALL, segment_bytes=20 * 1024, starter_bytes=12 * 1024, append_bytes_max=4096, batch_bytes_max=8192)


class Model:
    """What was appended, and what of it must survive."""

    def __init__(self) -> None:
        self.appended: list[bytes] = []
        self.durable = 0
        self.checkpointed = 0

    def reopened(self, last_lsn: int) -> None:
        assert self.durable <= last_lsn <= len(self.appended), (self.durable, last_lsn, len(self.appended))
        del self.appended[last_lsn:]
        self.durable = last_lsn


class World:
    """One disk, one model, and lives of the log that end in a crash."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.disk = SimDisk()
        self.model = Model()
        self.life = 0
        self.seen: Counter[str] = Counter()

    def live(self, crash_at: int | None, is_kill: bool | None = None, is_working: bool = True) -> None:
        """Open, work, and stop before operation `crash_at` of this life, or at the end of its work."""
        self.life += 1
        loop = FakeLoop()
        left = crash_at

        def before(kind: str, name: str) -> None:
            nonlocal left
            if left is not None:
                if left == 0:
                    raise Crash(f"{kind} {name}")
                left -= 1

        self.disk.before = before
        log = None
        try:
            log = sim_log(self.disk, loop, SMALLEST, proven_lsn=self.model.checkpointed)
            self.model.reopened(log.last_lsn)
            self.check(log)
            log.on_durable = self.durable
            if is_working:
                self.work(log, loop)
            self.seen["whole lives"] += 1
        except Crash as crash:
            self.seen[str(crash).split()[0]] += 1
        if log is not None:
            log.abandon()
        assert self.disk.open_descriptors == 0
        is_kill = self.rng.random() < 0.3 if is_kill is None else is_kill
        self.disk = self.disk.killed() if is_kill else self.disk.crashed(self.rng)

    def durable(self, lsn: int) -> None:
        self.model.durable = lsn

    def work(self, log: Log, loop: FakeLoop) -> None:
        for _ in range(self.rng.randrange(2, 25)):
            for _ in range(self.rng.randrange(1, 4)):
                self.append(log)
            if self.rng.random() < 0.8:
                loop.run()
            if self.rng.random() < 0.1:
                loop.advance(0.5)
            if self.rng.random() < 0.2:
                self.model.checkpointed = max(self.model.checkpointed, self.rng.randint(0, self.model.durable))
                log.checkpointed(self.model.checkpointed)

    def append(self, log: Log) -> None:
        lsn = log.last_lsn + 1
        new = [struct.pack("<QQ", lsn + at, self.life) + bytes(self.rng.randrange(900)) for at in range(self.rng.randrange(1, 4))]
        self.model.appended.extend(new)
        log.append(join_records(new), len(new), self.life)

    def check(self, log: Log) -> None:
        """Whatever the log still has is what was appended."""
        lsn = log.oldest_lsn
        assert lsn <= self.model.checkpointed + 1
        for batch in read_batches(ANYWHERE, None, log.last_lsn, disk=self.disk):
            for found in split_records(batch.body):
                assert bytes(found) == self.model.appended[lsn - 1], f"record {lsn}"
                lsn += 1
        assert lsn == log.last_lsn + 1


def lives(seed: int, crash_at: int) -> Counter[str]:
    world = World(random.Random(seed))
    world.live(crash_at)
    for _ in range(3):
        world.live(world.rng.randrange(0, 60))
    world.live(None)
    return world.seen


def test_a_crash_before_any_operation_loses_nothing_acknowledged_and_resurrects_nothing() -> None:
    seen: Counter[str] = Counter()
    for seed in range(20 if LONG else 3):
        for crash_at in range(0, 160, 1 if LONG else 2):
            seen += lives(seed, crash_at)
    print("crashed before:", dict(seen))
    assert set(seen) >= {"write", "flush", "rename", "flush_directory", "allocate", "create", "whole lives"}


@pytest.mark.parametrize("seed", range(2000 if LONG else 60))
def test_random_lives_agree_with_the_model(seed: int) -> None:
    rng = random.Random(seed * 7 + 1)
    world = World(rng)
    for _ in range(8):
        world.live(rng.choice((None, rng.randrange(0, 40), rng.randrange(0, 300))))
    world.live(None)


def test_two_opens_in_a_row_may_be_stopped_anywhere() -> None:
    """Killed in the first, so that what it wrote is in the page cache alone; without power in the second."""
    step = 1 if LONG else 2
    for seed in range(12 if LONG else 3):
        for first in range(0, 40, step):
            for second in range(0, 40, step):
                rng = random.Random(seed)
                world = World(rng)
                world.live(rng.randrange(20, 60))
                world.live(first, is_kill=True)
                world.live(second, is_kill=False)
                world.live(None)


def test_crashes_while_opening_use_no_more_space_each_time() -> None:
    world = World(random.Random(5))
    world.live(None)
    sizes = []
    for _ in range(80):
        world.live(world.rng.randrange(0, 40), is_working=False)
        sizes.append(sum(len(inode.cached) for inode in world.disk.files.values()))
    assert max(sizes[20:]) <= max(sizes[:20])


def test_a_batch_that_was_dropped_never_comes_back() -> None:
    """The power goes with a batch half written; the next life writes another in its place; then both lie on the disk."""
    for seed in range(40):
        rng = random.Random(seed)
        world = World(rng)
        world.live(None)
        loop = FakeLoop()
        log = sim_log(world.disk, loop, SMALLEST, proven_lsn=world.model.checkpointed)
        world.model.reopened(log.last_lsn)
        world.append(log)
        flushed = world.disk.before

        def before(kind: str, name: str) -> None:
            if kind == "flush" and name.endswith(".seg"):
                raise Crash

        world.disk.before = before
        with pytest.raises(Crash):
            loop.run()
        log.abandon()
        world.disk.before = flushed
        world.disk = world.disk.crashed(rng)
        for _ in range(3):
            world.live(None)


def test_old_batches_of_a_recycled_file_are_not_read() -> None:
    """The salt, and the zeroes after each batch, tell them apart: nothing is torn, nothing extra is there."""
    disk, loop = SimDisk(), FakeLoop()
    log = sim_log(disk, loop)
    for _ in range(200):
        lsn = log.last_lsn + 1
        log.append(join_records([struct.pack("<Q", lsn) * 100]), 1, 1)
        loop.run()
        log.checkpointed(log.durable_lsn)
        loop.run()
        found = recover(ANYWHERE, proven_lsn=lsn, disk=disk)
        assert (found.last_lsn, found.torn, found.gaps) == (lsn, None, [])
    creations = [name for kind, name in disk.operations if kind == "create" and name == "next.fill"]
    assert log.metrics.segments_begun > 5 > len(creations), "files are recycled"
    log.abandon()


def test_an_old_batch_with_the_same_numbers_in_a_recycled_file_is_not_read() -> None:
    """Two uses of one file hold the same sequences, as when a backup is put back: only the salt differs."""
    images = []
    for _ in range(2):
        disk, loop = SimDisk(), FakeLoop()
        log = sim_log(disk, loop)
        for lsn in range(1, 4):
            log.append(join_records([struct.pack("<Q", lsn) * 100]), 1, 1)
            loop.run()
        log.abandon()
        images.append(disk)
    older, newer = (disk.files["0000000000000001.seg"] for disk in images)
    second = recover(ANYWHERE, disk=images[1]).unproven[-1]
    newer.cached[second.offset : second.end] = older.cached[second.offset : second.end]
    found = recover(ANYWHERE, disk=images[1])
    assert found.last_lsn == 2 and found.torn is not None and found.torn.first_lsn == 3
    assert SALTS.next > 2


def test_a_recycled_file_that_an_open_takes_has_no_torn_tail() -> None:
    disk, loop = SimDisk(), FakeLoop()
    log = sim_log(disk, loop)
    while log.metrics.segments_retired < 2:
        log.append(join_records([bytes(2000)]), 1, 1)
        loop.run()
        log.checkpointed(log.durable_lsn)
        loop.run()
    loop.advance(1)
    for _ in range(6):
        log.abandon()
        disk = disk.killed()
        log = sim_log(disk, loop, proven_lsn=log.last_lsn)
        found = recover(ANYWHERE, proven_lsn=log.last_lsn, disk=disk)
        assert found.torn is None and log.recovery.torn is None
    log.abandon()


def test_a_spare_mark_that_only_the_page_cache_has_is_made_durable_before_a_later_segment_goes() -> None:
    disk, loop = SimDisk(), FakeLoop()
    log = sim_log(disk, loop)
    while log.metrics.segments_begun < 4:
        log.append(join_records([bytes(2000)]), 1, 1)
        loop.run()
    last = log.durable_lsn
    oldest = recover(ANYWHERE, disk=disk).segments[0].name

    def before(kind: str, name: str) -> None:
        if (kind, name) == ("flush", oldest):
            raise Crash

    disk.before = before
    with pytest.raises(Crash):
        log.checkpointed(last)
    log.abandon()
    restarted_disk = disk.killed()
    restarted = sim_log(restarted_disk, loop, proven_lsn=last)
    restarted.checkpointed(last)
    loop.run()
    restarted.abandon()
    for seed in range(20):
        found = recover(ANYWHERE, proven_lsn=last, disk=copy.deepcopy(restarted_disk).crashed(random.Random(seed)))
        assert (found.last_lsn, found.gaps) == (last, [])
