# The queries and updates of one run.
#
# Rule 1: a query and a validator only look. They run between outcomes, when the code can make no further progress, and whatever they
#         ask of the run is refused.
# Rule 2: an update is accepted by one record, when everything recorded before it has been fed and its validator lets it pass. It is
#         fed at once, so the next validator sees what it changed. One that is refused leaves no trace.
# Rule 3: a handler is a root task: the operations of the n-th accepted update are named "un/..", whatever the rest of the code does.
#         What it came to is the last of them, and its caller's answer.
# Rule 4: an update that came with a start was accepted before anybody could ask its validator. So the validator is asked when it is
#         fed, in replay too, and a refusal is what the update came to.
from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import Context
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fusee_mp.core import records as r
from fusee_mp.core.calls import Outcome, QueryCall, StartWithUpdateCall, UpdateCall
from fusee_mp.errors import FuseeError, Rejected
from fusee_mp.payload.converter import Codec
from fusee_mp.payload.failure import encode_failure
from fusee_mp.runtime.loop import Interrupted, Refused, Sealed

if TYPE_CHECKING:
    from fusee_mp.runtime.run import Run

SLICE: Final = 512  # updates and queries in one turn; then other runs have theirs
Updating = UpdateCall | StartWithUpdateCall
_RAISED: Final = (Exception, SystemExit, KeyboardInterrupt)


class Handler(NamedTuple):
    """What code registered under a name. codec: of the value, None when the function takes none; returns: of its result."""

    fn: Callable[..., Any]
    codec: Codec | None
    returns: Codec
    validator: Callable[..., Any] | None = None

    def arguments(self, payload: bytes) -> tuple[Any, ...]:
        """Raises PayloadError for a value that does not fit."""
        if self.codec is None:
            Codec.none().decode(payload)
            return ()
        return (self.codec.decode(payload),)


class Handlers:
    """Of one run; made when its code registers the first or somebody asks for one."""

    __slots__ = ("_run", "queries", "updates", "waiting", "asking", "outcomes", "named", "running", "left", "is_disturbed", "_fed")

    def __init__(self, run: Run) -> None:
        self._run = run
        self.queries: dict[str, Handler] = {}
        self.updates: dict[str, Handler] = {}
        self.waiting: deque[Updating] = deque()  # neither accepted nor refused yet
        self.asking: deque[tuple[QueryCall, Any]] = deque()  # with who is told the answer
        self.outcomes: dict[str, Outcome | None] = {}  # of accepted updates by their ID; None while their handlers run
        self.named: list[str] = []  # of those that have an outcome, the IDs that callers chose
        self.running = 0
        self.left = SLICE
        self.is_disturbed = False  # by one that should only have looked: its state is to be made anew from the journal
        self._fed = 0

    def forget(self) -> None:
        """The code leaves memory: let go of its functions."""
        self.queries, self.updates = {}, {}

    @property
    def is_asked(self) -> bool:
        """Somebody waits for a turn of the run."""
        return bool(self.waiting or self.asking)

    # Updates.

    def accept(self) -> r.Update | None:
        """Record the first of those waiting that is not refused. None when there is none, or enough for this turn."""
        run, calls = self._run, self._run.shard.calls
        while self.waiting and self._takes_turn():
            call = self.waiting.popleft()
            if call.update in self.outcomes:
                calls.handlers.attach(call, run)
            elif (refusal := self._refusal(call)) is not None:
                calls.refuse(call, run.gate, refusal)
            else:
                update = r.Update(run.number, run.tick(), call.name, call.update, call.payload, call.request)
                run.record(update)
                run.journal.unfed_updates += 1
                self.outcomes[call.update] = None
                calls.handlers.attach(call, run)
                return update
        return None

    def _takes_turn(self) -> bool:
        if not self.left:
            self._run.shard.wake(self._run)
            return False
        self.left -= 1
        return True

    def _refusal(self, asked: Updating | r.Update) -> FuseeError | None:
        """Why this update is not to be accepted in the state that the code is in."""
        name = asked.name
        handler = self.updates.get(name)
        if handler is None:
            return self._unknown("update", name, self.updates)
        try:
            arguments = handler.arguments(asked.payload)
            if handler.validator is not None:
                self._look(f'the validator of update "{name}"', handler.validator, *arguments)
        except FuseeError as e:
            return e
        except _RAISED as e:
            return Rejected(str(e) or type(e).__name__, id=self._run.id, update=name)
        return None

    def feed(self, update: r.Update) -> None:
        """Its place in the journal has come: the handler begins. Raises NonDeterminismError when the code has none for it."""
        run = self._run
        self._fed += 1
        path = f"u{self._fed}/"
        self.outcomes.setdefault(update.id, None)
        if update is run.journal.start.update and (refusal := self._refusal(update)) is not None:
            self._refused(update, path, refusal)
            return
        handler = self.updates.get(update.name)
        if handler is None:
            raise run.journal.unhandled(update, f"has no handler for it where it once had one (it has {_names(self.updates)})")
        try:
            arguments = handler.arguments(update.payload)
        except Exception as e:  # it once fitted
            raise run.journal.unhandled(update, f"no longer accepts its value: {e}") from e
        self.running += 1
        run.loop.create_root(self._handle(update, handler, arguments), path)

    def _refused(self, update: r.Update, path: str, refusal: FuseeError) -> None:
        try:
            self._ended(f"{path}1", update, "refused", refusal.message.encode(errors="replace"))
        except Sealed:  # the run says why
            pass

    async def _handle(self, update: r.Update, handler: Handler, arguments: tuple[Any, ...]) -> None:
        status: Any = "ok"
        try:
            result = handler.fn(*arguments)
            if inspect.isawaitable(result):
                result = await result
            payload = handler.returns.encode(result, f'the result of update "{update.name}"', self._run.shard.payloads.bytes_max)
        except asyncio.CancelledError as e:
            status, payload = "cancelled", (str(e.args[0]) if e.args else "").encode(errors="replace")
        except _RAISED as e:
            status, payload = "failed", encode_failure(e)
        self.running -= 1
        self._ended(self._run.loop.next_op(), update, status, payload)

    def _ended(self, op: str, update: r.Update, status: Any, payload: bytes) -> None:
        run = self._run
        if run.ask(op, "answer", update.name) is None:
            record = r.UpdateDone(run.number, run.tick(), op, update.name, update.id, status, payload)
            run.record(record)
            self.outcomes[update.id] = _outcome(record)
        if update.id != update.request:
            self.named.append(update.id)
        outcome = self.outcomes.get(update.id)
        if outcome is not None:
            run.shard.calls.handlers.handled(run, update.id, outcome)

    # Queries.

    def answer(self) -> None:
        """Answer those who ask, each with what its answer rests on."""
        run = self._run
        while self.asking and not run.is_over and run.broken is None and self._takes_turn():
            call, reply = self.asking.popleft()
            run.shard.calls.handlers.answered(run, reply, *self.query(call))

    def query(self, call: QueryCall) -> tuple[Outcome | None, FuseeError | None]:
        """The answer, or why there is none. The code does not move, and nothing is recorded."""
        handler = self.queries.get(call.name)
        if handler is None:
            return None, self._unknown("query", call.name, self.queries)
        try:
            arguments = handler.arguments(call.payload)
            value = self._look(f'query "{call.name}"', handler.fn, *arguments)
            answer = handler.returns.encode(value, f'the answer to query "{call.name}"', self._run.shard.payloads.bytes_max)
            return Outcome("ok", answer), None
        except FuseeError as e:
            return None, e
        except _RAISED as e:
            return Outcome("failed", encode_failure(e)), None

    def _look(self, what: str, fn: Callable[..., Any], *arguments: Any) -> Any:
        """Call code that only looks. Raises what it raises, and Refused for what it may not do."""
        run, shard = self._run, self._run.shard
        assert run.registered is not None and run.context is not None
        shard.turns += 1  # the watch over blocked turns looks at each one alone
        try:
            with run.registered.looking(run.context, what), run.loop.looking(what) as looking:
                try:
                    value = Context().run(fn, *arguments)
                finally:
                    self.is_disturbed |= looking.is_tried
        except Interrupted:
            blocked, shard.blocked = shard.blocked, ""
            raise Refused(f"{what} does not come to an end: {blocked}") from None
        if inspect.isawaitable(value):
            if inspect.iscoroutine(value):
                value.close()
            raise Refused(f"{what} returned something to be awaited, and it may not wait: make it a plain `def` that only looks")
        return value

    def _unknown(self, kind: str, name: str, known: Iterable[str]) -> Rejected:
        start = self._run.journal.start
        return Rejected(
            f'workflow "{start.type}" of run "{start.id}" has no {kind} "{name}". It has {_names(known)}. Register it with'
            f" ctx.on_{kind}(..) before the first await", id=start.id, workflow=start.type, name=name,
        )


def outcomes_of(records: Iterable[r.Record]) -> dict[str, Outcome | None]:
    """The updates of a journal by their IDs, with what they came to; None for those whose handlers had not ended."""
    found: dict[str, Outcome | None] = {}
    for record in records:
        if isinstance(record, r.UpdateDone):
            found[record.id] = _outcome(record)
        elif isinstance(record, r.Update):
            found.setdefault(record.id, None)
        elif isinstance(record, r.Start) and record.update is not None:
            found.setdefault(record.update.id, None)
    return found


def answered_before(start: r.Start, id: str) -> int | None:
    """The number of the earlier run of the chain that carried this update out."""
    return next((run for update, run in start.answered if update == id), None)


def _outcome(record: r.UpdateDone) -> Outcome:
    if record.status in ("ok", "failed"):
        return Outcome(record.status, record.payload)
    return Outcome(record.status, b"", record.payload.decode(errors="replace"))


def _names(known: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in sorted(known)) or "none"
