# Packets with descriptors over a Unix socket pair.
#
# The pair is of type SOCK_SEQPACKET: a packet arrives whole, and its descriptors with it and no other. (On a stream socket a
# read may return bytes of two sends and the descriptors of the second, and nothing says which bytes they belong to.)
#
# Who closes a descriptor:
#   to be sent      the channel, from the call of `send` on: after the packet went out, when sending failed, when the channel ends
#   received        the channel, until `on_packet` is called with it; from then on whoever was called
#   not asked for   the channel: a packet with more or fewer descriptors than its frame calls for is refused and they are closed
#   in flight       the kernel, when the socket is closed with packets unread
# Received descriptors are close-on-exec from their first moment (MSG_CMSG_CLOEXEC): no child started meanwhile inherits one.
"""`Channel`: frames with descriptors between two processes, on an asyncio loop. `pair` makes its sockets."""
from __future__ import annotations

import array
import asyncio
import contextlib
import errno
import logging
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence

from fusee_mp.bounds import PACKET_BYTES_MAX, PACKET_DESCRIPTORS_MAX
from fusee_mp.errors import Rejected, Unavailable

_log = logging.getLogger("fusee_mp.ring")
_DESCRIPTOR_BYTES = array.array("i").itemsize
_ANCILLARY_BYTES = socket.CMSG_SPACE(PACKET_DESCRIPTORS_MAX * _DESCRIPTOR_BYTES)
# Packets taken in one turn of the loop.
_PACKETS_PER_TURN = 32
# Kernel shortages that pass when receivers catch up: descriptors in flight over the user's limit, memory.
_PASSING = frozenset({errno.ETOOMANYREFS, errno.ENOBUFS, errno.ENOMEM})
_RETRY_SECONDS = 0.01


def pair() -> tuple[socket.socket, socket.socket]:
    """Two connected sockets for two channels; each closed by whoever holds it. Close-on-exec, as all of Python's."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


class Channel:
    """One end. Packets arrive whole, once and in order at `on_packet(frame, descriptors)`, which owns the descriptors.

    `expected` says how many descriptors a frame brings. A packet that brings others is refused, reported to the log and
    counted in `refused`; the channel goes on. `on_closed` is called once with the reason when the peer or the socket fails, and not
    after `close`. Owns `sock` from the call on.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        on_packet: Callable[[bytes, list[int]], None],
        on_closed: Callable[[str], None],
        expected: Callable[[bytes], int],
    ) -> None:
        self._loop, self._sock = loop, sock
        self._on_packet, self._on_closed, self._expected = on_packet, on_closed, expected
        self._queue: deque[tuple[bytes, tuple[int, ...]]] = deque()
        self._queued_bytes = 0
        self._closed: str | None = None
        self.refused = 0
        sock.setblocking(False)
        loop.add_reader(sock.fileno(), self._on_readable)

    @property
    def queued_bytes(self) -> int:
        """Bytes sent that the socket did not yet take."""
        return self._queued_bytes

    @property
    def is_closed(self) -> bool:
        return self._closed is not None

    def send(self, frame: bytes, descriptors: Sequence[int] = ()) -> None:
        """Hand over a frame and descriptors, which are closed here once they are sent, or cannot be: on every path.

        Queues in memory while the socket is full. Raises Rejected for a frame that is empty or over PACKET_BYTES_MAX or too many
        descriptors, Unavailable on a closed channel.
        """
        try:
            self._check(frame, descriptors)
        except BaseException:
            _close_all(descriptors)
            raise
        self._queue.append((frame, tuple(descriptors)))
        self._queued_bytes += len(frame)
        if len(self._queue) == 1:
            self._flush()

    def close(self) -> None:
        """Close the socket and every descriptor not yet sent. A second call does nothing."""
        self._shut("it was closed on this side")

    def _check(self, frame: bytes, descriptors: Sequence[int]) -> None:
        if self._closed is not None:
            raise Unavailable(f"the channel is closed: {self._closed}")
        if not 0 < len(frame) <= PACKET_BYTES_MAX:
            raise Rejected(f"a packet has 1 to {PACKET_BYTES_MAX} bytes, this one has {len(frame)}: send it over a link or a connection")
        if len(descriptors) > PACKET_DESCRIPTORS_MAX:
            raise Rejected(f"a packet brings at most {PACKET_DESCRIPTORS_MAX} descriptors, this one has {len(descriptors)}")

    def _shut(self, reason: str) -> None:
        if self._closed is not None:
            return
        self._closed = reason
        self._loop.remove_reader(self._sock.fileno())
        self._loop.remove_writer(self._sock.fileno())
        self._sock.close()
        for _, descriptors in self._queue:
            _close_all(descriptors)
        self._queue.clear()
        self._queued_bytes = 0

    def _fail(self, reason: str) -> None:
        if self._closed is None:
            self._shut(reason)
            self._on_closed(reason)

    # Sending

    def _flush(self) -> None:
        try:
            while self._queue:
                self._send_packet(*self._queue[0])
                self._queued_bytes -= len(self._queue[0][0])
                _close_all(self._queue.popleft()[1])
        except BlockingIOError:
            self._loop.add_writer(self._sock.fileno(), self._on_writable)
        except OSError as error:
            if error.errno in _PASSING:
                self._loop.call_later(_RETRY_SECONDS, self._flush)
                return
            # Not from within `send`: its caller expects to come back to an open channel.
            self._loop.call_soon(self._fail, f"sending failed: {error}")

    def _send_packet(self, frame: bytes, descriptors: tuple[int, ...]) -> None:
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        self._sock.sendmsg([frame], ancillary, socket.MSG_NOSIGNAL)

    def _on_writable(self) -> None:
        self._loop.remove_writer(self._sock.fileno())
        self._flush()

    # Receiving

    def _on_readable(self) -> None:
        for _ in range(_PACKETS_PER_TURN):
            if self._closed is not None or not self._receive_packet():
                return

    def _receive_packet(self) -> bool:
        """Take one packet; False when there is none."""
        try:
            frame, ancillary, flags, _ = self._sock.recvmsg(PACKET_BYTES_MAX, _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            self._fail(f"receiving failed: {error}")
            return False
        if not frame:
            _close_all(_descriptors(ancillary))
            self._fail("the peer closed the channel, or its process ended")
            return False
        self._deliver(frame, _descriptors(ancillary), flags)
        return True

    def _deliver(self, frame: bytes, descriptors: list[int], flags: int) -> None:
        wrong = self._what_is_wrong(frame, descriptors, flags)
        if wrong:
            _close_all(descriptors)
            self.refused += 1
            _log.warning("refused a packet of %d bytes with %d descriptors: %s", len(frame), len(descriptors), wrong)
        else:
            self._on_packet(frame, descriptors)

    def _what_is_wrong(self, frame: bytes, descriptors: list[int], flags: int) -> str:
        if flags & socket.MSG_TRUNC:
            return f"it is longer than {PACKET_BYTES_MAX} bytes"
        expected = self._expected(frame)
        if flags & socket.MSG_CTRUNC:
            return f"more than {PACKET_DESCRIPTORS_MAX} descriptors came, or this process has no room for {expected} more (see ulimit -n)"
        if len(descriptors) != expected:
            return f"its frame calls for {expected} descriptors"
        return ""


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    found = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(data[:len(data) - len(data) % _DESCRIPTOR_BYTES])
    return found.tolist()


def _close_all(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        with contextlib.suppress(OSError):  # one that is no descriptor must not keep the others open
            os.close(descriptor)
