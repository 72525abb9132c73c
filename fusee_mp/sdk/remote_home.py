# The home of a shard whose log is in a shard process: the worker's end of a lease.
#
# Rule 1: appends are numbered from 1 within the lease, without gaps; the LSN of an append is the lease's base plus its number.
# Rule 2: a body starts, and an answer leaves, only within ACT_SHARE of the time after which silence ends a lease, counted from a ping
#         that the shard process has answered, on a clock that goes on while the machine sleeps: a worker that was frozen must not
#         repeat what its successor has done meanwhile.
# Rule 3: when the connection is lost the lease is lost, and with it everything that was not acknowledged.
from __future__ import annotations

import asyncio
import logging
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec

from fusee_mp.bounds import FRAME_BYTES_MAX, KIB, MIB, RECORD_BYTES_MAX
from fusee_mp.core.calls import decode_call
from fusee_mp.core.records import LENGTH_BYTES, unframe
from fusee_mp.errors import FuseeError, LeaseLost, PayloadError, ProtocolError, Rejected
from fusee_mp.payload.sealing import PLAIN, Payloads
from fusee_mp.ring.transport import LinkTransport
from fusee_mp.runtime.shard_runtime import ShardRuntime
from fusee_mp.sdk.connection import Connection
from fusee_mp.sdk.remote_limits import RemoteLimits
from fusee_mp.store.reads import question
from fusee_mp.store.results import State
from fusee_mp.wire import messages as m
from fusee_mp.wire.frames import Frame, encode_frame
from fusee_mp.wire.hangup import Hangup
from fusee_mp.wire.kinds import Kind
from fusee_mp.wire.preface import ConnectionKind, Preface
from fusee_mp.wire.records import pack_records
from fusee_mp.wire.spin import Spin

LOG: Final = logging.getLogger("fusee_mp.worker")
ACT_SHARE: Final = 0.8
SILENCE_S: Final = 10.0  # of the server, at least; then this side gives the connection up
RELAY_BYTES: Final = 1 * MIB
assert RELAY_BYTES + RECORD_BYTES_MAX + 64 * KIB < FRAME_BYTES_MAX
# So few records are one run's step; a flush and the way there and back take less than this on a disk that is fast.
SPIN_RECORDS_MAX: Final = 2
SPIN_S: Final = 0.0004
# A lease ends with its connection, and the next holder may act in a few ms. So when the loop was not there for longer than this, the
# kernel is asked whether the connection is, before anything is done under the lease.
HANGUP_S: Final = 0.002
_APPEND: Final = struct.Struct("<QI")
_DURABLE: Final = struct.Struct("<QQQ")
_clock: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

Reply = Callable[[Any, "FuseeError | None"], None]


class RemoteHome(Connection):
    """A lease over one connection. `local` finds the runtime of another shard that this process holds, or None."""

    def __init__(
        self, shard: int, welcome: m.Welcome, local: Callable[[int], ShardRuntime | None], on_lost: Callable[[RemoteHome, str], None],
        payloads: Payloads = PLAIN, on_lack: Callable[[int, str], None] = lambda shard, workflow: None,
    ) -> None:
        super().__init__(Preface(ConnectionKind.WORKER, shard))
        self.beat_s = welcome.ping_ms / 1000
        self.beats_max = max(3, round(SILENCE_S / self.beat_s))
        self._act_s = welcome.revoke_ms / 1000 * ACT_SHARE
        self.shard = shard
        self._payloads = payloads
        self.epoch = 0
        self.base_lsn = 0
        self.runtime: ShardRuntime | None = None
        self._local = local
        self._on_lost, self._on_lack = on_lost, on_lack
        self._next = 1
        self._sender_epochs: dict[int, int] = {}
        self._calls: dict[int, Reply] = {}
        self._answered_ping = self._looked = 0.0
        self._hangup: Hangup | None = None
        self._early: list[Frame] = []
        self.gone = asyncio.Event()
        self._spin = Spin(asyncio.get_running_loop(), SPIN_S, time.perf_counter)
        self.limits = RemoteLimits(
            asyncio.get_running_loop(), shard, welcome.shards, lambda say, home: self.send(say, 0, home, self.epoch),
        )

    async def lease(self, worker: str, instance: str) -> State:
        """Ask for the lease. Raises the FuseeError of a refusal, Unavailable."""
        asked_at = time.clock_gettime(_clock)
        granted = await self.ask(m.Lease(worker, instance, self.shard), self.shard)
        if not isinstance(granted, m.Granted):
            raise ProtocolError(f"expected GRANTED from shard {self.shard}, found {type(granted).KIND.name}: upgrade the older side")
        self.epoch, self.base_lsn = granted.epoch, granted.base_lsn
        self._answered_ping = asked_at
        if self._transport is not None:
            self._hangup = Hangup(self._transport)
        if isinstance(self._transport, LinkTransport):
            self._transport.stay_awake_while(self._spin.is_on)
        return msgspec.msgpack.decode(granted.state, type=State)

    def attach(self, runtime: ShardRuntime) -> None:
        """What comes for the shard goes to this runtime, also what came before."""
        self.runtime = runtime
        early, self._early = self._early, []
        for frame in early:
            self.unasked(frame)

    def hand_back(self) -> None:
        """Give the lease back: nothing runs here any more."""
        self.send(m.Return(), 0, self.shard, self.epoch)
        self.close("the lease was handed back")

    # Home

    refusal = ""  # the shard process refuses new work itself

    def append(self, records: bytes, count: int) -> None:
        self.send_bytes(encode_frame(Kind.APPEND, _APPEND.pack(self._next, count) + records, 0, self.shard, self.epoch))
        self._next += count
        if count <= SPIN_RECORDS_MAX:
            self._spin.start()

    def give_up(self, reason: str) -> None:
        self.abort(reason)

    def lacks(self, workflow: str) -> None:
        self._on_lack(self.shard, workflow)

    def may_act(self) -> bool:
        now = time.clock_gettime(_clock)
        if now - self._looked > HANGUP_S:
            self._looked = now
            if self._hangup is not None and self._hangup.has_come():
                self._act_s = 0.0  # never again
        return now - self._answered_ping < self._act_s

    async def read(self, method: str, args: tuple[Any, ...], min_lsn: int = 0) -> Any:
        value = await self.ask(m.Read(method, msgspec.msgpack.encode(args), min_lsn), self.shard, self.epoch)
        if not isinstance(value, m.Value):
            raise ProtocolError(f"expected VALUE from shard {self.shard}, found {type(value).KIND.name}: upgrade the older side")
        return msgspec.msgpack.decode(value.value, type=question(method).result)

    def relay(self, to: int, messages: Sequence[tuple[int, bytes]]) -> None:
        local = self._local(to)
        if local is not None:
            # From a callback of its own: the receiving runtime must not run within the sending one.
            local.loop.call_soon(local.deliver, self.shard, [message for _, message in messages])
            return
        for some in _by_size(messages):
            self.send(m.Relay(to, some[0][0], pack_records([message for _, message in some])), 0, self.shard, self.epoch)

    def relay_ack(self, sender: int, through: int) -> None:
        local = self._local(sender)
        if local is not None:
            local.loop.call_soon(local.relay_acked, self.shard, through)
        elif (epoch := self._sender_epochs.get(sender)) is not None:
            self.send(m.RelayAck(sender, self.shard, through), 0, self.shard, epoch)

    # Frames that come unasked.

    def unasked(self, frame: Frame) -> None:
        runtime = self.runtime
        kind = frame.kind
        if runtime is None:
            if kind not in (Kind.PONG, Kind.REVOKED):
                self._early.append(frame)
                return
        elif kind == Kind.DURABLE:
            through, _, applied = _DURABLE.unpack(frame.body)
            self._spin.stop()
            runtime.durable(self.base_lsn + through)
            runtime.applied(self.base_lsn + applied)
            return
        elif kind == Kind.CALL:
            self._call(runtime, frame)
            return
        elif kind == Kind.CANCEL:
            reply = self._calls.pop(frame.request, None)
            if reply is not None:
                runtime.calls.forget(reply)
            return
        elif kind == Kind.DELIVER:
            self._delivered(runtime, frame)
            return
        elif kind == Kind.RELAY_ACK:
            ack = m.decode(frame)
            assert isinstance(ack, m.RelayAck)
            runtime.relay_acked(ack.target, ack.through)
            return
        elif kind == Kind.PERMIT_ANSWER:
            answer = m.decode(frame)
            assert isinstance(answer, m.PermitAnswer)
            self.limits.answered(answer)
            return
        if kind == Kind.PONG:
            self._ponged(frame)
        elif kind == Kind.REVOKED:
            revoked = m.decode(frame)
            assert isinstance(revoked, m.Revoked)
            self.abort(f"the lease was revoked: {revoked.reason}")

    def received(self, frame: Frame) -> None:
        # Calls are numbered by the shard process, answers by this side.
        if frame.kind in (Kind.CALL, Kind.CANCEL):
            self.unasked(frame)
        else:
            super().received(frame)

    def _delivered(self, runtime: ShardRuntime, frame: Frame) -> None:
        deliver = m.decode(frame)
        assert isinstance(deliver, m.Deliver)
        self._sender_epochs[deliver.source] = frame.epoch
        try:
            runtime.deliver(deliver.source, unframe(deliver.entries))
        except ValueError as e:  # nothing was taken: the sender sends again, and again until it is mended
            LOG.error("shard %d: messages %d.. of shard %d cannot be read: %s", self.shard, deliver.first, deliver.source, e)

    def _call(self, runtime: ShardRuntime, frame: Frame) -> None:
        message = m.decode(frame)
        assert isinstance(message, m.Call)
        request = frame.request

        def reply(value: Any, error: FuseeError | None) -> None:
            self._calls.pop(request, None)
            if error is None:
                self.send(m.Reply(msgspec.msgpack.encode(self._payloads.sealed_answer(value))), request, self.shard, self.epoch)
            elif not isinstance(error, LeaseLost):  # then the shard's next holder answers
                self.send(m.error_message(self._payloads.sealed_error(error)), request, self.shard, self.epoch)

        try:
            call = self._payloads.opened(decode_call(message.args))
        except PayloadError as e:
            reply(None, e)
            return
        except msgspec.DecodeError as e:
            reply(None, Rejected(f'the call "{message.method}" cannot be read here: {e}. Use the same version on both sides'))
            return
        if call.__struct_config__.tag != message.method:  # what it may do was judged by its method
            reply(None, Rejected(f'the call "{message.method}" carries a call "{call.__struct_config__.tag}"'))
            return
        if message.repeat and hasattr(call, "repeat"):
            call.repeat = True
        self._calls[request] = reply
        runtime.call(call, reply)

    # Liveness.

    def stamp(self) -> int:
        return int(time.clock_gettime(_clock) * 1e6)

    def _ponged(self, frame: Frame) -> None:
        pong = m.decode(frame)
        assert isinstance(pong, m.Pong)
        could = self.may_act()
        self._answered_ping = pong.stamp / 1e6
        if not could and self.runtime is not None and self.may_act():
            self.runtime.work()

    def lost(self, reason: str) -> None:
        super().lost(reason)
        self.limits.close()
        self.gone.set()
        self._on_lost(self, reason)


def _by_size(messages: Sequence[tuple[int, bytes]]) -> Iterator[Sequence[tuple[int, bytes]]]:
    """The messages in pieces that fit a frame with room to spare."""
    start = size = 0
    for at, (_, message) in enumerate(messages):
        if size and size + len(message) > RELAY_BYTES:
            yield messages[start:at]
            start, size = at, 0
        size += len(message) + LENGTH_BYTES
    yield messages[start:]
