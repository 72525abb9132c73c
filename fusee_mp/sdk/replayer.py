# Would these runs go on with this code?
#
# A journal is replayed on a stage with nothing behind it: the code gets its recorded outcomes, no step body runs, nothing is sent.
# What the runtime itself notices of a mismatch is the answer. For a journal with an end there is more to check, since nothing was
# cut off: code that asks for anything beyond its journal, or comes to another end, differs too.
# An end that others made (terminated, timed_out, reset) is no business of the code: it only must not have come to one of its own.
from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fusee_mp.core import records as r
from fusee_mp.core.calls import Outcome
from fusee_mp.core.journal import Journal as Machine
from fusee_mp.errors import FuseeError, NonDeterminismError
from fusee_mp.payload.failure import Failure, decode_failure, summary
from fusee_mp.payload.sealing import PayloadCodec, Payloads
from fusee_mp.sdk.definitions import Workflow
from fusee_mp.sdk.journals import Journal
from fusee_mp.sdk.registry import WorkflowRegistry
from fusee_mp.sdk.stage import Performance, Stage, stage

OF_OTHERS: Final = ("terminated", "timed_out", "reset")
_ADDRESS: Final = re.compile(r"0x[0-9a-f]+")
_SHOWN_CHARS: Final = 80


@dataclass(frozen=True, slots=True)
class Replay:
    """What became of a replay. ok: a run with this journal goes on with this code. finished: the journal has the run's end.

    error: why it is not ok: a NonDeterminismError that names what the journal has, what the code asked for, and where;
    UnknownWorkflow when the code is missing; PayloadError when a payload cannot be opened; FuseeError for code that does not yield.
    """

    ok: bool
    finished: bool
    error: FuseeError | None = None


class Replayer:
    """Runs code against journals. codec: opens their payloads. Raises Rejected when two workflows share a name."""

    def __init__(self, *, workflows: Sequence[Workflow[Any, Any]], codec: PayloadCodec | None = None) -> None:
        self._workflows = WorkflowRegistry(workflows)
        self._payloads = Payloads(codec)

    def replay(self, journal: Journal) -> Replay:
        """Replay one journal, inside or outside of a running event loop. Whatever the code does is in the answer."""
        (replay,) = self.replay_all((journal,))
        return replay

    def replay_all(self, journals: Iterable[Journal]) -> Iterator[Replay]:
        """Replay one after the other, each when its answer is asked for; many together cost less than each by itself."""
        with stage(self._workflows) as played:
            for journal in journals:
                yield self._replay(played, journal)

    def _replay(self, played: Stage, journal: Journal) -> Replay:
        try:
            journal = journal.opened(self._payloads)
        except FuseeError as e:
            return Replay(False, journal.done is not None, e)
        performance = played.play(journal.facts)
        done = journal.done
        error = performance.trouble or (None if done is None else self.difference(journal, done, performance))
        return Replay(error is None, done is not None, error)

    def replay_file(self, path: str | os.PathLike[str]) -> Replay:
        """Replay the journal in a file. Raises StorageError when it is none."""
        return self.replay(Journal.read(path))

    def difference(self, journal: Journal, done: r.Done, performance: Performance) -> NonDeterminismError | None:
        """How a run that went through its whole journal differs from its recorded end."""
        machine: Machine[Any] = Machine(journal.facts[0])  # type: ignore[arg-type]
        position = len(journal.facts) - 1
        for ask in performance.asks:
            error = NonDeterminismError(op=ask.op, journal=f"its end ({done.status})", code=ask.said, position=position)
            return machine.placed(error, performance.where)
        outcome = performance.outcome
        if outcome is None and done.status in OF_OTHERS or outcome is not None and self.is_same_end(journal.workflow, done, outcome):
            return None
        return _other_end(machine, done, outcome, position, performance.where)

    def is_same_end(self, workflow: str, done: r.Done, outcome: Outcome) -> bool:
        if done.status != outcome.status:
            return False
        if done.status == "failed":
            return _is_same_failure(done.payload, outcome.payload)
        return done.payload == outcome.payload or self._is_equal(workflow, done.payload, outcome.payload)

    def _is_equal(self, workflow: str, one: bytes, other: bytes) -> bool:
        """Sets and the like may be written in another order."""
        found = self._workflows.get(workflow)
        try:
            return found is not None and bool(found.definition.result_codec.decode(one) == found.definition.result_codec.decode(other))
        except Exception:  # noqa: BLE001  # the recorded result no longer fits the annotation, or the type's own __eq__ failed
            return False


def _other_end(machine: Machine[Any], done: r.Done, outcome: Outcome | None, position: int, where: str) -> NonDeterminismError:
    start = machine.start
    has = end_said(done.status, done.payload)
    wants = "does not come to an end" if outcome is None else f"ends as {end_said(outcome.status, outcome.payload)}"
    return NonDeterminismError(
        f'workflow "{start.type}" {wants} ({where}), where its journal has its end as {has} (position {position}). The code was changed'
        " since this run ended. Guard the change with ctx.patched(..) if runs that are still open come this way.",
        workflow=start.type, id=start.id, run=start.run, position=position, journal=has, code=wants, where=where,
    )


def end_said(status: str, payload: bytes) -> str:
    """A run's end in a few words."""
    if status == "failed":
        try:
            return f"failed with {_cut(summary(decode_failure(payload)))}"
        except FuseeError:
            return "failed"
    return f"{status} with {_cut(payload.decode('utf-8', 'replace'))}" if payload else status


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS - 2]}.."


def _is_same_failure(one: bytes, other: bytes) -> bool:
    """Types and messages agree through the whole tree; lines of code and addresses of objects may differ."""
    try:
        return bool(_outline(decode_failure(one)) == _outline(decode_failure(other)))
    except FuseeError:
        return one == other


def _outline(failure: Failure) -> Any:
    causes = [inner and _outline(inner) for inner in (failure.cause, failure.context)]
    return [failure.type, _ADDRESS.sub("0x", failure.message), *causes, [_outline(member) for member in failure.members]]
