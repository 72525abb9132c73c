# A crash after every record: each beginning of a journal is replayed, and the rest happens as if it came then.
#
# A run that crashed after its k-th record is its first k records, replayed; after that it gets the outcomes that the journal has
# further on, each as a new arrival. If its code is a function of its journal, it comes to the same end. If it is not (it counts in
# a global, looks at the clock, walks a set of text), some k shows it, and a real crash would have.
# The limit: steps are not run again, so what their bodies would do a second time is not tested here.
from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from fusee_mp.core import records as r
from fusee_mp.sdk.definitions import Workflow
from fusee_mp.sdk.journals import Journal
from fusee_mp.sdk.registry import WorkflowRegistry
from fusee_mp.sdk.replayer import OF_OTHERS, Replayer, end_said
from fusee_mp.sdk.stage import Performance, stage

if TYPE_CHECKING:
    from fusee_mp.testing.virtual import VirtualEngine

Workflows = Sequence[Workflow[Any, Any]]
# Replaying every beginning costs the square of a journal's length. Of a longer one so many are taken, evenly.
CRASHES_MAX: Final = 1_000

_SEEN: ContextVar[list[tuple[Workflows, list[Journal]]] | None] = ContextVar("fusee_journals_seen", default=None)


def crash_everywhere(workflows: Workflows, journals: Sequence[Journal]) -> list[str]:
    """Crash each run after each of its records, and say what then differed: run, record, and both results. Empty: nothing did."""
    replayer = Replayer(workflows=workflows)
    with stage(WorkflowRegistry(workflows)) as played:
        return [
            said
            for journal in journals
            for k in cuts(journal)
            if (said := _difference(replayer, journal, k, played.play(journal.facts[:k], _outcomes(journal.facts[k:]))))
        ]


@contextmanager
def watching() -> Iterator[list[tuple[Workflows, list[Journal]]]]:
    """What the test engines that are closed meanwhile have run."""
    seen: list[tuple[Workflows, list[Journal]]] = []
    token = _SEEN.set(seen)
    try:
        yield seen
    finally:
        _SEEN.reset(token)


async def note(engine: VirtualEngine, workflows: Workflows) -> None:
    """The engine is about to be closed: keep what it has run, if somebody is watching."""
    seen = _SEEN.get()
    if seen is not None:
        seen.append((workflows, await engine.journals()))


def cuts(journal: Journal) -> list[int]:
    """After how many of its records it is crashed, each time anew. What a run inherited was recorded together with its start."""
    together = max((i for i, fact in enumerate(journal.facts) if isinstance(fact, r.Inherited)), default=0)
    return [k for k in _evenly(len(journal.facts)) if k > together]


def _evenly(size: int) -> Sequence[int]:
    if size <= CRASHES_MAX:
        return range(1, size + 1)
    return [1 + (size - 1) * i // (CRASHES_MAX - 1) for i in range(CRASHES_MAX)]


def _outcomes(facts: Sequence[r.RunRecord]) -> list[r.Outcome]:
    """What was fed to the code; a step that it gave up is no outcome."""
    return [fact for fact in facts if isinstance(fact, r.OUTCOMES) and not (isinstance(fact, r.StepDone) and fact.status == "cancelled")]


def _difference(replayer: Replayer, journal: Journal, k: int, found: Performance) -> str:
    last = journal.records[k - 1]
    place = f'run {journal.run_number} of workflow ID "{journal.workflow_id}" ({journal.workflow}), crashed after record {k - 1}'
    place += f" of {len(journal.facts)} ({last.kind}{f' {last.name}' if last.name else ''})"
    if found.trouble is not None:
        return f"{place}: {found.trouble}"
    done = journal.done
    if done is None or done.status in OF_OTHERS and found.outcome is None:
        return ""
    if found.outcome is not None and replayer.is_same_end(journal.workflow, done, found.outcome):
        return ""
    now = f"it waits at {found.where}" if found.outcome is None else f"it is {end_said(found.outcome.status, found.outcome.payload)}"
    return f"{place}: {now}; without the crash it is {end_said(done.status, done.payload)}"
