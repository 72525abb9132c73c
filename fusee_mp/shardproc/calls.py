# Calls on their way: from a client, or from another shard process for its client, to the worker that holds the shard, and back.
#
# Rule 1: a call stays here until it is answered or nobody waits for it. At each grant the unanswered ones go to the new holder,
#         marked as repeats, since the old one may have carried them out.
# Rule 2: what waits is bounded in number and in bytes, of all and of each connection; beyond it a caller hears Busy, and nothing of its
#         call was recorded.
# Rule 3: what the store can answer (reads, the result of a finished run) needs no worker, nor do limits, which are this process's own.
# Rule 4: whoever does not take its answers has few questions with the keeper. The others wait here, and cost no memory of an answer.
from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

import msgspec

from fusee_mp.bounds import (
    ANSWER_BYTES_MAX,
    CALLS_OF_ONE_BYTES_MAX,
    CALLS_OF_ONE_MAX,
    CALLS_WAITING_BYTES_MAX,
    CALLS_WAITING_MAX,
    FAILURE_BYTES_MAX,
    FRAME_BYTES_MAX,
    READS_AT_ONCE,
    READS_OF_ONE_MAX,
    READS_WAITING_MAX,
    SHARDS_MAX,
)
from fusee_mp.core.calls import LimitCall, Outcome, ResultCall, StartedCall, decode_call
from fusee_mp.errors import Busy, FuseeError, PayloadError, Rejected, StorageFull, Unavailable
from fusee_mp.shardproc.waiting import CLIENT_READS, GAVE_WAY, WAITS, Bounds, Waiting
from fusee_mp.store.reads import READS
from fusee_mp.wire import messages as m
from fusee_mp.wire.frames import Frame, encode_frame
from fusee_mp.wire.stream import Stream

if TYPE_CHECKING:
    from fusee_mp.shardproc.process import ShardProcess

READ_TIMEOUT_S: Final = 10.0
assert CLIENT_READS <= set(READS)
OF_ALL: Final = Bounds(CALLS_WAITING_MAX, CALLS_WAITING_BYTES_MAX, READS_WAITING_MAX)
OF_ONE: Final = Bounds(CALLS_OF_ONE_MAX, CALLS_OF_ONE_BYTES_MAX, READS_OF_ONE_MAX)
# Holders that a call is given to, when each loses the shard soon after, and not in order: the call may be why.
TRIES_MAX: Final = 5
SOON_S: Final = 30.0
_LIMITS: Final = frozenset(("limit", "limits"))
_STARTS: Final = frozenset(("start", "start_with_update"))
# Payloads and attributes in one call, where it is not one. Beside them: IDs, names, what sealing adds.
_PAYLOADS: Final = {"start": 2, "start_with_update": 2}
CALL_ENVELOPE_BYTES: Final = 64 << 10
# Answers go to who asked: a client's connection, or the link to another shard process.
Answer = Callable[[bytes], None]


class Pending:
    """A call that is not answered: by the worker, or, with `reading`, by the keeper."""

    __slots__ = ("answer", "request", "shard", "owner", "call", "reading", "tries", "given_at", "number")

    def __init__(self, answer: Answer, frame: Frame, owner: object, call: m.Call) -> None:
        self.answer = answer
        self.request = frame.request
        self.number = frame.epoch
        self.shard = frame.shard
        self.owner = owner
        self.call = call
        self.reading: asyncio.Task[None] | None = None
        self.tries = 0  # holders that may have lost the shard because of it
        self.given_at = 0.0

    @property
    def asker(self) -> int:
        """Whose turns its questions take: those of a client here, or of one of another process, which numbers its own."""
        return self.number * SHARDS_MAX + self.owner if isinstance(self.owner, int) else id(self.owner)

    @property
    def method(self) -> str:
        return self.call.method

    @property
    def size(self) -> int:
        return len(self.call.args)

    def reply(self, value: bytes) -> None:
        self.answer(m.encode(m.Reply(value), self.request, self.shard))

    def fail(self, error: FuseeError) -> None:
        self.answer(m.encode(m.error_message(error), self.request, self.shard))


class ClientCalls:
    """The calls on one shard."""

    def __init__(self, process: ShardProcess) -> None:
        self._process = process
        self.waiting: Waiting[Pending] = Waiting(OF_ALL, OF_ONE, self._dropped)
        self._turns: WeakValueDictionary[int, asyncio.Semaphore] = WeakValueDictionary()  # held by those who wait for theirs
        self._unlooked: deque[int] = deque()  # calls whose answer the store may have, while nobody holds the shard
        self._looking: asyncio.Task[None] | None = None

    def take(self, frame: Frame, answer: Answer, owner: object) -> None:
        """A call on this shard came in. Raises ProtocolError when it cannot be read."""
        call = m.decode(frame)
        assert isinstance(call, m.Call)
        pending = Pending(answer, frame, owner, call)
        refusal = self._refusal(pending)
        if refusal is not None:
            pending.fail(refusal)
            return
        id = self.waiting.add(pending)
        if call.method in CLIENT_READS:
            pending.reading = self._process.spawn(self._answer_here(id, pending, self._read))
        elif call.method in _LIMITS:
            pending.reading = self._process.spawn(self._answer_here(id, pending, self._limit))
        elif self._process.lease is not None:
            self._forward(id, pending, call.repeat)
        elif call.method in WAITS:
            self._look([id])

    def _refusal(self, pending: Pending) -> FuseeError | None:
        shard, call = self._process.shard, pending.call
        if call.method in _STARTS and (why := self._process.host.refusal):
            return StorageFull(f"shard {shard} starts nothing new: {why}")
        if (size := pending.size) > (most := self._bytes_max(call.method)):
            return PayloadError(
                f'the call "{call.method}" has {size:,} bytes, over {most:,}, which is more than this server takes as payloads'
                f" ({self._process.options.payload_bytes_max:,} bytes each). Keep large values elsewhere and send their address", size=size)
        if full := self.waiting.lacks_own_room(pending):
            return Busy(
                f"shard {shard} has {full} waiting for this one connection, which is all that one connection may have. Nothing of this one"
                " was recorded: wait for answers before you send more")
        if full := self.waiting.make_room(pending, lambda gone: gone.fail(Busy(GAVE_WAY))):
            return Busy(f"shard {shard} has {full} waiting. Nothing of this one was recorded: try later")
        return None

    def _bytes_max(self, method: str) -> int:
        """What a call may have at most. The worker, which opens payloads, looks at each; what cannot fit is not even given to it."""
        if method in CLIENT_READS:
            return FRAME_BYTES_MAX
        payload = self._process.options.payload_bytes_max
        return CALL_ENVELOPE_BYTES + (max(payload, FAILURE_BYTES_MAX) if method == "complete" else payload * _PAYLOADS.get(method, 1))

    # The worker.

    def _forward(self, id: int, pending: Pending, repeat: bool) -> None:
        lease = self._process.lease
        assert lease is not None
        call = pending.call
        pending.tries += 1
        pending.given_at = self._process.loop.time()
        lease.connection.send(m.Call(call.method, call.args, repeat), id, self._process.shard, lease.epoch)

    def granted(self) -> None:
        """There is a new holder: it gets everything that is not answered."""
        self._unlooked.clear()
        for id, pending in self.waiting.items():
            if pending.reading is not None:
                continue
            if pending.tries >= TRIES_MAX and pending.call.method not in WAITS:
                self.waiting.take(id)
                pending.fail(Unavailable(
                    f'the call "{pending.call.method}" was given to {pending.tries} holders of shard {self._process.shard}, and each lost'
                    " the shard soon after: it may be the cause. Look at the workers' logs before you try it again"
                ))
            else:
                self._forward(id, pending, True)

    def freed(self, in_order: bool) -> None:
        """Nobody holds the shard, since its holder handed it back or lost it: the store may have what some wait for."""
        soon = self._process.loop.time() - SOON_S
        for _, pending in self.waiting.items():
            if pending.tries and (in_order or pending.given_at < soon):
                pending.tries -= 1
        self._look([id for id, pending in self.waiting.items() if pending.call.method in WAITS])

    def answered(self, frame: Frame) -> None:
        """The worker answers."""
        pending = self.waiting.take(frame.request)
        if pending is not None:
            pending.answer(encode_frame(frame.kind, frame.body, pending.request, pending.shard))

    def _dropped(self, id: int, pending: Pending) -> None:
        lease, reading = self._process.lease, pending.reading
        if reading is not None:
            pending.reading = None  # the cancelled task refers to what it had in hand, and must not be referred to by that
            reading.cancel()
        elif lease is not None:
            lease.connection.send(m.Cancel(), id, self._process.shard, lease.epoch)

    # This process, and its keeper.

    async def _answer_here(self, id: int, pending: Pending, answer: Callable[[Pending], Awaitable[None]]) -> None:
        try:
            await answer(pending)
        except FuseeError as e:
            pending.fail(e)
        finally:
            pending.reading = None  # as above
            self.waiting.take(id)

    @asynccontextmanager
    async def _turn(self, pending: Pending) -> AsyncIterator[None]:
        """One of the few turns of who asks, once it has taken its answers."""
        async with self._turns.setdefault(pending.asker, asyncio.Semaphore(READS_AT_ONCE)):
            if isinstance(pending.owner, Stream):
                await pending.owner.room()
            yield

    async def _read(self, pending: Pending) -> None:
        host, asker, method = self._process.host, pending.owner, pending.call.method
        async with self._turn(pending):
            value = await host.read_bytes(method, pending.call.args, host.durable_lsn, READ_TIMEOUT_S, pending.asker)
            if len(value) > ANSWER_BYTES_MAX:
                raise Rejected(f'the answer to "{method}" has {len(value)} bytes, over {ANSWER_BYTES_MAX}: ask for less at once')
            frames = m.encode_answer(m.Reply, value, pending.request, pending.shard)
            if not isinstance(asker, Stream):
                for frame in frames:
                    pending.answer(frame)
                return
            with self._process.clients.unread.holding(asker, len(value)):
                for frame in frames:
                    await asker.room()
                    pending.answer(frame)

    async def _limit(self, pending: Pending) -> None:
        """Limits are this process's own. Who looks at them takes turns; definitions are saved together, so they do not."""
        permits, call = self._process.permits, _limit_call(pending.call)
        if isinstance(call, LimitCall) and call.spec is not None:
            pending.reply(msgspec.msgpack.encode(await permits.call(call)))
            return
        async with self._turn(pending):
            await asyncio.sleep(0)  # let others in: nothing else here waits for anything
            found = permits.page(call) if isinstance(call, str) else await permits.call(call)
            pending.reply(msgspec.msgpack.encode(found))

    def _look(self, ids: list[int]) -> None:
        self._unlooked.extend(ids)
        if self._unlooked and self._looking is None:
            self._looking = self._process.spawn(self._look_all())

    async def _look_all(self) -> None:
        """Ask the store for one after the other, until there is a worker to ask."""
        try:
            while self._unlooked:
                id = self._unlooked.popleft()
                pending = self.waiting.get(id)
                if pending is not None:
                    await self._look_up(id, pending)
        finally:
            self._looking = None

    async def _look_up(self, id: int, pending: Pending) -> None:
        host = self._process.host
        try:
            call = decode_call(pending.call.args)
            if not isinstance(call, ResultCall | StartedCall):
                return  # as below
            found = await host.read("find", (call.id,), host.durable_lsn)
        except (FuseeError, msgspec.DecodeError):
            return  # the worker that comes will say what is wrong
        if found is None or pending.call.method == "result" and found.finished is None:
            return
        value = Outcome(found.status, found.result or b"", found.reason, found.type) if pending.call.method == "result" else None
        if self.waiting.take(id) is not None:
            pending.reply(msgspec.msgpack.encode(value))


def _limit_call(call: m.Call) -> str | LimitCall:
    """A look at one limit, its definition, or the name behind which a page begins."""
    try:
        if call.method == "limits":
            return msgspec.msgpack.decode(call.args, type=str)
        return msgspec.msgpack.decode(call.args, type=LimitCall)
    except msgspec.DecodeError as e:
        raise Rejected(f"a call on a limit cannot be read here: {e}. Use the same version on both sides") from e
