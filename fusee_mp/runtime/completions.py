# Operations that somebody outside completes: a sender hands out a token, and whoever has it says how it ended.
#
# Rule 1: which token is good follows from records alone (the last `Awaiting` of the operation, until `Completed`), so it is known before
#         a parked run's code has been replayed, and on any worker.
# Rule 2: the record that makes an attempt's token good is durable before its sender begins; it ends the goodness of the one before.
# Rule 3: once the sender has done its part, the run is quiet: it waits only for the outcome, and may leave memory.
from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fusee_mp.core import records as r
from fusee_mp.core.calls import CompleteCall
from fusee_mp.core.token import fits, token
from fusee_mp.errors import PayloadError, Rejected
from fusee_mp.payload.converter import Codec
from fusee_mp.runtime.steps import UNSET, Options, StepCall

if TYPE_CHECKING:
    from fusee_mp.runtime.run import Run


class CompletionCall(StepCall):
    """One such operation, as the step that sends its token."""

    __slots__ = ("is_sent",)

    def __init__(self, run: Run, op: str, name: str, send: Callable[[str], Any], options: Options, codec: Codec) -> None:
        super().__init__(run, op, name, send, (), {}, options, codec)
        self.is_sent = False

    @property
    def is_active(self) -> bool:
        return not self.is_sent and super().is_active

    def restore_awaiting(self, found: r.Awaiting) -> None:
        """Go on where the journal ends."""
        self.restore()
        self.is_sent = found.sent
        self.attempt = found.attempt if found.sent else found.attempt - 1

    def begin(self) -> None:
        self.args = (token(self.run.journal.start, self.op, self.attempt + 1),)
        super().begin()

    def await_token(self, attempt: int, is_sent: bool = False) -> None:
        run = self.run
        run.completions[self.op] = (self.name, attempt)
        run.record(r.Awaiting(run.number, run.tick(), self.op, self.name, attempt, is_sent))

    def _succeeded(self, _value: Any) -> None:
        """The token is sent."""
        self.is_sent = True
        self.await_token(self.attempt, is_sent=True)
        self.run.shard.wake(self.run)

    def _repeats(self) -> None:
        self.await_token(self.attempt + 1)

    def _fails(self, failure: bytes) -> None:
        run = self.run
        run.completions.pop(self.op, None)
        run.record_outcome(r.Completed(run.number, run.tick(), self.op, self.name, self.attempt, "failed", failure))


def ask_completion(run: Run, name: str, send: Callable[[str], Any], options: Options, codec: Codec) -> CompletionCall:
    """The code waits for somebody outside: the sender begins after the turn."""
    op = run.loop.next_op()
    found = run.ask(op, "completion", name)
    call = CompletionCall(run, op, name, send, options, codec)
    if isinstance(found, r.Awaiting):
        call.restore_awaiting(found)
    else:
        call.await_token(1)
    run.journal.open[op] = call
    if not call.is_sent:
        run.steps.append(call)
    return call


def abandon_completion(run: Run, call: CompletionCall) -> None:
    """The code no longer waits: the token is good no more."""
    if run.sealed or not call.is_open:
        return
    run.journal.close(call.op)
    call.stop_body()
    if run.completions.pop(call.op, None) is not None:
        run.record(r.Completed(run.number, run.tick(), call.op, call.name, call.attempt, "cancelled", b""))


def complete(run: Run, call: CompleteCall) -> r.Completed:
    """Record what became of an operation. Raises Rejected when the token is not the good one, or the value does not fit."""
    name = _awaited(run, call)
    waiting = run.journal.open.get(call.op)
    if call.status == "ok" and isinstance(waiting, CompletionCall):
        try:
            waiting.codec.decode(call.payload, f'the value of completion "{name}"')
        except PayloadError as e:
            raise Rejected(f"{e.message} The token is still good.", id=run.id, completion=name) from None
    del run.completions[call.op]
    completed = r.Completed(run.number, run.tick(), call.op, name, call.attempt, call.status, call.payload, call.request)
    run.record_outcome(completed, UNSET)
    return completed


def _awaited(run: Run, call: CompleteCall) -> str:
    """The name of the operation that a token is for."""
    if call.run != run.number or not fits(run.journal.start, call.op, call.attempt, call.seal):
        raise Rejected(f'the token was not given out by run {run.number} of workflow "{run.id}", which is open now: use the one that was',
                       id=run.id, run=run.number)
    name, attempt = run.completions.get(call.op, ("", 0))
    if not attempt:
        raise Rejected(f'the token was used, or its workflow "{run.id}" no longer waits for it: nothing is to be done', id=run.id)
    if attempt != call.attempt:
        raise Rejected(f'the token is stale: it was sent by attempt {call.attempt} of "{name}", which failed. The good one is that of'
                       f" attempt {attempt}", id=run.id, attempt=attempt)
    return name
