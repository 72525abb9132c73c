"""Plain data of the public surface: a run's status, its detail, and the choices that are words."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, TypeAlias

Status: TypeAlias = Literal["running", "suspended", "parked", "paused", "quarantined", "ok", "failed", "cancelled", "terminated",
                            "timed_out", "reset", "continued_as_new"]
OnRunning: TypeAlias = Literal["fail", "use_existing", "terminate"]
OnFinished: TypeAlias = Literal["allow", "allow_if_failed", "refuse", "use_existing"]
Close: TypeAlias = Literal["terminate", "cancel", "abandon"]
Where: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """One run as it was when asked.

    number: rises within its shard, never repeats there. started, finished: aware, in UTC. attributes: for search, as last merged.
    reason: why it is cancelled, terminated, paused or quarantined. cursor: hand it to `list(after=..)` to go on after this run.
    """

    id: str
    number: int
    workflow: str
    status: Status
    is_open: bool
    shard: int
    started: datetime
    finished: datetime | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""
    cursor: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalRecord:
    """One record of a run's journal. kind: a word of the log format (start, step, timer, fired, signal, ..). seq: its place in the run,
    from 0. name: of the step, signal, child, .., or empty. at: when it was made, aware, in UTC. fields: the rest, by name."""

    kind: str
    lsn: int
    seq: int
    name: str
    at: datetime
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingStep:
    """A step without an outcome yet. attempt: counts from 1. next_attempt: when it is tried again, None while it runs. progress: what it
    last recorded by `heartbeat`. last_failure: of the attempt before, as type and message."""

    name: str
    attempt: int
    next_attempt: datetime | None = None
    progress: Any = None
    last_failure: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDetail(RunStatus):
    """A status with the journal behind it.

    failure: how it failed, as the tree that docs/errors.md describes. pending: of an open run, steps without an outcome of
    which something is recorded: an attempt that failed, a heartbeat. A first attempt leaves no record before it ends.
    """

    journal: Sequence[JournalRecord] = ()
    pending: Sequence[PendingStep] = ()
    failure: Mapping[str, Any] | None = None
