"""Children and messages to other workflows, as a run's code asks for them."""
from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from fusee_mp.core import records as r
from fusee_mp.errors import BY_CODE, Cancelled, ChildFailed, FuseeError, Terminated, TimedOut, WorkflowFailed
from fusee_mp.payload.converter import Codec
from fusee_mp.payload.failure import rebuild_failure
from fusee_mp.runtime.steps import UNSET

if TYPE_CHECKING:
    from fusee_mp.runtime.run import Run


class ChildCall:
    """A child that the code asked for; it stays after its outcome has arrived, for those who await the result later."""

    __slots__ = ("run", "op", "id", "codec", "close", "_waiters", "_outcome", "_value")

    def __init__(self, run: Run, op: str, id: str, codec: Codec, close: r.ClosePolicy) -> None:
        self.run = run
        self.op = op
        self.id = id
        self.codec = codec
        self.close = close
        self._waiters: list[asyncio.Future[Any]] = []
        self._outcome: r.ChildDone | None = None
        self._value: Any = UNSET

    @property
    def is_open(self) -> bool:
        return self._outcome is None

    async def result(self) -> Any:
        """Wait for the outcome. Cancelling this wait leaves the child alone."""
        self.run.check_open()
        if self._outcome is None:
            future: asyncio.Future[Any] = asyncio.Future(loop=self.run.loop)
            self._waiters.append(future)
            await future
        assert self._outcome is not None
        return self._unpack(self._outcome)

    def deliver(self, record: r.ChildDone, _value: Any) -> None:
        self._outcome = record
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _unpack(self, record: r.ChildDone) -> Any:
        if record.status == "ok":
            return self.codec.decode(record.payload)
        raise ChildFailed(f'child "{self.id}" ended as {record.status}', id=self.id, status=record.status) from cause_of(
            record.status, record.payload, self.id
        )


def cause_of(status: str, payload: bytes, id: str, reason: str = "") -> BaseException:
    """The exception that stands for a run's end other than by a result."""
    said = f": {reason}" if reason else ""
    if status == "failed":
        failed = WorkflowFailed(f'workflow "{id}" failed', id=id)
        failed.__cause__ = rebuild_failure(payload)
        return failed
    if status == "refused":
        return rebuild_failure(payload)
    kind: type[FuseeError] = {"cancelled": Cancelled, "terminated": Terminated, "timed_out": TimedOut}.get(status, BY_CODE["rejected"])
    return kind(f'workflow "{id}" ended as {status}{said}', id=id, reason=reason)


def ask_child(
    run: Run, type_name: str, id: str, input: bytes, codec: Codec, close: r.ClosePolicy, timeout_ms: int | None
) -> ChildCall:
    """Record the wish for a child and send it on; replay finds both."""
    op = run.loop.next_op()
    call = ChildCall(run, op, id, codec, close)
    if run.ask(op, "child", type_name) is None:
        to, no = run.shard.mail.address(id)
        record = r.Child(run.number, run.tick(), op, to, no, id, type_name, input, close, timeout_ms)
        run.record(record)
        run.shard.mail.post(run.id, to, no, r.encode(record), run.gate)
        run.child_asked(op, id, close)
    run.journal.open[op] = call
    return call


def ask_send(run: Run, kind: str, id: str, name: str, payload: bytes, child: str = "") -> None:
    """Record a signal or a cancel for another workflow and send it on."""
    op = run.loop.next_op()
    if run.ask(op, "send", f"{kind} {name}".rstrip()) is None:
        send(run, op, kind, id, name, payload, child)


def send(run: Run, op: str, kind: Any, id: str, name: str = "", payload: bytes = b"", child: str = "") -> None:
    to, no = run.shard.mail.address(id)
    record = r.Send(run.number, run.tick(), op, to, no, kind, id, name, payload, child)
    run.record(record)
    run.shard.mail.post(run.id, to, no, r.encode(record), run.gate)
