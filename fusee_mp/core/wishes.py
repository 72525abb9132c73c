"""The messages that schedules and windows send: made where they are sent from, and again, equal, where the log is folded."""
from __future__ import annotations

from collections.abc import Sequence

from fusee_mp.core import records as r
from fusee_mp.core import sealed_list
from fusee_mp.core.schedule import run_id


def begin_of(id: str, type: str, input: bytes, zone: str, at: int, begin: r.Begin) -> r.StartAsked:
    """A schedule starts a run."""
    return r.StartAsked(at, begin.to, begin.no, run_id(id, begin.instant), type, input, begin.instant, zone)


def end_of(id: str, at: int, end: r.End) -> r.Send:
    """A schedule asks a run of its own to end, and no other of the same ID."""
    reason = f'the next run of schedule "{id}" is due'.encode()
    return r.Send(0, at, "", end.to, end.no, end.kind, run_id(id, end.instant), payload=reason, child=str(end.instant))


def close_of(kind: str, type: str, inputs: Sequence[bytes], at: int, closing: r.Closing) -> r.StartAsked:
    """A window starts its run: with its last input, or with a list of all of them."""
    input = inputs[-1] if kind == "debounce" else sealed_list.pack(inputs)
    return r.StartAsked(at, closing.to, closing.no, closing.window, type, input)
