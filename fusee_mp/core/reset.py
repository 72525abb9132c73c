# What a reset keeps of a journal.
#
# Rule 1: the journal is cut before the first record of the named step. What stands before is what a crash at that moment would have
#         left, so replaying it brings the code to the same point, and the step is run there as if for the first time.
# Rule 2: of what follows, only what came from outside is fed again, in its order: signals, and the outcomes of children and
#         completions that the kept part asked for. What the code did after the cut it does anew.
# Rule 3: what was sent from the kept part is not sent again, and its children stay those that they are.
from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from msgspec import structs

from fusee_mp.core import records as r
from fusee_mp.errors import Rejected

NAMES_SHOWN: Final = 20
# Of the run that was, not of what its code did.
_NOT_KEPT: Final = (r.Done, r.Quarantined, r.Unquarantined, r.Paused)
_OF_STEPS: Final = (r.StepDone, r.Attempt, r.Heartbeat, r.Awaiting, r.Completed)


class Plan(NamedTuple):
    """kept: the new run's journal so far, beginning with the start. again: what is fed to it then. Both as the old run has them."""

    kept: Sequence[r.RunRecord]
    again: Sequence[r.RunRecord]

    @property
    def children(self) -> set[tuple[int, str]]:
        """The children of the kept part, by the run and the operation that started them."""
        found = {(record.by, record.op) for record in self.kept if isinstance(record, r.Inherited)}
        return found | {origin_of(record) for record in self.kept if isinstance(record, r.Child)}

    @property
    def unanswered(self) -> set[str]:
        """The operations of children whose outcome is not known."""
        asked = {record.op for record in self.kept if isinstance(record, r.Child)}
        return asked - {record.op for record in (*self.kept, *self.again) if isinstance(record, r.ChildDone)}


def plan(records: Sequence[r.RunRecord], step: str, occurrence: int = 1, running: Sequence[tuple[str, str]] = ()) -> Plan:
    """Cut a journal before the `occurrence`-th step of this name. running: steps (operation, name) that may have no record yet.

    Raises Rejected, naming the steps there are, when there is none such.
    """
    cut = _cut(records, step, occurrence, running)
    kept = [record for record in records[:cut] if not isinstance(record, _NOT_KEPT)]
    return Plan(kept, _again(kept, records[cut:]))


def _cut(records: Sequence[r.RunRecord], step: str, occurrence: int, running: Sequence[tuple[str, str]]) -> int:
    begun: dict[str, tuple[str, int]] = {}
    for position, record in enumerate(records):
        if isinstance(record, _OF_STEPS):
            begun.setdefault(record.op, (record.name, position))
    for op, name in running:
        begun.setdefault(op, (name, len(records)))
    found = [position for name, position in begun.values() if name == step]
    if not 1 <= occurrence <= len(found):
        raise _no_such_step(records, step, occurrence, len(found), [name for name, _ in begun.values()])
    return found[occurrence - 1]


def _no_such_step(records: Sequence[r.RunRecord], step: str, occurrence: int, found: int, names: list[str]) -> Rejected:
    start = records[0]
    id = start.id if isinstance(start, r.Start) else ""
    different = list(dict.fromkeys(names))
    shown = ", ".join(f'"{name}"' for name in different[:NAMES_SHOWN]) or "none"
    more = f" and {len(different) - NAMES_SHOWN} more" if len(different) > NAMES_SHOWN else ""
    times = f'step "{step}" {found} time{"" if found == 1 else "s"}, not {occurrence}' if found else f'no step "{step}"'
    return Rejected(
        f'workflow "{id}" came to {times}: it cannot be reset there. Its steps are {shown}{more}', id=id, step=step, steps=different)


def _again(kept: Sequence[r.RunRecord], later: Sequence[r.RunRecord]) -> list[r.RunRecord]:
    asked = {record.op for record in kept if isinstance(record, (r.Child, r.Awaiting))}
    asked |= {f"{record.by}:{record.op}" for record in kept if isinstance(record, r.Inherited)}
    asked -= {record.op for record in kept if isinstance(record, (r.ChildDone, r.Completed))}
    again: list[r.RunRecord] = []
    for record in later:
        is_asked = isinstance(record, r.ChildDone) or isinstance(record, r.Completed) and record.status != "cancelled"
        if isinstance(record, r.Signal) or is_asked and record.op in asked:  # type: ignore[union-attr]
            again.append(record)
    return again


def origin_of(child: r.Child) -> tuple[int, str]:
    """The run and the operation that started a child."""
    return child.started_by or child.run, child.started_op or child.op


def moved(record: r.RunRecord, run: int) -> r.RunRecord:
    """A kept or repeated record as that of the new run. Nothing in it is sent again, and no message is taken twice."""
    if isinstance(record, r.Child):
        by, op = origin_of(record)
        return structs.replace(record, run=run, to=-1, no=0, started_by=by, started_op=op)
    if isinstance(record, r.Send):
        return structs.replace(record, run=run, to=-1, no=0)
    if isinstance(record, r.Awaiting):
        return structs.replace(record, run=run, sent=False)  # whoever has the token of the old run cannot use it
    if isinstance(record, (r.Signal, r.ChildDone, r.CancelRequested)):
        return structs.replace(record, run=run, source=None)
    return structs.replace(record, run=run)
