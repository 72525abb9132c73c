"""Children and messages to other workflows, as a run's code asks for them."""
from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from fusee_mp.core import records as r
from fusee_mp.errors import BY_CODE, Cancelled, ChildFailed, FuseeError, Terminated, TimedOut, WorkflowFailed
from fusee_mp.payload.converter import Codec
from fusee_mp.payload.failure import rebuild_failure
from fusee_mp.runtime.offspring import Kin
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

    def has_ended(self, record: r.ChildDone) -> None:
        """It ended before it was asked for."""
        self._outcome = record
        self.run.with_offspring().ended(self.op)
        self.run.journal.closed.add(self.op)

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
    """Record the wish for a child and send it on; replay finds both. One that a run before this one started is not started again."""
    op = run.loop.next_op()
    call = ChildCall(run, op, id, codec, close)
    is_new = run.ask(op, "child", type_name) is None
    claimed = None if run.offspring is None else run.offspring.claim(op, id, type_name)
    if is_new:
        record = r.Child(run.number, run.tick(), op, -1, 0, id, type_name, input, close, timeout_ms)
        if claimed is None:
            record.to, record.no = run.shard.mail.address(id)
        else:
            record.started_by, record.started_op = claimed[0].by, claimed[0].op
        run.record(record)
        run.with_offspring().remember(record)
        if record.no:
            run.shard.mail.post(run.id, record.to, record.no, run.shard.encode(record), run.gate)
    if claimed is not None and claimed[1] is not None:
        call.has_ended(claimed[1])
    else:
        run.journal.open[op] = call
    return call


def ask_send(run: Run, kind: str, id: str, name: str, payload: bytes) -> None:
    """Record a signal or a cancel for another workflow and send it on."""
    op = run.loop.next_op()
    if run.ask(op, "send", f"{kind} {name}".rstrip()) is None:
        _send(run, op, kind, id, name, payload)


def ask_close(run: Run, call: ChildCall) -> None:
    """The code no longer waits for a child: record what the child feels of it and send it on."""
    op = run.loop.next_op()
    if run.ask(op, "send", call.close) is None:
        assert run.offspring is not None
        send_to_child(run, op, call.close, run.offspring.asked[call.op])


def send_to_child(run: Run, op: str, kind: Any, kin: Kin) -> None:
    """Record what a child feels of this run and send it on: it is meant for this child, and no other run of the child's ID."""
    _send(run, op, kind, kin.id, "", b"", kin.op, 0 if kin.by == run.number else kin.by)


def _send(run: Run, op: str, kind: Any, id: str, name: str, payload: bytes, child: str = "", child_by: int = 0) -> None:
    to, no = run.shard.mail.address(id)
    record = r.Send(run.number, run.tick(), op, to, no, kind, id, name, payload, child, child_by)
    run.record(record)
    run.shard.mail.post(run.id, to, no, run.shard.encode(record), run.gate)
