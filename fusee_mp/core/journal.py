# One run's journal: what was recorded, what the code may ask, and what is fed to it next.
#
# The guarantee: code that asks for the same operations gets the same outcomes in the same order, live and in replay.
# Rule 1: an operation's identity is the path of the task that asks and its count within that task, with its kind and name.
# Rule 2: outcomes are fed in journal order, one at a time, each only when the code can make no further progress.
# Rule 3: what the code asks for (but a step) is recorded when it asks, in the order of asking. So while the journal knows operations
#         that the code has not come to yet, one of a recorded kind that it lacks is a mismatch, at once. Once the code has come to
#         all of them, the crash may have cut the record off, and it is made now: outcomes that had arrived may still follow.
# Rule 4: an operation that the journal knows was asked for by the time of its last outcome. What the code has not come to by then,
#         or by its end, is a mismatch.
from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Generic, TypeAlias, TypeVar

from fusee_mp.core import records as r
from fusee_mp.errors import NonDeterminismError

H = TypeVar("H")
Asked: TypeAlias = r.Timer | r.Child | r.Send | r.Attributes | r.UpdateDone | r.Awaiting


class Journal(Generic[H]):
    """The machine. `H` is whatever the host keeps for an open operation, usually the future that waits for its outcome."""

    __slots__ = (
        "start", "size", "now", "latest", "open", "closed", "_known", "_unclaimed", "_unknown", "_asked", "_pending", "_attempts", "fed",
        "replaying", "unfed_updates", "_progress", "_used_up", "_patches",
    )

    def __init__(self, start: r.Start) -> None:
        self.start = start
        self.size = 1
        self.now = start.at  # of the last outcome that was fed: the code's time
        self.latest = start.at  # of the last record
        self.fed = 0
        self.unfed_updates = int(start.update is not None)  # accepted: the run does not end without them
        self.replaying = False  # until the code has had its turn with the last recorded outcome
        self.open: dict[str, H] = {}
        self._unknown = ""  # the first operation that the code asked for and that the journal has nothing of
        self.closed: set[str] = set()  # asked, then given up by the code: a late outcome of it is dropped
        self._known: dict[str, tuple[str, str, int]] | None = None
        self._unclaimed: dict[str, None] = {}  # of these, in their order, what the code has not come to yet
        self._asked: dict[str, Asked] | None = None
        self._pending: deque[r.Outcome] = deque()
        self._attempts: dict[str, r.Attempt] = {}
        self._progress: dict[str, bytes] = {}
        self._used_up: dict[str, tuple[int, int]] = {}
        self._patches: dict[str, bool] = {}  # what the code was told of each change of itself

    @classmethod
    def recover(cls, journal: Iterable[r.RunRecord]) -> Journal[H]:
        """A journal that first hands over what these records hold. They begin with the run's start."""
        rest = iter(journal)
        start = next(rest, None)
        if not isinstance(start, r.Start):
            raise NonDeterminismError(f"a journal begins with a start record, this one with {start!r}")
        self: Journal[H] = cls(start)
        self._known, self._asked, self.replaying = {}, {}, True
        if start.update is not None:
            self._pending.append(start.update)
        for record in rest:
            self.size += 1
            self.latest = max(self.latest, record.at)
            self._remember(record)
        self._unclaimed = dict.fromkeys(self._known)
        return self

    def _remember(self, record: r.RunRecord) -> None:
        assert self._known is not None and self._asked is not None
        if isinstance(record, (r.StepDone, r.Completed)):
            self._know(record)
            if record.status != "cancelled":
                self._pending.append(record)
        elif isinstance(record, r.OUTCOMES):
            self._pending.append(record)
            self.unfed_updates += isinstance(record, r.Update)
        elif isinstance(record, r.Attempt):
            self._know(record)
            self._attempts[record.op] = record
            if not record.retry_at:
                self._used_up[record.op] = (record.attempt, record.at)
        elif isinstance(record, r.Heartbeat):
            self._know(record)
            self._progress[record.op] = record.payload
        elif isinstance(record, r.Resumed):
            self._used_up = {op: (attempts, record.at) for op, (attempts, _) in self._used_up.items()}
        elif isinstance(record, r.Patched):
            self._patches[record.name] = True
        elif isinstance(record, r.ASKED) and record.op:
            self._known[record.op] = (*_identity(record), self.size - 1)
            self._asked[record.op] = record

    def _know(self, record: r.StepDone | r.Completed | r.Attempt | r.Heartbeat) -> None:
        """A record of a step, or of the sender of a completion, which is known since it was asked."""
        assert self._known is not None
        kind = self._known.get(record.op, ("step", "", 0))[0]
        self._known[record.op] = (kind, record.name, self.size - 1)

    def ask(self, op: str, kind: str, name: str) -> Asked | None:
        """The code asks for this operation: returns what was recorded of the asking, or None when it is to be recorded now.

        Raises NonDeterminismError when the journal holds something else there.
        """
        if self._known is None:
            return None
        assert self._asked is not None
        found = self._known.get(op)
        if found is not None:
            if found[:2] != (kind, name):
                raise self._mismatch(op, _said(*found[:2]), _said(kind, name), found[2])
            self._unclaimed.pop(op, None)
            return self._asked.pop(op, None)
        self._unknown = self._unknown or f"{_said(kind, name)} as operation {op}"
        if self._unclaimed and kind in RECORDED_KINDS:
            later = next(iter(self._unclaimed))
            has = self._known[later]
            raise self._mismatch(op, f"nothing, and then {_said(*has[:2])} as operation {later}", _said(kind, name), has[2])
        return None

    def knows(self, op: str) -> bool:
        """Something is recorded of this operation."""
        return self._known is not None and op in self._known

    def attempt(self, op: str) -> r.Attempt | None:
        """The last recorded attempt of a step without an outcome."""
        return self._attempts.pop(op, None) if self._attempts else None

    def progress(self, op: str) -> bytes | None:
        """What the attempts of a step last reported."""
        return self._progress.get(op)

    def used_up(self, op: str) -> tuple[int, int]:
        """How many attempts no longer count, since the run was paused and resumed after them, and when that was; (0, 0): none."""
        return self._used_up.get(op, (0, 0))

    def patched(self, name: str) -> bool | None:
        """Whether the code goes the new way at this change of itself; None: it does from now on, which is to be recorded.

        It went the old way when something is recorded that came later, which stays so: what is fed or claimed now came before.
        """
        told = self._patches.get(name)
        if told is None:
            is_past = self.replaying and bool(self._pending or self._unclaimed)
            self._patches[name] = not is_past
            return False if is_past else None
        return told

    def next(self) -> r.Outcome | None:
        """The next recorded outcome; None once the code has seen them all."""
        if self._pending:
            return self._pending.popleft()
        return None

    @property
    def unfed(self) -> list[r.Outcome]:
        """What is recorded and was not fed yet, in its order."""
        return list(self._pending)

    def live(self) -> None:
        """The code has had its turn with everything recorded. Raises NonDeterminismError when it left out what it once asked for."""
        if not self.replaying:
            return
        self.replaying = False
        self.end()
        self._known = self._asked = None

    def end(self) -> None:
        """The code has come to an end, or to the end of what is recorded. Raises NonDeterminismError as `live` does."""
        if self._unclaimed:
            assert self._known is not None
            op = next(iter(self._unclaimed))
            kind, name, position = self._known[op]
            raise self._mismatch(op, _said(kind, name), self._nothing(), position)

    def _nothing(self) -> str:
        """What the code asked for where it did not ask for what is recorded."""
        return f"{self._unknown}, and for nothing of the kind" if self._unknown else "nothing of the kind"

    def take(self, outcome: r.StepDone | r.Fired | r.ChildDone | r.Completed) -> H | None:
        """The waiter of an outcome with an operation, closing it; None when the code has given the operation up.

        Raises NonDeterminismError when the code never asked for it.
        """
        self.fed += 1
        if outcome.at > self.now:
            self.now = outcome.at
        op = outcome.op
        waiter = self.open.pop(op, None)
        if waiter is None and op not in self.closed:
            known = self._known.get(op) if self._known is not None else None
            position = known[2] if known else self.fed
            raise self._mismatch(op, f"the outcome of {_said(*_outcome_of(outcome))}", self._nothing(), position)
        return waiter

    def pass_time(self, outcome: r.Outcome) -> None:
        """An outcome without an operation (a signal, a cancel, an update) is being fed."""
        self.fed += 1
        self.unfed_updates -= isinstance(outcome, r.Update)
        if outcome.at > self.now:
            self.now = outcome.at

    def close(self, op: str) -> None:
        """The code no longer waits for this operation."""
        if self.open.pop(op, None) is not None:
            self.closed.add(op)

    def _mismatch(self, op: str, has: str, wants: str, position: int, where: str = "") -> NonDeterminismError:
        at = f" ({where})" if where else ""
        start = self.start
        return NonDeterminismError(
            f'workflow "{start.type}" asked for {wants} as operation {op}{at}, where its journal has {has} (position {position}).'
            " The code was changed since this run began. Guard the change with ctx.patched(..), run the old code until its runs"
            " have ended, or reset the run to a step before the change.",
            workflow=start.type, id=start.id, run=start.run, op=op, position=position, journal=has, code=wants, where=where,
        )

    def unhandled(self, update: r.Update, why: str) -> NonDeterminismError:
        """The code no longer takes an update that it once accepted."""
        start = self.start
        return NonDeterminismError(
            f'workflow "{start.type}" {why}: its journal has update "{update.name}" ({update.id}) as outcome {self.fed}. The code was'
            " changed since this run began. Guard the change with ctx.patched(..), or run the old code until its runs have ended.",
            workflow=start.type, id=start.id, run=start.run, position=self.fed, update=update.name,
        )

    def unfit(self, error: Exception) -> NonDeterminismError:
        """The code no longer accepts the input that it once began with."""
        start, why = self.start, str(error).rstrip(".")
        return NonDeterminismError(
            f'workflow "{start.type}" no longer accepts the input of run "{start.id}": {why}. Accept the old form too, or reset the run.',
            workflow=start.type, id=start.id, run=start.run, position=0,
        )

    def placed(self, error: NonDeterminismError, where: str) -> NonDeterminismError:
        """The same mismatch with the file and line of the code, which only the host can see."""
        fields = error.fields
        if "journal" not in fields:
            return error
        return self._mismatch(fields["op"], fields["journal"], fields["code"], fields["position"], where)


# Recorded in the turn in which they are asked for (rule 3). A step leaves its first record with its outcome.
RECORDED_KINDS = frozenset(("timer", "child", "send", "attributes", "answer", "completion"))


def _identity(record: Asked) -> tuple[str, str]:
    if isinstance(record, r.Timer):
        return "timer", record.name
    if isinstance(record, r.Child):
        return "child", record.type
    if isinstance(record, r.Send):
        return "send", f"{record.kind} {record.name}".rstrip()
    if isinstance(record, r.UpdateDone):
        return "answer", record.name
    if isinstance(record, r.Awaiting):
        return "completion", record.name
    return "attributes", ""


def _outcome_of(outcome: r.StepDone | r.Fired | r.ChildDone | r.Completed) -> tuple[str, str]:
    if isinstance(outcome, r.Completed):
        return "completion", outcome.name
    if isinstance(outcome, r.StepDone):
        return "step", outcome.name
    return ("timer", "") if isinstance(outcome, r.Fired) else ("child", "")


def _said(kind: str, name: str) -> str:
    if name:
        return f'{kind} "{name}"'
    return "attributes" if kind == "attributes" else f"a {kind}"
