# Frames: how messages are cut out of a stream of bytes.
#
#   offset  bytes  field
#        0      4  length, u32: bytes after the first 8, so 21 and the body
#        4      4  CRC-32C, u32, of everything after it: kind, head and body
#        8      1  kind (messages.Kind)
#        9      8  request, u64: ties an answer to its question; 0 where there is none
#       17      4  shard, u32
#       21      8  epoch, u64: of the lease under which the frame was sent; 0 where there is none
#       29      n  body
#
# Numbers are little-endian. The length lies outside the CRC: a damaged one is caught by its bounds, or by the CRC of the wrong
# stretch of bytes. A length damaged within the bounds makes the decoder wait for bytes that a silent peer never sends: that is
# for the connection's ping to notice.
#
# Rule 1: a decoder that has seen damage is dead. It cannot know where the next frame begins.
# Rule 2: frames that came whole before the damage, in the same read, go with it. None was answered, so the peer sends them again.
"""Frames: `encode_frame`, `FrameDecoder` for streams and `decode_frame` for transports that keep boundaries."""
from __future__ import annotations

import struct

import msgspec

from fusee_mp.bounds import FRAME_BYTES_MAX
from fusee_mp.checksum import crc32c
from fusee_mp.errors import ProtocolError, Rejected

_PREFIX = struct.Struct("<II")
_HEAD = struct.Struct("<BQIQ")
_WHOLE_HEAD = struct.Struct("<IIBQIQ")
PREFIX_BYTES = _PREFIX.size
HEAD_BYTES = _HEAD.size
OVERHEAD_BYTES = PREFIX_BYTES + HEAD_BYTES
BODY_BYTES_MAX = FRAME_BYTES_MAX - OVERHEAD_BYTES
assert OVERHEAD_BYTES == _WHOLE_HEAD.size == 29


class Frame(msgspec.Struct, frozen=True, gc=False):
    """One frame, intact. `kind` may be one that this version does not know."""

    kind: int
    request: int
    shard: int
    epoch: int
    body: bytes


def encode_frame(kind: int, body: bytes, request: int = 0, shard: int = 0, epoch: int = 0) -> bytes:
    """The bytes of one frame. Raises Rejected for a body over BODY_BYTES_MAX, which no peer would take."""
    length = HEAD_BYTES + len(body)
    if length > FRAME_BYTES_MAX - PREFIX_BYTES:
        raise Rejected(f"a frame's body has at most {BODY_BYTES_MAX} bytes, this one has {len(body)}: send less at once", found=len(body))
    head = _HEAD.pack(kind, request, shard, epoch)
    return b"%b%b%b" % (_PREFIX.pack(length, crc32c(body, crc32c(head))), head, body)


def decode_frame(data: bytes) -> Frame:
    """The one frame that `data` is. Raises ProtocolError for damage, for less than a frame and for more than one."""
    if len(data) < OVERHEAD_BYTES:
        raise ProtocolError(f"expected a frame of at least {OVERHEAD_BYTES} bytes, found {len(data)} bytes", found=len(data))
    length, crc, kind, request, shard, epoch = _WHOLE_HEAD.unpack_from(data)
    if length != len(data) - PREFIX_BYTES:
        raise ProtocolError(f"expected one frame of {length + PREFIX_BYTES} bytes by its length, found {len(data)} bytes", found=len(data))
    if crc32c(memoryview(data)[PREFIX_BYTES:]) != crc:
        raise ProtocolError(_damaged(kind, crc), kind=kind)
    return Frame(kind, request, shard, epoch, bytes(data[OVERHEAD_BYTES:]))


def first_frame(data: bytes | bytearray, max_bytes: int) -> Frame | None:
    """The frame that a stream begins with, or None while it is not whole: for who must leave what follows to another reader.

    Raises ProtocolError for damage, and for a length over the bound as soon as that is there.
    """
    if len(data) < 4:
        return None
    length = int.from_bytes(data[:4], "little")
    if not HEAD_BYTES <= length <= max_bytes - PREFIX_BYTES:
        raise ProtocolError(_unacceptable(length, max_bytes - PREFIX_BYTES))
    whole = PREFIX_BYTES + length
    return decode_frame(bytes(data[:whole])) if len(data) >= whole else None


def frame_bytes(frame: Frame) -> int:
    """How many bytes it had in its stream."""
    return OVERHEAD_BYTES + len(frame.body)


def _unacceptable(length: int, most: int) -> str:
    return (
        f"expected a frame length from {HEAD_BYTES} to {most}, found {length}: the peer speaks another protocol, or its bytes were"
        " damaged; the connection is closed"
    )


def _damaged(kind: int, crc: int) -> str:
    return (
        f"a frame of kind {kind} does not match its CRC-32C {crc:08x}: the peer or the path between damaged it, or the peer speaks "
        "another protocol; the connection is closed"
    )


class FrameDecoder:
    """Cuts a stream of bytes into frames. `max_bytes` bounds a whole frame, hence what is held in memory for an unfinished one."""

    __slots__ = ("_fault", "_length_max", "_needed", "_rest")

    def __init__(self, max_bytes: int = FRAME_BYTES_MAX) -> None:
        self._length_max = max_bytes - PREFIX_BYTES
        self._rest = bytearray()
        self._needed = 0
        self._fault: str | None = None

    @property
    def held_bytes(self) -> int:
        """Bytes of a frame whose end has not come. More than 0 at the end of the stream: the peer ended in mid-frame."""
        return len(self._rest)

    def clear(self) -> None:
        """Forget the frame that has begun, when nothing more is fed."""
        self._rest = bytearray()

    def feed(self, data: bytes | bytearray | memoryview) -> list[Frame]:
        """The frames that `data` completes, in order. `data` may be a buffer that the caller fills again.

        Raises ProtocolError at the first damaged or oversized frame, and again at every later call: close the connection.
        Never reads past a length that is out of bounds, so an oversized frame is refused by its first 4 bytes.
        """
        if self._fault is not None:
            raise ProtocolError(self._fault)
        if self._rest:
            return self._feed_rest(data)
        return self._cut(bytes(data))

    def _feed_rest(self, data: bytes | bytearray | memoryview) -> list[Frame]:
        # Cut once per frame, not once per read: else a large frame in small reads would cost its square.
        self._rest += data
        if len(self._rest) < self._needed:
            return []
        whole, self._rest = bytes(self._rest), bytearray()
        return self._cut(whole)

    def _cut(self, data: bytes) -> list[Frame]:
        frames: list[Frame] = []
        at, end, view, unpack, length_max = 0, len(data), memoryview(data), _WHOLE_HEAD.unpack_from, self._length_max
        while end - at >= OVERHEAD_BYTES:
            length, crc, kind, request, shard, epoch = unpack(data, at)
            if not HEAD_BYTES <= length <= length_max:
                break
            after = at + PREFIX_BYTES + length
            if after > end:
                break
            if crc32c(view[at + PREFIX_BYTES:after]) != crc:
                self._fail(_damaged(kind, crc))
            frames.append(Frame(kind, request, shard, epoch, data[at + OVERHEAD_BYTES:after]))
            at = after
        if at < end:
            self._hold(data[at:])
        return frames

    def _hold(self, rest: bytes) -> None:
        """Keep the start of a frame, once its length, if there, is known to be acceptable."""
        self._needed = 4
        if len(rest) >= 4:
            length = int.from_bytes(rest[:4], "little")
            if not HEAD_BYTES <= length <= self._length_max:
                self._fail(_unacceptable(length, self._length_max))
            self._needed = PREFIX_BYTES + length
        self._rest += rest

    def _fail(self, reason: str) -> None:
        self.clear()
        self._fault = reason
        raise ProtocolError(reason)
