"""What a keeper and its owner say to each other: frames over a socket pair, each a u32 length (little-endian) and a MessagePack array.

The two are always of one version, since the owner starts the keeper from its own files. Each end sees the other's death as the end
of the stream.
"""
from __future__ import annotations

import struct
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import Struct

from fusee_mp.bounds import FRAME_BYTES_MAX
from fusee_mp.errors import ProtocolError

_LENGTH: Final = struct.Struct("<I")
# A question is no larger than the frame that brought it; an answer may hold a whole journal.
QUESTION_BYTES_MAX: Final = FRAME_BYTES_MAX
ANSWER_BYTES_MAX: Final = (1 << 32) - 1


class _Message(Struct, array_like=True, tag_field="$"):
    """The base of all."""


class Publish(_Message, tag=1):
    """The log is durable through this LSN."""

    lsn: int


class Ask(_Message, tag=2):
    """A read (store/reads.py) by name, with its arguments as a MessagePack array; to be answered once the store holds `min_lsn`,
    within `timeout_ms`. Those of one `asker` take the turns of one."""

    id: int
    method: str
    args: bytes
    min_lsn: int
    timeout_ms: int
    asker: int = 0


class Checkpoint(_Message, tag=3):
    """Make what is published now, applied, and that safe from a crash of the machine; answered like a question, with its LSN."""

    id: int
    timeout_ms: int


class Close(_Message, tag=4):
    """End now. What is folded and not committed is dropped: the log has it."""


class Hello(_Message, tag=10):
    """The keeper has the store. Nothing comes before this except a Failure with ID 0, after which it ends."""

    applied_lsn: int
    checkpoint_lsn: int
    epoch: int


class Applied(_Message, tag=11):
    """The store holds every record up to this LSN."""

    lsn: int


class Checkpointed(_Message, tag=12):
    """The store holds every record up to this LSN, whatever happens to the machine."""

    lsn: int


class Answer(_Message, tag=13):
    """The answer to a question, in MessagePack."""

    id: int
    value: bytes


class Failure(_Message, tag=14):
    """A question's answer is an error of fusee_mp.errors."""

    id: int
    code: str
    message: str
    fields: dict[str, Any]


class Trouble(_Message, tag=15):
    """What keeps the keeper from folding, or (`kind` empty) that nothing does any more. See keeper/tail.py for the kinds."""

    kind: str
    message: str


ToKeeper: TypeAlias = Publish | Ask | Checkpoint | Close
ToOwner: TypeAlias = Hello | Applied | Checkpointed | Answer | Failure | Trouble

_encode: Final = msgspec.msgpack.Encoder(enc_hook=str).encode
decode_for_keeper: Final = msgspec.msgpack.Decoder(ToKeeper).decode
decode_for_owner: Final = msgspec.msgpack.Decoder(ToOwner).decode
encode_value: Final = msgspec.msgpack.Encoder().encode


def pack(message: ToKeeper | ToOwner) -> bytes:
    """The frame that carries the message."""
    body = _encode(message)
    return _LENGTH.pack(len(body)) + body


class Frames:
    """Cuts a stream into the bodies of its frames."""

    __slots__ = ("_buffer", "_most")

    def __init__(self, most: int) -> None:
        self._buffer = bytearray()
        self._most = most

    def feed(self, data: bytes) -> list[bytes]:
        """The bodies that this data completes. Raises ProtocolError for a frame that is too long: the stream is then of no use."""
        buffer, bodies, at = self._buffer, [], 0
        buffer += data
        while len(buffer) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(buffer, at)
            if length > self._most:
                raise ProtocolError(f"a frame of {length} bytes came, at most {self._most} are allowed", bytes=length)
            begin = at + _LENGTH.size
            if len(buffer) - begin < length:
                break
            at = begin + length
            bodies.append(bytes(buffer[begin:at]))
        del buffer[:at]
        return bodies
