"""What a workflow ID stands for: a run in memory, what the store has of it, nothing, or why that could not be found out."""
from __future__ import annotations

from typing import TypeAlias

from fusee_mp.errors import FuseeError, NotFound, Rejected
from fusee_mp.runtime.home import Found
from fusee_mp.runtime.run import Run

Entry: TypeAlias = "Run | Found | FuseeError | None"


def lsn_of(entry: Run | Found) -> int:
    """What an answer about it rests on."""
    return entry.gate if isinstance(entry, Run) else 0


def is_open(entry: Run | Found) -> bool:
    return not entry.is_over if isinstance(entry, Run) else entry.is_open


def number_of(entry: Run | Found) -> int:
    return entry.number if isinstance(entry, Run) else entry.run


def status_of(entry: Run | Found) -> str:
    if isinstance(entry, Found):
        return entry.status
    if entry.outcome is not None:
        return entry.outcome.status
    if entry.is_paused:
        return "paused"
    return "suspended" if entry.quiet else "running"


def payload_of(entry: Run | Found) -> bytes:
    """What it ended with."""
    if isinstance(entry, Found):
        return entry.payload
    return entry.outcome.payload if entry.outcome is not None else b""


def too_late(entry: Run | Found) -> Rejected:
    status = status_of(entry)
    return Rejected(f'workflow "{entry.id}" has ended as {status}: nothing can be sent to it', id=entry.id, status=status)


def missing(id: str) -> NotFound:
    return NotFound(f'no run has the workflow ID "{id}": it was never started, or its retention has ended', id=id)
