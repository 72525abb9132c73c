# A shard whose doors are shut: runs play on it from their journals, and nothing of what they do gets out.
#
# It is the shard runtime itself, so code sees in a replay what it sees live. Only its surroundings are missing:
# Rule 1: its home may never act, so no step body, message or answer leaves the gate; what is appended is kept for whoever looks.
# Rule 2: its loop never runs anything, so no timer fires and nothing happens later: `play` does the whole of it before it returns.
# Rule 3: its clock stands at the journal's last record, so new records add no time of their own.
from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import Context
from typing import Any, Final, NamedTuple, NoReturn, cast

from fusee_mp.core import records as r
from fusee_mp.core.calls import Outcome
from fusee_mp.core.journal import Journal
from fusee_mp.errors import FuseeError, Unavailable
from fusee_mp.runtime.crew import TURN_S_MAX, Crew, TurnWatch
from fusee_mp.runtime.limits import NoLimits
from fusee_mp.runtime.lines import waiting_line
from fusee_mp.runtime.run import Run
from fusee_mp.runtime.shard_runtime import ShardRuntime
from fusee_mp.runtime.steps import UNSET, StepCall
from fusee_mp.sdk.registry import WorkflowRegistry


class Ask(NamedTuple):
    """What the code asked for beyond its journal."""

    op: str
    said: str


class Performance(NamedTuple):
    """What became of a run. outcome: its end, if it came to one. trouble: why it was set aside. asks: what it went on to ask for.

    where: the line it waits in, or that of its function.
    """

    outcome: Outcome | None
    trouble: FuseeError | None
    asks: list[Ask]
    where: str


class Stage:
    """Plays runs, one at a time, on the thread that calls. Made by `stage`, which ends its watch over blocked turns."""

    def __init__(self, workflows: WorkflowRegistry) -> None:
        self.workflows = workflows
        self.shards: list[ShardRuntime] = []  # what the watch looks at
        # What the runtime takes from a crew, besides.
        self.loop = _Stopped()
        self.threads = self.processes = self.eager = None
        self.base_context = Context()

    def play(self, facts: Sequence[r.RunRecord], then: Iterable[r.Outcome] = ()) -> Performance:
        """Replay the records, then go on with these outcomes, as if each had just arrived. Raises nothing on the run's account."""
        at = max((fact.at for fact in facts), default=0)
        try:
            journal: Journal[Any] = Journal.recover(facts)
        except FuseeError as e:
            return Performance(None, e, [], "")
        home = _Shut()
        shard = _Rehearsal(
            0, 1, self.workflows, home, clock=lambda: at, draw=lambda: 0.5, crew=cast(Crew, self), park_after_ms=None,
        )
        shard.lsn = len(facts)
        self.shards[:] = [shard]
        try:
            return self._play(shard, home, journal, facts, then)
        finally:
            shard.close()
            self.shards.clear()

    def _play(
        self, shard: ShardRuntime, home: _Shut, journal: Journal[Any], facts: Sequence[r.RunRecord], then: Iterable[r.Outcome]
    ) -> Performance:
        run = Run(shard, journal, shard.registry.get(journal.start.type), shard.lsn)
        run.remember_children(facts)
        run.fresh.extend((outcome, UNSET) for outcome in then)
        journal.unfed_updates += sum(isinstance(outcome, r.Update) for outcome, _ in run.fresh)
        shard.enter(run)
        shard.work()
        steps = [Ask(call.op, f'step "{call.name}"') for call in journal.open.values() if isinstance(call, StepCall)]
        asks = [ask for record in home.records() if (ask := _ask(record)) is not None]
        return Performance(run.outcome, run.quarantined, asks + steps, waiting_line(run.main) or self._line_of(run))

    def _line_of(self, run: Run) -> str:
        found = self.workflows.get(run.journal.start.type)
        code = None if found is None else found.definition.fn.__code__
        return "" if code is None else f"{code.co_filename}:{code.co_firstlineno}"


@contextmanager
def stage(workflows: WorkflowRegistry) -> Iterator[Stage]:
    """A stage for this thread. Code that does not yield is interrupted, as in an engine."""
    made = Stage(workflows)
    watch = TurnWatch(cast(Crew, made), threading.get_ident(), TURN_S_MAX)
    try:
        yield made
    finally:
        watch.stop()


class _Rehearsal(ShardRuntime):
    """Nothing is set aside by it: whoever asked for the replay gets the error as its answer."""

    def say_quarantined(self, run: Run, error: FuseeError) -> None:
        """`Performance.trouble` says it."""


class _Shut:
    """A home that lets nothing out, and keeps what was to be recorded."""

    refusal = ""
    limits = NoLimits()

    def __init__(self) -> None:
        self._appended: list[bytes] = []

    def append(self, records: bytes, count: int) -> None:
        self._appended.append(records)

    def records(self) -> list[r.Record]:
        return [r.decode(data) for appended in self._appended for data in r.unframe(appended)]

    def lacks(self, workflow: str) -> None:
        pass

    def may_act(self) -> bool:
        return False

    def give_up(self, reason: str) -> None:
        """There is nothing to let go of."""

    def relay(self, to: int, messages: Sequence[tuple[int, bytes]]) -> None:
        """Nobody is there."""

    def relay_ack(self, sender: int, through: int) -> None:
        """Nobody is there."""

    async def read(self, method: str, args: tuple[Any, ...], min_lsn: int = 0) -> Any:
        raise Unavailable("a replay has no store")


class _Never:
    """A callback that will not be called."""

    def cancel(self) -> None:
        """It would not have been called."""


_NEVER: Final = _Never()


class _Stopped:
    """The part of a loop that the runtime uses, of one that never runs."""

    def call_soon(self, *_: object) -> _Never:
        return _NEVER

    def call_later(self, *_: object) -> _Never:
        return _NEVER

    def create_task(self, body: Any) -> NoReturn:
        body.close()
        raise Unavailable("a replay waits for nothing")


def _ask(record: r.Record) -> Ask | None:
    if isinstance(record, r.Send):
        what = f"{record.kind} {record.name}".rstrip()
        return Ask(record.op, f'send "{what}"') if record.op else None  # without an operation it comes of the run's end
    if isinstance(record, r.Child):
        return Ask(record.op, f'child "{record.type}"')
    if isinstance(record, r.Timer):
        return Ask(record.op, f'timer "{record.name}"' if record.name else "a timer")
    if isinstance(record, r.StepDone):
        return Ask(record.op, f'step "{record.name}"')
    if isinstance(record, r.UpdateDone):
        return Ask(record.op, f'answer "{record.name}"')
    if isinstance(record, r.Awaiting):
        return Ask(record.op, f'completion "{record.name}"')
    return Ask(record.op, "attributes") if isinstance(record, r.Attributes) else None
