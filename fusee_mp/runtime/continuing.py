# Continuing as new: a run ends, and a fresh one of the same ID goes on in its place.
#
# Rule 1: the end and the new start, with everything handed on, are recorded together: a crash leaves all of it or nothing.
# Rule 2: nothing is lost between the two. Signals that the code did not take, a cancel that it has not seen, updates that were not
#         accepted and questions go to the new run, in their order; so do children, attributes, the deadline, the parent, the IDs of
#         updates that were carried out, and whoever waits for the result.
# Rule 3: the new run has its first turn when its start is durable, so a chain goes no faster than the disk.
from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, NoReturn

import msgspec

from fusee_mp.bounds import TOGETHER_BYTES_MAX, UPDATE_IDS_HANDED_ON_BYTES, UPDATE_IDS_HANDED_ON_MAX
from fusee_mp.core import records as r
from fusee_mp.errors import Rejected
from fusee_mp.payload.failure import encode_failure
from fusee_mp.runtime.steps import UNSET

if TYPE_CHECKING:
    from fusee_mp.runtime.offspring import Kin
    from fusee_mp.runtime.run import Run

# Of a record without its payloads.
_ROOM = 64 * 1024


class ContinueAsNew(BaseException):
    """On its way out of the workflow's code. `except Exception` does not meet it."""

    def __init__(self, type: str, input: bytes) -> None:
        super().__init__(f'the run continues as new as workflow "{type}"')
        self.type = type
        self.input = input


def ask_to_continue(run: Run, type: str, input: bytes) -> NoReturn:
    """Leave the code. Raises Rejected in an update's handler, which would end without an answer."""
    run.check_open()
    path = getattr(asyncio.current_task(run.loop), "path", "")
    if path.startswith("u"):
        raise Rejected("ctx.continue_as_new was called by an update's handler, whose caller waits for an answer. Let the handler change"
                       " state, and the workflow's main function wait for that with ctx.wait_until and continue", id=run.id)
    raise ContinueAsNew(type, input)


def wish_in(error: BaseException) -> ContinueAsNew | None:
    """The wish to continue with which the code ended, also out of a task group."""
    if isinstance(error, BaseExceptionGroup):
        return next((wish for inner in error.exceptions if (wish := wish_in(inner)) is not None), None)
    return error if isinstance(error, ContinueAsNew) else None


def continue_as_new(run: Run, wish: ContinueAsNew) -> None:
    """Record the end and the start of the run that goes on."""
    unseen = run.journal.unfed + [outcome for outcome, _ in run.fresh]
    signals = [(name, payload) for name, payload in run.signals.untaken()]
    signals += [(outcome.name, outcome.payload) for outcome in unseen if isinstance(outcome, r.Signal)]
    kin = [] if run.offspring is None else list(run.offspring.heirlooms(unseen))
    start = _start(run, wish)
    start.carried = len(signals) + sum(result is not None for _, result in kin)
    size = _size(start, signals, kin)
    if size > TOGETHER_BYTES_MAX:
        run.finish("failed", encode_failure(_too_large(run, size)))
        return
    shard = run.shard
    with shard.together():
        run.hands_on = True
        run.finish("continued_as_new", b"")
        heir = shard.calls.new_run(start, awake=False)
        for child, result in kin:
            _hand_on_child(heir, child, result)
        for name, payload in signals:
            _hand_on(heir, r.Signal(heir.number, heir.tick(), name, payload))
        for outcome in unseen:
            if isinstance(outcome, r.CancelRequested):
                _hand_on(heir, r.CancelRequested(heir.number, heir.tick(), outcome.reason))
    shard.hold(heir.gate, shard.wake, heir)


def _start(run: Run, wish: ContinueAsNew) -> r.Start:
    old = run.journal.start
    return r.Start(
        0, run.tick(), run.id, wish.type, wish.input, deadline=old.deadline, attributes=_merged(old.attributes, run.attributes),
        parent=old.parent, close=old.close, origin=run.number, scheduled_at=old.scheduled_at, zone=old.zone,
        answered=_answered(run),
    )


def _answered(run: Run) -> list[tuple[str, int]]:
    """The newest updates of the chain that callers may repeat, as many as are handed on."""
    found = list(run.journal.start.answered)
    if run.handlers is not None:
        found += [(id, run.number) for id in run.handlers.named]
    kept, size = 0, 0
    for id, _ in reversed(found[-UPDATE_IDS_HANDED_ON_MAX:]):
        size += len(id.encode())
        if size > UPDATE_IDS_HANDED_ON_BYTES:
            break
        kept += 1
    return found[len(found) - kept:]


def _merged(first: bytes | None, later: Iterable[bytes]) -> bytes | None:
    merged = [values for values in (first, *later) if values is not None]
    if len(merged) < 2:
        return merged[0] if merged else None
    found: dict[str, object] = {}
    for values in merged:
        found |= msgspec.json.decode(values)
    return msgspec.json.encode(found)


def _size(start: r.Start, signals: list[tuple[str, bytes]], kin: list[tuple[Kin, r.ChildDone | None]]) -> int:
    size = _ROOM + len(start.input) + len(start.attributes or b"") + sum(16 + 4 * len(id) for id, _ in start.answered)
    size += sum(64 + 4 * len(name) + len(payload) for name, payload in signals)
    return size + sum(256 + 4 * len(child.id) + 4 * len(child.type) + (len(result.payload) if result else 0) for child, result in kin)


def _too_large(run: Run, size: int) -> Rejected:
    return Rejected(
        f'workflow "{run.id}" cannot continue as new: its input, the signals that it has not taken and the results of children that it has'
        f" not asked for come to {size:,} bytes, of which {TOGETHER_BYTES_MAX:,} can be handed on. Take signals before continuing",
        id=run.id,
    )


def _hand_on(heir: Run, outcome: r.Outcome) -> None:
    heir.record(outcome)
    heir.fresh.append((outcome, UNSET))


def _hand_on_child(heir: Run, child: Kin, result: r.ChildDone | None) -> None:
    inherited = r.Inherited(heir.number, heir.tick(), child.id, child.type, child.close, child.by, child.op)
    heir.record(inherited)
    heir.with_offspring().remember(inherited)
    if result is not None:
        _hand_on(heir, r.ChildDone(heir.number, heir.tick(), child.key, result.status, result.payload))
