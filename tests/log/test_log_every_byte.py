"""Every byte of the last two batches and of the segment headers, cut and flipped: what opens, what is dropped, what is refused.

Only an unsealed last batch may be dropped, and it is reported. Run with FUSEE_LONG=1 for each byte with each bit, and with -s for the
counts.
"""
from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from log_sim import ANYWHERE, SALTS, SMALL, FakeLoop, SimDisk, append, read_all, sim_log

from fusee_mp.errors import DamagedLog
from fusee_mp.log import Log, read_batches, recover
from fusee_mp.log.disk import Disk
from fusee_mp.log.format import COPY_OFFSETS, HEADER_BYTES

LONG = os.environ.get("FUSEE_LONG") == "1"
STRIDE = 1 if LONG else 5
BITS = range(8) if LONG else (None,)


@dataclass
class Image:
    """The files of a log after a stop, and where its last batches are: (file, offset, end, first LSN, sequence)."""

    files: dict[str, bytes]
    places: list[tuple[str, int, int, int, int]]
    last_lsn: int
    is_sealed: bool

    @property
    def segments(self) -> list[str]:
        return sorted({place[0] for place in self.places})


def image(*, is_sealed: bool, over_two_segments: bool) -> Image:
    disk, loop = SimDisk(), FakeLoop()
    log = sim_log(disk, loop)
    places = []
    while len(places) < 4 or over_two_segments != (places[-1][0] != places[-2][0]):
        before, sequence = log.durable_position, log._tail.chain.sequence
        append(log, 3)
        loop.run()
        offset = before.offset if before.segment == log.durable_position.segment else 8192
        places.append((log._tail.name, offset, log.durable_position.offset, before.lsn + 1, sequence))
    if is_sealed:
        loop.advance(1)
    log.abandon()
    return Image({name: bytes(inode.cached) for name, inode in disk.files.items()}, places[-2:], log.last_lsn, is_sealed)


def harms(image: Image) -> Iterator[tuple[str, str, int, dict[str, bytes]]]:
    """Each harm with its kind, file and offset, and the files as it leaves them."""
    for name, offset, end, *_ in image.places:
        for at in range(offset, end, STRIDE):
            yield "cut", name, at, image.files | {name: image.files[name][:at]}
            yield from _flips(image, name, at)
    for name in image.segments:
        for copy in COPY_OFFSETS:
            for at in range(copy, copy + HEADER_BYTES, STRIDE):
                yield from _flips(image, name, at)


def _flips(image: Image, name: str, at: int) -> Iterator[tuple[str, str, int, dict[str, bytes]]]:
    for bit in BITS:
        data = bytearray(image.files[name])
        data[at] ^= 1 << bit if bit is not None else 1 << at * 31 % 8
        yield "flip", name, at, image.files | {name: bytes(data)}


def verdict(image: Image, disk: Disk, kind: str, name: str, at: int) -> str:
    """Open the log and hold the outcome against what is allowed."""
    loop = FakeLoop()
    try:
        log = Log.open(ANYWHERE, SMALL, proven_lsn=0, loop=loop, clock=loop.clock, salt=SALTS, disk=disk)  # type: ignore[arg-type]
    except DamagedLog as error:
        assert name in error.message and f"offset {error.fields['offset']}" in error.message
        assert 0 < error.fields["lsn"] <= image.last_lsn + 1 and f"LSN {error.fields['lsn']}" in error.message
        return "refused"
    torn, last_lsn = log.recovery.torn, log.last_lsn
    read_all(disk, last_lsn)
    log.abandon()
    if last_lsn == image.last_lsn:
        return "whole"
    file, offset, end, first_lsn, sequence = image.places[-1]
    assert not image.is_sealed, f"{kind} at {name}:{at} dropped a sealed batch"
    assert last_lsn == first_lsn - 1 and file == name and offset <= at < end, f"{kind} at {name}:{at} dropped an acknowledged batch"
    assert torn is not None and (torn.sequence, torn.first_lsn, torn.file, torn.offset) == (sequence, first_lsn, name, offset)
    return "dropped"


SHAPES = [(sealed, over) for sealed in (False, True) for over in (False, True)]


@pytest.mark.parametrize("is_sealed, over_two_segments", SHAPES)
def test_only_an_unsealed_last_batch_is_ever_dropped(is_sealed: bool, over_two_segments: bool) -> None:
    original = image(is_sealed=is_sealed, over_two_segments=over_two_segments)
    counts: Counter[tuple[str, str]] = Counter()
    for kind, name, at, files in harms(original):
        counts[kind, verdict(original, disk_of(files), kind, name, at)] += 1
    print(f"{'sealed' if is_sealed else 'unsealed'}, {'two segments' if over_two_segments else 'one segment'}:", dict(counts))
    assert counts["flip", "refused"] and counts["flip", "whole"] and counts["cut", "refused"]
    assert bool(counts["flip", "dropped"]) != is_sealed


@pytest.mark.parametrize("is_sealed", [False, True])
def test_writes_that_never_reached_the_disk_cost_only_an_unsealed_last_batch(is_sealed: bool) -> None:
    """What was written last reads as zeroes from some byte on, as after a power cut."""
    original = image(is_sealed=is_sealed, over_two_segments=False)
    name, offset, end, *_ = original.places[-1]
    for at in range(offset, end, STRIDE):
        data = original.files[name]
        files = original.files | {name: data[:at] + bytes(end - at) + data[end:]}
        outcome = verdict(original, disk_of(files), "zero", name, at) if at > offset else verdict_of_absence(original, files)
        assert outcome == ("refused" if is_sealed else "dropped") or files == original.files or not any(data[at:end])


def verdict_of_absence(original: Image, files: dict[str, bytes]) -> str:
    """A batch of which nothing got to the disk leaves nothing to report."""
    disk = disk_of(files)
    found = recover(ANYWHERE, disk=disk)
    if found.gaps:
        return "refused"
    assert found.last_lsn == original.places[-1][3] - 1 and found.torn is None
    return "dropped"


def test_the_store_proves_what_the_log_alone_cannot() -> None:
    """Both last batches gone without a trace look like a log that never had them, except to the store."""
    original = image(is_sealed=False, over_two_segments=False)
    name, offset, _, first_lsn, _ = original.places[0]
    files = original.files | {name: original.files[name][:offset].ljust(len(original.files[name]), b"\0")}
    assert recover(ANYWHERE, disk=disk_of(files)).last_lsn == first_lsn - 1
    gaps = recover(ANYWHERE, disk=disk_of(files), proven_lsn=first_lsn).gaps
    assert [(gap.file, gap.offset, gap.first_lsn) for gap in gaps] == [(name, offset, first_lsn)]


def test_damage_in_real_files_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    original = image(is_sealed=False, over_two_segments=True)
    for number, (kind, name, at, files) in enumerate(harms(original)):
        if number % 97:
            continue
        directory = tmp_path / str(number)
        directory.mkdir()
        for file, data in files.items():
            (directory / file).write_bytes(data)
        if verdict(original, Disk(str(directory)), kind, name, at) == "refused":
            assert {path.name: path.read_bytes() for path in directory.iterdir()} == files


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_segment_that_is_missing_is_damage_unless_it_is_the_newest(lost: int) -> None:
    disk, loop = SimDisk(), FakeLoop()
    log = sim_log(disk, loop)
    while log.metrics.segments_begun < 3:
        append(log, 3)
        loop.run()
    log.abandon()
    segments = recover(ANYWHERE, disk=disk).segments
    del disk.files[segments[lost].name]
    with pytest.raises(DamagedLog) as refused:
        sim_log(disk, loop)
    assert refused.value.fields["lsn"] == segments[lost].header.first_lsn


def test_a_segment_under_another_number_is_refused() -> None:
    original = image(is_sealed=True, over_two_segments=True)
    older, newer = original.segments
    renamed = {newer if file == older else file: data for file, data in original.files.items() if file != newer}
    gaps = recover(ANYWHERE, disk=disk_of(renamed)).gaps
    assert any("header is that of segment" in gap.reason for gap in gaps)


def test_a_segment_of_another_log_is_refused() -> None:
    ours, theirs = image(is_sealed=True, over_two_segments=True), image_of_other_records()
    name = ours.segments[-1]
    gaps = recover(ANYWHERE, disk=disk_of(ours.files | {name: theirs.files[name]})).gaps
    assert [gap.file for gap in gaps] == [name] and "a file was exchanged" in gaps[0].reason


def image_of_other_records() -> Image:
    disk, loop = SimDisk(), FakeLoop()
    log = sim_log(disk, loop)
    while log.metrics.segments_begun < 1:
        append(log, 3, epoch=2)
        loop.run()
    log.abandon()
    return Image({name: bytes(inode.cached) for name, inode in disk.files.items()}, [], log.last_lsn, False)


def test_a_reader_refuses_what_was_durable_and_is_not_whole() -> None:
    original = image(is_sealed=False, over_two_segments=False)
    name, offset, _, first_lsn, _ = original.places[-1]
    data = bytearray(original.files[name])
    data[offset + 100] ^= 1
    disk = disk_of(original.files | {name: bytes(data)})
    read = read_batches(ANYWHERE, None, original.last_lsn, disk=disk)
    with pytest.raises(DamagedLog, match=f"{name} should have the batch with LSN {first_lsn} at offset {offset}"):
        list(read)


def disk_of(files: dict[str, bytes]) -> SimDisk:
    disk = SimDisk()
    for name, data in files.items():
        disk.write_at(disk.open(name, create=True), data, 0)
    for fd in list(disk._fds):
        disk.close(fd)
    return disk
