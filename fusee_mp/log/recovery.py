# What a log holds, and whether that is all of it.
#
# Each active segment is walked from its own header; then neighbours are compared. Batches are accepted in order while CRCs, salt and
# chain fit. Where the walk stops short there are two cases:
#
#   torn     the batch there was being written when the process or machine stopped. It was never acknowledged, and is dropped.
#   damage   something proves that it had been acknowledged: a later whole header in the file (a batch is written only after the
#            flush of the one before), the header of a later segment, the store, or a file shorter than it was made (files get their
#            full size before their first use, so no crash leaves a short one).
#
# A later segment wins over an earlier one that holds the same sequences: an open copies a batch that may not be durable to a new file,
# and makes that file's header whole only after the copy has been flushed.
#
# What is durable is judged more strictly: only a later batch in the same file proves it. The header of a segment that an open made says
# that the copies in it are durable, but it may itself be known to the page cache alone; then the copies cannot be found after a
# power cut, and they are copied once more.
#
# The limit of this: a disk that confirms a flush and then loses the last batch together with everything after it, the seal too,
# leaves what a torn write leaves. Only `proven_lsn` finds that.
#
# Nothing is changed here, and nothing is refused: the caller gets what was accepted and the gaps.
"""Reading a log after a stop: what is accepted, what was torn, what is missing."""
from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from fusee_mp.errors import DamagedLog
from fusee_mp.log.disk import Disk
from fusee_mp.log.format import BATCHES_OFFSET, SegmentHeader, State
from fusee_mp.log.options import Position, TornTail
from fusee_mp.log.segment import (
    Chain,
    File,
    Stop,
    StopKind,
    Stored,
    chain_after,
    chain_of,
    later_proof,
    numbers,
    opened,
    read_batch,
    read_header,
    segment_name,
    spare_name,
    spare_numbers,
)

UNKNOWN_LSN = 0
BEGINNING = Chain(sequence=1, first_lsn=1, parent=0, epoch=0)
NOWHERE = Position(0, BATCHES_OFFSET, 0)
TAKEN_OVER = Stop(StopKind.END, "the next segment takes over")


@dataclass(frozen=True)
class Gap:
    """Acknowledged bytes that are not there: the batch `sequence`, which begins at `first_lsn`, should be at `offset` of `file`."""

    file: str
    offset: int
    sequence: int
    first_lsn: int
    reason: str


@dataclass(frozen=True)
class SegmentFile:
    """An active segment and the LSNs it contributes, from `first_lsn` up to `end_lsn` (exclusive)."""

    number: int
    header: SegmentHeader
    end_lsn: int
    size: int

    @property
    def name(self) -> str:
        return segment_name(self.number)


@dataclass
class Recovered:
    """The log as it was found. `unproven` batches are whole, but nothing shows that they are durable.

    `superseded` segments (number, size) hold nothing that a later one does not; `marked` ones (number, name, size) are spares under
    a segment's name, `spares` (name, size) those under their own.
    """

    segments: list[SegmentFile] = field(default_factory=list)
    superseded: list[tuple[int, int]] = field(default_factory=list)
    marked: list[tuple[int, str, int]] = field(default_factory=list)
    spares: list[tuple[str, int]] = field(default_factory=list)
    unproven: list[Stored] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    torn: TornTail | None = None
    chain: Chain = BEGINNING
    position: Position = NOWHERE
    next_number: int = 1

    @property
    def last_lsn(self) -> int:
        return self.chain.first_lsn - 1

    @property
    def epoch(self) -> int:
        return self.chain.epoch


@dataclass
class _Walk:
    """One segment, walked as far as it goes or to the sequence where the next segment takes over."""

    number: int
    header: SegmentHeader
    chain: Chain
    offset: int = BATCHES_OFFSET
    durable: int = 0
    unproven: list[Stored] = field(default_factory=list)
    stop: Stop = TAKEN_OVER
    proof: str | None = None
    size: int = 0

    def accept(self, batch: Stored) -> None:
        self.chain = chain_after(batch.header)
        self.offset = batch.end
        self.durable = max(self.durable, batch.header.acked)
        self.unproven = [earlier for earlier in (*self.unproven, batch) if earlier.header.sequence > self.durable]


def recover(directory: Path, *, proven_lsn: int = 0, disk: Disk | None = None) -> Recovered:
    """Read the whole log of a directory and change nothing. `proven_lsn`: records up to there are known to have been durable.

    Raises OSError where the disk does.
    """
    disk = disk or Disk(str(directory))
    found = Recovered()
    active = _classify(disk, found)
    walks = _walk_all(disk, active)
    _link(walks, found)
    if walks:
        _judge_tail(walks[-1], proven_lsn, found)
    _compare_with_store(found, proven_lsn)
    found.gaps = [_located(gap, found, proven_lsn) for gap in found.gaps]
    return found


def _classify(disk: Disk, found: Recovered) -> list[tuple[int, SegmentHeader]]:
    """The active segments that count, oldest first; spares, superseded ones and nameless ones go to `found`."""
    names = disk.names()
    segments, spares = numbers(names), spare_numbers(names)
    found.next_number = max([0, *segments, *spares]) + 1
    active: list[tuple[int, SegmentHeader]] = []
    for number in segments:
        with opened(disk, segment_name(number)) as file:
            header = read_header(file, number)
            if isinstance(header, str):
                found.gaps.append(Gap(file.name, 0, 0, UNKNOWN_LSN, header))
            elif header.state == State.SPARE:
                found.marked.append((number, file.name, file.size))
            else:
                active.append((number, header))
    for number in spares:
        with opened(disk, spare_name(number)) as file:
            found.spares.append((file.name, file.size))
    return _without_superseded(active, found)


def _without_superseded(active: list[tuple[int, SegmentHeader]], found: Recovered) -> list[tuple[int, SegmentHeader]]:
    kept: list[tuple[int, SegmentHeader]] = []
    for number, header in reversed(active):
        if kept and header.first_sequence >= kept[-1][1].first_sequence:
            found.superseded.append((number, header.segment_bytes))
        else:
            kept.append((number, header))
    return kept[::-1]


def _walk_all(disk: Disk, active: list[tuple[int, SegmentHeader]]) -> list[_Walk]:
    walks: list[_Walk] = []
    for at, (number, header) in enumerate(active):
        limit = active[at + 1][1].first_sequence if at + 1 < len(active) else None
        with opened(disk, segment_name(number)) as file:
            walks.append(_walk(file, number, header, limit))
    return walks


def _walk(file: File, number: int, header: SegmentHeader, limit: int | None) -> _Walk:
    walk = _Walk(number, header, chain_of(header), size=file.size)
    while limit is None or walk.chain.sequence < limit:
        batch = read_batch(file, header, walk.offset, walk.chain)
        if isinstance(batch, Stop):
            walk.stop = batch
            walk.proof = _proof_in_file(file, walk) if limit is None else None
            break
        walk.accept(batch)
    return walk


def _proof_in_file(file: File, walk: _Walk) -> str | None:
    """What in the file itself shows that more had been acknowledged than the walk found."""
    if walk.stop.kind is StopKind.FOREIGN:
        return "no crash leaves that"
    if file.size < walk.header.segment_bytes:
        return f"the file has {file.size} of its {walk.header.segment_bytes} bytes, and no crash shortens it"
    if walk.header.acked >= walk.chain.sequence:
        return "the segment header proves that it was acknowledged"
    if later := later_proof(file, walk.header, walk.offset, walk.chain.sequence):
        return f"batch {later.sequence} later in the file proves that it was acknowledged"
    return None


def _link(walks: list[_Walk], found: Recovered) -> None:
    """Compare each walk with the header of the segment after it, and note what is missing between them."""
    for walk, after in pairwise(walks):
        expected = chain_of(after.header)
        if walk.chain.sequence != expected.sequence:
            reason = f"{walk.stop.reason}; segment {after.number} begins after it and proves that it was acknowledged"
            found.gaps.append(Gap(segment_name(walk.number), walk.offset, walk.chain.sequence, walk.chain.first_lsn, reason))
        elif walk.chain[1:3] != expected[1:3]:
            reason = f"segment {after.number} does not continue segment {walk.number}: a file was exchanged"
            found.gaps.append(Gap(segment_name(after.number), 0, expected.sequence, expected.first_lsn, reason))
    found.segments = [SegmentFile(walk.number, walk.header, walk.chain.first_lsn, walk.size) for walk in walks]


def _judge_tail(walk: _Walk, proven_lsn: int, found: Recovered) -> None:
    found.chain = walk.chain
    found.position = Position(walk.number, walk.offset, walk.chain.first_lsn - 1)
    found.unproven = [batch for batch in walk.unproven if batch.header.last_lsn > proven_lsn or not batch.header.records]
    while found.unproven and not found.unproven[-1].header.records:
        # A seal that may not be durable is forgotten, or the next header would claim that it is.
        found.chain = _before(found.unproven.pop())
    file, chain, reason = segment_name(walk.number), walk.chain, walk.stop.reason
    if walk.proof is not None:
        found.gaps.append(Gap(file, walk.offset, chain.sequence, chain.first_lsn, f"{reason}; {walk.proof}"))
    elif proven_lsn >= chain.first_lsn:
        reason = f"{reason}; the store holds records up to LSN {proven_lsn}"
        found.gaps.append(Gap(file, walk.offset, chain.sequence, chain.first_lsn, reason))
    elif walk.stop.kind is StopKind.TORN:
        found.torn = TornTail(chain.sequence, chain.first_lsn, file, walk.offset, reason)


def _before(batch: Stored) -> Chain:
    return Chain(batch.header.sequence, batch.header.first_lsn, batch.header.parent, batch.header.epoch)


def _compare_with_store(found: Recovered, proven_lsn: int) -> None:
    if not found.segments:
        if proven_lsn and not found.gaps:
            found.gaps.append(Gap("(no segment)", 0, 1, 1, f"the store holds records up to LSN {proven_lsn}, and there is no log"))
        return
    oldest = found.segments[0]
    if oldest.header.first_lsn > proven_lsn + 1:
        reason = f"the oldest segment begins at LSN {oldest.header.first_lsn}, and the store ends at {proven_lsn}"
        found.gaps.append(Gap(oldest.name, 0, 0, proven_lsn + 1, reason))


def _located(gap: Gap, found: Recovered, proven_lsn: int) -> Gap:
    """A file without a whole header holds, at the least, what follows the segment before it."""
    if gap.first_lsn != UNKNOWN_LSN:
        return gap
    before = [segment.end_lsn for segment in found.segments if segment.name < gap.file]
    return replace(gap, first_lsn=max(before, default=proven_lsn + 1))


def damage(directory: Path, gaps: list[Gap]) -> DamagedLog:
    """The refusal to open a log with gaps."""
    gap = gaps[0]
    more = f" and {len(gaps) - 1} more places" if len(gaps) > 1 else ""
    return DamagedLog(
        f"log file {directory}/{gap.file} is damaged at offset {gap.offset}{more}: the batch that begins at LSN {gap.first_lsn} "
        f"(sequence {gap.sequence}) should be there: {gap.reason}. Nothing was changed. "
        "Restore the directory from a backup, or put back the file from a copy.",
        file=str(Path(directory) / gap.file), offset=gap.offset, lsn=gap.first_lsn, sequence=gap.sequence,
    )
