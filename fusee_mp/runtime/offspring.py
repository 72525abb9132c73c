# The children of a run, and those of the runs before it that it continues.
#
# A child knows its parent as an operation of a run. A run that continues another one of its ID (by continue_as_new, by a reset) has that
# one's children too: the operation and run that started a child stay its address, whoever it belongs to now.
# Rule 1: a child is told of its parent's end by the last run of the chain alone; every run before hands it on.
# Rule 2: code that asks for a child by the ID and workflow of one that was handed on, and not asked for yet, gets that one; none is
#         started. What it ended with meanwhile waits for that, and goes on to the next run of the chain if it is not asked for.
# Rule 3: all of it follows from records, in their order: Inherited, Child, ChildDone.
from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from fusee_mp.core import records as r


class Kin(NamedTuple):
    """One child. by, op: the run that started it, and its operation there."""

    id: str
    type: str
    close: r.ClosePolicy
    by: int
    op: str

    @property
    def key(self) -> str:
        """What stands for the operation in outcomes until the run has asked for the child."""
        return f"{self.by}:{self.op}"


class Offspring:
    """Of one run."""

    __slots__ = ("_claimed", "_recorded", "_results", "_run", "asked", "handed_on")

    def __init__(self, run: int) -> None:
        self._run = run
        self.asked: dict[str, Kin] = {}  # open, by this run's operation
        self.handed_on: dict[str, Kin] = {}  # not asked for yet, by key
        self._results: dict[str, r.ChildDone] = {}  # of these
        self._recorded: set[str] = set()  # operations and keys whose end is on record, and not fed yet
        self._claimed: dict[str, str] = {}  # by key the operation that asked

    def remember(self, record: r.Inherited | r.Child | r.ChildDone) -> None:
        """What a record says, when it is made and when the journal is read again."""
        if isinstance(record, r.Inherited):
            kin = Kin(record.id, record.type, record.close, record.by, record.op)
            self.handed_on[kin.key] = kin
        elif isinstance(record, r.ChildDone):
            self._recorded.add(record.op)
        else:
            kin = Kin(record.id, record.type, record.close, record.started_by or record.run, record.started_op or record.op)
            self.asked[record.op] = kin

    def ended(self, op: str) -> None:
        """The code has what became of this child."""
        self.asked.pop(op, None)

    def operation_of(self, parent: r.Parent) -> str | None:
        """Under which operation this run records what became of a child with this parent; None when it is not its child."""
        if parent.run == self._run:
            return parent.op
        key = f"{parent.run}:{parent.op}"
        if key in self.handed_on:
            return key
        return next((op for op, kin in self.asked.items() if kin.key == key), None)

    def claim(self, op: str, id: str, type: str) -> tuple[Kin, r.ChildDone | None] | None:
        """The code asks for a child: the one that was handed on, with its end if that was fed; None when there is none like it."""
        kin = next((kin for kin in self.handed_on.values() if kin.id == id and kin.type == type), None)
        if kin is None:
            return None
        del self.handed_on[kin.key]
        result = self._results.pop(kin.key, None)
        self._claimed[kin.key] = op
        return kin, result

    def fed(self, outcome: r.ChildDone) -> str | None:
        """The operation that waits for this outcome; None when the code has not asked for the child."""
        self._recorded.discard(outcome.op)
        if outcome.op in self.handed_on:
            self._results[outcome.op] = outcome
            return None
        op = self._claimed.get(outcome.op, outcome.op)
        self.ended(op)
        return op

    def open(self) -> Iterator[Kin]:
        """Those whose end is not known."""
        over = self._recorded | self._results.keys()
        yield from (kin for op, kin in self.asked.items() if op not in over and kin.key not in over)
        yield from (kin for key, kin in self.handed_on.items() if key not in over)

    def heirlooms(self, unfed: Iterable[r.Outcome]) -> Iterator[tuple[Kin, r.ChildDone | None]]:
        """What the next run of the chain takes over: each child with its end, if that has arrived."""
        arrived = {outcome.op: outcome for outcome in unfed if isinstance(outcome, r.ChildDone)}
        for op, kin in self.asked.items():
            yield kin, arrived.get(op) or arrived.get(kin.key)
        for key, kin in self.handed_on.items():
            yield kin, self._results.get(key) or arrived.get(key)
