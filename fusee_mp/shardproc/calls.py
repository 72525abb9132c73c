# Calls on their way: from a client, or from another shard process for its client, to the worker that holds the shard, and back.
#
# Rule 1: a call stays here until it is answered or nobody waits for it. At each grant the unanswered ones go to the new holder,
#         marked as repeats, since the old one may have carried them out.
# Rule 2: the number of calls that wait is bounded; beyond it a caller hears Busy, and nothing of its call was recorded.
# Rule 3: what the store can answer (reads, the result of a finished run) needs no worker.
from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from fusee_mp.errors import Busy, FuseeError, Rejected, StorageFull
from fusee_mp.core.calls import Outcome, decode_call
from fusee_mp.store.reads import READS
from fusee_mp.wire import messages as m
from fusee_mp.wire.frames import Frame, encode_frame
from fusee_mp.wire.kinds import Kind
from fusee_mp.wire.stream import Stream

if TYPE_CHECKING:
    from fusee_mp.shardproc.process import ShardProcess

WAITING_MAX: Final = 10_000
READ_TIMEOUT_S: Final = 30.0
# What travels as a call but is answered by the keeper, with everything durable applied.
CLIENT_READS: Final = frozenset(("status", "describe", "list", "count", "tally"))
assert CLIENT_READS <= set(READS)
# Answers go to who asked: a client's connection, or the link to another shard process.
Answer = Callable[[bytes], None]


class Pending:
    """A call that the worker has not answered."""

    __slots__ = ("answer", "request", "shard", "owner", "call")

    def __init__(self, answer: Answer, frame: Frame, owner: object, call: m.Call) -> None:
        self.answer = answer
        self.request = frame.request
        self.shard = frame.shard
        self.owner = owner
        self.call = call

    def reply(self, frame: Frame) -> None:
        self.answer(encode_frame(frame.kind, frame.body, self.request, self.shard))

    def fail(self, error: FuseeError) -> None:
        self.answer(m.encode(m.error_message(error), self.request, self.shard))


class ClientCalls:
    """The calls on one shard."""

    def __init__(self, process: ShardProcess) -> None:
        self._process = process
        self._ids = itertools.count(1)
        self._pending: dict[int, Pending] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def take(self, frame: Frame, answer: Answer, owner: object) -> None:
        """A call on this shard came in."""
        call = m.decode(frame)
        assert isinstance(call, m.Call)
        pending = Pending(answer, frame, owner, call)
        if call.method in CLIENT_READS:
            self._process.spawn(self._read(pending))
        elif call.method == "start" and (refusal := self._process.host.refusal):
            pending.fail(StorageFull(f"shard {self._process.shard} starts nothing new: {refusal}"))
        elif len(self._pending) >= WAITING_MAX:
            pending.fail(Busy(f"shard {self._process.shard} has {WAITING_MAX} calls waiting. Nothing was recorded: try again later"))
        else:
            id = next(self._ids)
            self._pending[id] = pending
            if self._process.lease is not None:
                self._forward(id, pending, call.repeat)
            elif call.method == "result":
                self._process.spawn(self._finished_result(id, pending))

    def _forward(self, id: int, pending: Pending, repeat: bool) -> None:
        lease = self._process.lease
        assert lease is not None
        call = pending.call
        lease.connection.send(m.Call(call.method, call.args, repeat), id, self._process.shard, lease.epoch)

    def granted(self) -> None:
        """There is a new holder: it gets everything that is not answered."""
        for id, pending in list(self._pending.items()):
            self._forward(id, pending, True)

    def answered(self, frame: Frame) -> None:
        """The worker answers."""
        pending = self._pending.pop(frame.request, None)
        if pending is not None:
            pending.reply(frame)

    def cancel(self, owner: object, request: int) -> None:
        """Who asked no longer waits for this one."""
        for id, pending in self._pending.items():
            if pending.owner is owner and pending.request == request:
                self._drop(id)
                return

    def forget(self, owner: object) -> None:
        """Who asked is gone."""
        for id in [id for id, pending in self._pending.items() if pending.owner is owner]:
            self._drop(id)

    def _drop(self, id: int) -> None:
        del self._pending[id]
        lease = self._process.lease
        if lease is not None:
            lease.connection.send(m.Cancel(), id, self._process.shard, lease.epoch)

    async def _read(self, pending: Pending) -> None:
        host = self._process.host
        try:
            value = await host.read_bytes(pending.call.method, pending.call.args, host.durable_lsn, READ_TIMEOUT_S)
        except FuseeError as e:
            pending.fail(e)
        else:
            pending.answer(m.encode(m.Reply(value), pending.request, pending.shard))

    async def _finished_result(self, id: int, pending: Pending) -> None:
        host = self._process.host
        try:
            call: Any = decode_call(pending.call.args)
            found = await host.read("find", (call.id,), host.durable_lsn)
        except (FuseeError, msgspec.DecodeError):
            return  # the worker that comes will say what is wrong
        if found is not None and found.finished is not None and self._pending.pop(id, None) is not None:
            value = msgspec.msgpack.encode(Outcome(found.status, found.result or b"", found.reason, found.type))
            pending.answer(m.encode(m.Reply(value), pending.request, pending.shard))


class ClientConnection(Stream):
    """A client's connection to this shard process."""

    def __init__(self, process: ShardProcess) -> None:
        super().__init__()
        self._process = process
        self._is_greeted = False

    def received(self, frame: Frame) -> None:
        if frame.kind == Kind.CLIENT_HELLO:
            m.decode(frame)
            self._is_greeted = True
            self.send(m.ClientWelcome(self._process.server, self._process.shards), frame.request)
        elif not self._is_greeted:
            raise Rejected(f"a client begins with CLIENT_HELLO, this one with a frame of kind {frame.kind}")
        elif frame.kind == Kind.CALL:
            self._process.call(frame, self.send_bytes, self)
        elif frame.kind == Kind.CANCEL:
            self._process.cancel_call(frame, self)
        elif frame.kind == Kind.PING:
            self.send_bytes(encode_frame(Kind.PONG, frame.body, frame.request))
        else:
            raise Rejected(f"a client does not send frames of kind {frame.kind} to a shard")

    def lost(self, reason: str) -> None:
        self._process.client_lost(self)
