# The right to append to the shard, and the connection of the worker that has it.
#
# Rule 1: only the holder of the current epoch appends; anything under another epoch is refused at the door.
# Rule 2: what a lease accepted is flushed before the next grant is answered: the grant's record follows it in the log.
# Rule 3: silence ends a lease, but only silence in which this process listened: when its own loop was held up, the time does
#         not count against the worker, nor does the time in which it did not listen to the worker because the disk was behind.
# Rule 4: what the keeper could not fold is not appended: it would halt the shard for ever, for one worker's fault.
# Rule 5: what a holder sends and the disk has not taken is bounded: beyond the bound it is not listened to.
from __future__ import annotations

import asyncio
import struct
from typing import TYPE_CHECKING, Final

from fusee_mp.bounds import APPENDED_BYTES_MAX
from fusee_mp.core import records as r
from fusee_mp.errors import FuseeError, ProtocolError
from fusee_mp.ring.transport import LinkTransport
from fusee_mp.security.token import Token
from fusee_mp.wire import messages as m
from fusee_mp.wire.frames import Frame
from fusee_mp.wire.kinds import Kind
from fusee_mp.wire.records import unpack_records
from fusee_mp.wire.stream import Stream

if TYPE_CHECKING:
    from fusee_mp.shardproc.process import ShardProcess

_APPEND: Final = struct.Struct("<QI")
_TO_SHARDS: Final = (*r.MESSAGES, r.Acked)


class Lease:
    """A granted lease. LSNs after `base_lsn` are its appends, numbered from 1."""

    __slots__ = ("connection", "worker", "instance", "epoch", "base_lsn", "appended")

    def __init__(self, connection: WorkerConnection, worker: str, instance: str, epoch: int, base_lsn: int) -> None:
        self.connection = connection
        self.worker = worker
        self.instance = instance
        self.epoch = epoch
        self.base_lsn = base_lsn
        self.appended = 0

    @property
    def holder(self) -> str:
        return f"{self.worker}/{self.instance}"


class WorkerConnection(Stream):
    """A worker's connection to this shard, from its LEASE to its end."""

    def __init__(self, process: ShardProcess, token: Token) -> None:
        super().__init__()
        self._process = process
        self.token = token
        self._asked = False
        self.lease: Lease | None = None

    def opened(self) -> None:
        if isinstance(self._transport, LinkTransport):
            self._transport.stay_awake_while(self._process.spin.is_on)

    def received(self, frame: Frame) -> None:
        if frame.kind == Kind.APPEND:
            self._append(frame)
        elif frame.kind == Kind.LEASE:
            self._ask(m.decode(frame), frame.request)
        elif frame.kind == Kind.PING:
            self.send_bytes(m.encode(m.Pong(m.decode(frame).stamp)))  # type: ignore[attr-defined]
        elif self._is_current(frame):
            self._process.from_worker(frame)
        # else: sent under a lease that has ended meanwhile; its sender was told

    def _is_current(self, frame: Frame) -> bool:
        # An acknowledgment bears the epoch of the lease that sent the message.
        lease = self.lease
        return lease is not None and lease is self._process.lease and (frame.epoch == lease.epoch or frame.kind == Kind.RELAY_ACK)

    def _ask(self, message: m.Message, request: int) -> None:
        assert isinstance(message, m.Lease)
        if self._asked:
            raise ProtocolError("a connection asks for one lease: open another connection")
        if message.shard != self._process.shard:
            raise ProtocolError(f"this is shard {self._process.shard}, not {message.shard}")
        self._asked = True
        self._process.spawn(self._process.grant(self, message, request))

    def _append(self, frame: Frame) -> None:
        self._process.spin.stop()
        lease = self.lease
        if lease is None or lease is not self._process.lease or frame.epoch != lease.epoch:
            self.send(m.Revoked(f"epoch {frame.epoch} has ended"), shard=self._process.shard, epoch=frame.epoch)
            return
        body = frame.body
        if len(body) <= _APPEND.size:
            raise ProtocolError(f"an APPEND has a first number, a count and records, this one {len(body)} bytes")
        first, count = _APPEND.unpack_from(body)
        if first != lease.appended + 1:
            raise ProtocolError(f"append {first} came where {lease.appended + 1} was due: appends are numbered without gaps")
        records = body[_APPEND.size:]
        _check_records(first, count, records, self._process.shards)
        host = self._process.host
        try:
            host.append(records, count)
        except FuseeError as e:
            # What is not in the log cannot be acknowledged, and later appends would leave a gap: the worker starts again from the log.
            self._process.end_lease(f"{e.code}: {e.message}")
            return
        lease.appended += count
        if host.pending_bytes > APPENDED_BYTES_MAX:
            self.hold_back()

    def lost(self, reason: str) -> None:
        self._process.worker_lost(self, reason)


def _check_records(first: int, count: int, records: bytes, shards: int) -> None:
    """What is in the log must be foldable for ever, so what is not never gets there."""
    if not count:
        raise ProtocolError(f"append {first} has no records")
    for number, record in enumerate(unpack_records(records, count)):
        try:
            found = r.read(record)
        except ValueError as e:
            raise ProtocolError(f"record {number} of append {first} cannot be read: {e}. Use the same version on both sides") from e
        if type(found) is r.Grant:
            raise ProtocolError(f"record {number} of append {first} is a grant, which the shard process writes, not its holder")
        if isinstance(found, _TO_SHARDS) and found.to >= shards:
            raise ProtocolError(f"record {number} of append {first} names shard {found.to}, this server has shards 0 to {shards - 1}")


class LivenessWatch:
    """Ends a lease whose worker has been silent for `revoke_s`."""

    def __init__(self, process: ShardProcess, ping_s: float, revoke_s: float) -> None:
        self._process = process
        self._ping_s = ping_s
        self._revoke_s = revoke_s
        self._loop = asyncio.get_running_loop()
        self._looked_at = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """A lease was granted."""
        self._looked_at = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(self._ping_s, self._look)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        lease = self._process.lease
        if lease is None:
            return
        now, connection = self._loop.time(), lease.connection
        held_up = now - self._looked_at - self._ping_s
        if connection.is_held_back:
            connection.heard_at = now
        elif held_up > self._ping_s / 2:
            connection.heard_at = min(now, connection.heard_at + held_up)
        self._looked_at = now
        silent = now - connection.heard_at
        if silent > self._revoke_s:
            self._process.end_lease(f"nothing was heard of the worker for {silent:.1f} s")
        else:
            self._timer = self._loop.call_later(self._ping_s, self._look)
