"""How an engine keeps a directory. Every default is meant to be right; each field says when it is not."""
from __future__ import annotations

from dataclasses import dataclass, field
from os import PathLike
from typing import Any, Final, Literal, TypeAlias

from fusee_mp import bounds
from fusee_mp.duration import Duration, to_ms, to_ms_or_none
from fusee_mp.errors import Rejected
from fusee_mp.payload.sealing import PayloadCodec, Payloads

Flush: TypeAlias = Literal["auto", "inline", "helper"]
# Collections of a large heap and loads of a busy machine take some tenths of a second.
TURN_MS_MIN: Final = 100
OnExhausted: TypeAlias = Literal["fail", "pause"]


@dataclass(frozen=True, kw_only=True)
class Config:
    """Raises Rejected when it is made with a value that cannot work.

    dir: the data directory; made when missing.
    shards: how many logs; fixed when the directory is made. None is what the directory has, 1 for a new one.
    flush: who calls fdatasync. "auto" begins with the helper process and goes inline while the disk is fast.
    segment_bytes: size of one log file, zero-filled ahead. Larger ones make recovery read more, smaller ones switch more often.
    park_after: a quiet run leaves memory after this long without a record. None never parks.
    memory_budget: bytes of loaded runs, estimated, over all shards; above it quiet runs are parked at once. None is no budget.
    retention: how long finished runs are kept. None keeps them for ever.
    archive_history: journals of runs whose retention ended move to the archive in place of being deleted.
    keep_history: journals of finished runs are kept until retention. False keeps only status and result.
    checkpoint_interval: the longest time between two commits that let log segments be recycled.
    checkpoint_on_shutdown: one more at close, so that the next start has nothing to fold. False closes at once.
    on_exhausted: what a step that runs out of attempts does to its run, unless the workflow says otherwise.
    codec: seals every payload (`AesGcm`). None writes them in clear.
    payload_offload_bytes: payloads above this are stored in files apart from the log, and go with their run. None keeps all in it.
    payload_bytes_max: larger payloads are refused at the sender, before they are sealed.
    turn_timeout: workflow code that runs for so long without waiting is named in the log, interrupted and quarantined.
    """

    dir: str | PathLike[str]
    shards: int | None = None
    flush: Flush = "auto"
    segment_bytes: int = bounds.SEGMENT_BYTES_DEFAULT
    park_after: Duration | None = "10s"
    memory_budget: int | None = None
    retention: Duration | None = None
    archive_history: bool = False
    keep_history: bool = True
    checkpoint_interval: Duration = "30s"
    checkpoint_on_shutdown: bool = True
    on_exhausted: OnExhausted = "fail"
    codec: PayloadCodec | None = None
    payload_offload_bytes: int | None = None
    payload_bytes_max: int = bounds.PAYLOAD_BYTES_MAX
    turn_timeout: Duration = "2s"
    payloads: Payloads = field(init=False, repr=False, compare=False)
    park_after_ms: int | None = field(init=False, repr=False, compare=False)
    retention_ms: int | None = field(init=False, repr=False, compare=False)
    checkpoint_interval_ms: int = field(init=False, repr=False, compare=False)
    turn_timeout_ms: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _within("shards", self.shards, 1, bounds.SHARDS_MAX, optional=True)
        _within("segment_bytes", self.segment_bytes, bounds.SEGMENT_BYTES_MIN, 1 << 40)
        _within("memory_budget", self.memory_budget, 1, 1 << 50, optional=True)
        _within("payload_offload_bytes", self.payload_offload_bytes, 1, bounds.PAYLOAD_BYTES_MAX, optional=True)
        _within("payload_bytes_max", self.payload_bytes_max, 1, bounds.PAYLOAD_BYTES_MAX)
        _one_of("flush", self.flush, ("auto", "inline", "helper"))
        _one_of("on_exhausted", self.on_exhausted, ("fail", "pause"))
        if self.archive_history and not self.keep_history:
            said = "Config archive_history: there is nothing to archive without keep_history. Set one of the two."
            raise Rejected(said, option="archive_history")
        if not isinstance(self.dir, (str, PathLike)) or not self.dir:
            raise Rejected(f"Config dir: expected a path, found {self.dir!r:.80}. Name the data directory.", option="dir")
        object.__setattr__(self, "payloads", Payloads(self.codec, self.payload_bytes_max))
        object.__setattr__(self, "park_after_ms", to_ms_or_none(self.park_after, "Config park_after"))
        object.__setattr__(self, "retention_ms", to_ms_or_none(self.retention, "Config retention"))
        object.__setattr__(self, "checkpoint_interval_ms", to_ms(self.checkpoint_interval, "Config checkpoint_interval"))
        object.__setattr__(self, "turn_timeout_ms", turn_timeout_ms(self.turn_timeout, "Config turn_timeout"))


def turn_timeout_ms(found: Duration, option: str) -> int:
    """Raises Rejected for one that would strike at code that only computes."""
    ms = to_ms(found, option)
    if ms < TURN_MS_MIN:
        said = f"{option}: expected at least {TURN_MS_MIN} ms, found {found!r:.80}. Workflow code may compute between two waits."
        raise Rejected(said, option=option)
    return ms


def _within(option: str, found: Any, first: int, last: int, optional: bool = False) -> None:
    if optional and found is None:
        return
    if not isinstance(found, int) or isinstance(found, bool) or not first <= found <= last:
        expected = f"a whole number from {first:,} to {last:,}{', or None' if optional else ''}"
        raise Rejected(f"Config {option}: expected {expected}, found {found!r:.80}. Give {option}= a value in that range.", option=option)


def _one_of(option: str, found: Any, choices: tuple[str, ...]) -> None:
    if found not in choices:
        expected = " or ".join(f'"{choice}"' for choice in choices)
        raise Rejected(f"Config {option}: expected {expected}, found {found!r:.80}. Use one of them.", option=option)
