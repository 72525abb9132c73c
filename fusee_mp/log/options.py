"""How a log is set up, and what it says about itself."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fusee_mp import bounds
from fusee_mp.errors import Rejected
from fusee_mp.log.format import BATCHES_OFFSET, COPY_OFFSETS, HEADER_BYTES, batch_bytes


@dataclass(frozen=True)
class LogOptions:
    """Sizes and habits of one log; those that contradict each other raise Rejected.

    `flush`: where flushes run; "auto" uses the helper process until the disk has shown to be fast. `reserve_bytes`: disk space kept
    for finishing running work. `append_bytes_max` and `batch_bytes_max` are the largest append and the largest batch.
    `awake_processes`: how many processes stay awake for a single record's flush, this one included. A helper stays awake with them
    where a processor is left for it. `emulated_flush_ms` makes each flush slower (for tests).
    """

    segment_bytes: int = bounds.SEGMENT_BYTES_DEFAULT
    block_bytes: int = bounds.LOG_BLOCK_BYTES
    flush: Literal["auto", "inline", "helper"] = "auto"
    reserve_bytes: int = bounds.LOG_RESERVE_BYTES_DEFAULT
    seal_after_ms: float = bounds.LOG_SEAL_AFTER_MS
    awake_processes: int = 1
    emulated_flush_ms: float = 0
    append_bytes_max: int = bounds.FRAME_BYTES_MAX
    batch_bytes_max: int = bounds.BATCH_BYTES_MAX
    starter_bytes: int = bounds.LOG_STARTER_BYTES

    def __post_init__(self) -> None:
        block = self.block_bytes
        is_block = block & (block - 1) == 0 and HEADER_BYTES <= block <= COPY_OFFSETS[1]
        self._require(is_block, "block_bytes must be a power of two, 512 to 4096")
        self._require(self.segment_bytes % block == 0 and self.starter_bytes % block == 0, "segments must be whole blocks")
        self._require(0 < self.append_bytes_max <= self.batch_bytes_max, "batch_bytes_max must hold an append of append_bytes_max")
        self._require(
            BATCHES_OFFSET + batch_bytes(self.batch_bytes_max, block) <= self.segment_bytes,
            f"segment_bytes must hold a batch of batch_bytes_max with its header, and {BATCHES_OFFSET} bytes",
        )
        self._require(self.starter_bytes >= BATCHES_OFFSET + block, f"starter_bytes must be over {BATCHES_OFFSET}")
        self._require(self.flush in ("auto", "inline", "helper"), 'flush must be "auto", "inline" or "helper"')

    def _require(self, holds: bool, rule: str) -> None:
        if not holds:
            raise Rejected(f"log options do not fit each other: {rule}; found {self}")


@dataclass(frozen=True)
class Position:
    """Where the next batch after `lsn` begins."""

    segment: int
    offset: int
    lsn: int


@dataclass(frozen=True)
class TornTail:
    """A last batch that never became durable, hence was never acknowledged, and was dropped."""

    sequence: int
    first_lsn: int
    file: str
    offset: int
    reason: str


@dataclass(frozen=True)
class Recovery:
    """What an open found. `copied_batches` were whole but not proven durable, and were written and flushed again."""

    last_lsn: int
    epoch: int
    torn: TornTail | None
    copied_batches: int
    position: Position
