# Messages between the holders of shards, through the shard processes.
#
# The server does not look into them and promises nothing about them: senders send again what is not acknowledged. What it does
# promise is who may speak: a message leaves only under the sender's current epoch, and an acknowledgment reaches only the lease
# that sent the message.
from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from fusee_mp.bounds import MIB
from fusee_mp.errors import FuseeError, ProtocolError
from fusee_mp.ring.link import Link, LinkFds
from fusee_mp.wire import messages as m
from fusee_mp.wire.frames import Frame, decode_frame, encode_frame
from fusee_mp.wire.kinds import Kind

if TYPE_CHECKING:
    from fusee_mp.shardproc.process import ShardProcess

LOG: Final = logging.getLogger("fusee_mp.shard")
# Kept for a shard that nobody holds, and queued for a peer that is slow; beyond it the sender sends again later.
KEPT_BYTES_MAX: Final = 16 * MIB
QUEUED_BYTES_MAX: Final = 64 * MIB


class Relay:
    """The links of this shard process to the others, and the messages kept for a holder to come."""

    def __init__(self, process: ShardProcess) -> None:
        self._process = process
        self._links: dict[int, Link] = {}
        self._kept: dict[tuple[int, int], bytes] = {}
        self._kept_bytes = 0

    def connect(self, shard: int, ends: LinkFds) -> None:
        """A link to another shard process; it takes the place of an older one."""
        old = self._links.pop(shard, None)
        if old is not None:
            old.close()
            self._lost(shard)
        self._links[shard] = Link(
            self._process.loop, ends, lambda data: self._from_peer(shard, data), lambda reason: self._ended(shard, reason)
        )

    def _ended(self, shard: int, reason: str) -> None:
        LOG.info("link of shard %d to shard %d ended: %s", self._process.shard, shard, reason)
        self._links.pop(shard, None)
        self._lost(shard)

    def _lost(self, shard: int) -> None:
        self._process.calls.waiting.forget(shard)
        self._process.clients.forwarded.unreachable(shard)
        self._process.permits.peer_lost(shard)

    def to_peer(self, shard: int, frame: bytes, *, surely: bool = False) -> bool:
        """Send a frame to another shard process. False when it cannot be taken now. `surely`: whatever is queued, for as long as the link
        is there; for what is bounded elsewhere, and is not said again."""
        link = self._links.get(shard)
        if link is None or link.queued_bytes > QUEUED_BYTES_MAX and not surely:
            return False
        link.send(frame)
        return True

    # From this shard's holder.

    def send(self, frame: Frame) -> None:
        """The holder sends messages to another shard, or to its own."""
        message = m.decode(frame)
        assert isinstance(message, m.Relay)
        if message.target >= self._process.shards:
            raise ProtocolError(f"RELAY names shard {message.target}, this server has {self._process.shards} shards")
        deliver = m.encode(m.Deliver(self._process.shard, message.first, message.entries), 0, message.target, frame.epoch)
        if message.target == self._process.shard:
            self._deliver(deliver)
        else:
            self.to_peer(message.target, deliver)

    def acknowledge(self, frame: Frame) -> None:
        """The holder acknowledges what another shard sent; the frame's epoch is that of the sender's lease."""
        message = m.decode(frame)
        assert isinstance(message, m.RelayAck)
        if message.target != self._process.shard:
            raise ProtocolError(f"RELAY_ACK speaks for shard {message.target} on the connection of shard {self._process.shard}")
        data = encode_frame(frame.kind, frame.body, 0, message.source, frame.epoch)
        if message.source == self._process.shard:
            self._acknowledged(decode_frame(data))
        else:
            self.to_peer(message.source, data)

    # From another shard process.

    def _from_peer(self, shard: int, data: bytes) -> None:
        frame: Frame | None = None
        try:
            frame = decode_frame(data)
            if frame.kind == Kind.DELIVER:
                self._deliver(data)
            elif frame.kind == Kind.RELAY_ACK:
                self._acknowledged(frame)
            elif frame.kind == Kind.CALL:
                self._process.calls.take(frame, lambda answer: self._answer(shard, answer), shard)
            elif frame.kind == Kind.CANCEL:
                self._process.calls.waiting.cancel(shard, frame.request)
            elif frame.kind == Kind.PERMIT_SAY:
                say = m.decode(frame)
                assert isinstance(say, m.PermitSay)
                self._process.permits.take(shard, frame.epoch, say)
            elif frame.kind == Kind.PERMIT_ANSWER:
                self._process.permits.deliver(frame.epoch, data)
            else:
                self._process.clients.forwarded.answered(frame)
        except FuseeError as e:
            LOG.error("shard %d sent what shard %d cannot use: %s", shard, self._process.shard, e)
            if frame is not None and frame.kind == Kind.CALL:
                self._answer(shard, m.encode(m.error_message(e), frame.request, frame.shard))

    def _answer(self, shard: int, frame: bytes) -> None:
        self.to_peer(shard, frame, surely=True)

    def _deliver(self, data: bytes) -> None:
        lease = self._process.lease
        if lease is not None:
            lease.connection.send_bytes(data)
        else:
            self._keep(data)

    def _keep(self, data: bytes) -> None:
        # What is sent again begins with the same number, and takes the place of what it repeats.
        deliver = m.decode(decode_frame(data))
        assert isinstance(deliver, m.Deliver)
        key = deliver.source, deliver.first
        size = self._kept_bytes + len(data) - len(self._kept.get(key, b""))
        if size <= KEPT_BYTES_MAX:
            self._kept[key] = data
            self._kept_bytes = size

    def _acknowledged(self, frame: Frame) -> None:
        lease = self._process.lease
        if lease is not None and lease.epoch == frame.epoch:
            lease.connection.send_bytes(encode_frame(frame.kind, frame.body, 0, frame.shard, frame.epoch))

    def granted(self) -> None:
        """There is a holder: it gets what was kept, in order."""
        kept, self._kept, self._kept_bytes = self._kept, {}, 0
        for data in kept.values():
            self._deliver(data)

    def close(self) -> None:
        for link in self._links.values():
            link.close()
        self._links.clear()
