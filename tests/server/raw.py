"""Peers that speak frames by hand, over blocking sockets."""
from __future__ import annotations

import socket
from collections import deque
from types import TracebackType
from typing import Any, TypeVar

from fusee_mp.core.calls import encode_call
from fusee_mp.core.records import Fired, encode, frame
from fusee_mp.wire import messages as m
from fusee_mp.wire.frames import Frame, FrameDecoder
from fusee_mp.wire.preface import ConnectionKind, Preface
from fusee_mp.wire.records import pack_records

PATIENCE_S = 30.0
M = TypeVar("M", bound=m.Message)


class Raw:
    """One connection, from its preface on."""

    def __init__(self, address: str, preface: Preface, source: str = "127.0.0.1") -> None:
        host, _, port = address.rpartition(":")
        self.sock = socket.create_connection((host, int(port)), PATIENCE_S, (source, 0))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.sendall(preface.encode())
        self._decoder = FrameDecoder()
        self._frames: deque[Frame] = deque()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self.sock.close()

    def send(self, message: m.Message, request: int = 0, shard: int = 0, epoch: int = 0) -> None:
        self.sock.sendall(m.encode(message, request, shard, epoch))

    def frame(self) -> Frame | None:
        """The next frame, or None at the end of the stream."""
        while not self._frames:
            data = self.sock.recv(1 << 16)
            if not data:
                return None
            self._frames.extend(self._decoder.feed(data))
        return self._frames.popleft()

    def expect(self, kind: type[M]) -> tuple[Frame, M]:
        """The next frame of this kind; others before it are skipped, as every reader must."""
        while True:
            frame = self.frame()
            assert frame is not None, f"the connection ended before {kind.__name__} came"
            message = m.decode(frame)
            if isinstance(message, kind):
                return frame, message

    def ask(self, message: m.Message, kind: type[M], request: int = 7, shard: int = 0, epoch: int = 0) -> M:
        """Send a question; the answer of this kind, or the assertion fails with what came for it instead."""
        self.send(message, request, shard, epoch)
        skipped: list[m.Message] = []
        while True:
            frame = self.frame()
            assert frame is not None, f"the connection ended before the answer came, after {skipped}"
            answer = m.decode(frame)
            if frame.request == request:
                assert isinstance(answer, kind), f"expected {kind.__name__}, found {answer}"
                return answer
            skipped.append(answer)

    def goodbye(self) -> str:
        """Why the other side ends the connection; it must end it."""
        _, last = self.expect(m.Goodbye)
        try:
            assert self.frame() is None
        except ConnectionError:
            pass
        return last.reason


class RawLease(Raw):
    """A lease, asked for and granted."""

    def __init__(self, address: str, worker: str, shard: int, instance: str = "1") -> None:
        super().__init__(address, Preface(ConnectionKind.WORKER, shard))
        self.shard = shard
        self.granted = self.ask(m.Lease(worker, instance, shard), m.Granted, shard=shard)
        self.epoch = self.granted.epoch
        self._next = 1

    def append(self, count: int = 1, epoch: int | None = None) -> None:
        """Append records that mean nothing."""
        records = frame(encode(Fired(1_000_000, 0, "1"))) * count
        self.send(m.Append(self._next, count, records), shard=self.shard, epoch=self.epoch if epoch is None else epoch)
        self._next += count

    def durable(self, through: int) -> m.Durable:
        while True:
            _, durable = self.expect(m.Durable)
            if durable.through >= through:
                return durable

    def relay(self, target: int, first: int, *entries: bytes, epoch: int | None = None) -> None:
        self.send(m.Relay(target, first, pack_records(entries)), shard=self.shard, epoch=self.epoch if epoch is None else epoch)

    def delivered(self) -> tuple[int, int, int, int, bytes]:
        """(to, from, the sender's epoch, first number, entries) of the next DELIVER."""
        frame, deliver = self.expect(m.Deliver)
        assert frame.request == 0
        return frame.shard, deliver.source, frame.epoch, deliver.first, deliver.entries

    def acknowledge(self, source: int, epoch: int, through: int) -> None:
        self.send(m.RelayAck(source, self.shard, through), shard=self.shard, epoch=epoch)

    def acknowledged(self) -> tuple[int, int, int]:
        """(sending shard, its epoch, through) of the next RELAY_ACK."""
        frame, ack = self.expect(m.RelayAck)
        assert ack.source == frame.shard == self.shard
        return ack.source, frame.epoch, ack.through


class RawClient(Raw):
    """A client of one shard process, welcomed."""

    def __init__(self, address: str, shard: int) -> None:
        super().__init__(address, Preface(ConnectionKind.CLIENT_SHARD, shard))
        self.welcome = self.ask(m.ClientHello("raw"), m.ClientWelcome)

    def call(self, call: Any, request: int, shard: int, repeat: bool = False) -> None:
        self.send(m.Call(call.__struct_config__.tag, encode_call(call), repeat), request, shard)
