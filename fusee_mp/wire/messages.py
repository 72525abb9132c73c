# Messages: the bodies of frames, typed.
#
# A body is a MessagePack array of the fields in the order given here, except APPEND and DURABLE, which every step pays for:
# those are fixed structs of little-endian numbers.
#
# Rule 1: fields are only ever added at the end and with a default. A reader skips those that it does not know.
# Rule 2: what this layer need not understand (arguments, values, state, entries, records) is opaque bytes, so forwarding a call
#         never parses it, and nothing a client nests can reach the shard's decoder.
# Rule 3: request, shard and epoch live in the frame's head; a body repeats none of them.
"""Messages: `encode` to the bytes of a frame, `decode` from a Frame. One Struct per kind; `Kind` numbers them."""
from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import msgspec

from fusee_mp.bounds import NAME_BYTES_MAX, PART_BYTES, PAYLOAD_BYTES_MAX, SHARDS_MAX
from fusee_mp.errors import FuseeError, ProtocolError
from fusee_mp.wire.frames import Frame, encode_frame
from fusee_mp.wire.kinds import Kind

Name = Annotated[str, msgspec.Meta(max_length=NAME_BYTES_MAX)]
Shard = Annotated[int, msgspec.Meta(ge=0, lt=SHARDS_MAX)]
Number = Annotated[int, msgspec.Meta(ge=0)]


class Message(msgspec.Struct, array_like=True, frozen=True):
    """The base of all; `KIND` is the kind of the frame that carries it."""

    KIND: ClassVar[Kind]


class Ping(Message, frozen=True):
    """Asks for a PONG with the same stamp."""

    KIND = Kind.PING
    stamp: Number


class Pong(Message, frozen=True):
    """Answers a PING; the stamp means something only to who sent it."""

    KIND = Kind.PONG
    stamp: Number


class Error(Message, frozen=True):
    """A question's answer is an error: `code` and `fields` as in fusee_mp.errors."""

    KIND = Kind.ERROR
    code: Name
    message: str
    fields: dict[str, Any] = {}


class Goodbye(Message, frozen=True):
    """The sender closes the connection after this, and says why."""

    KIND = Kind.GOODBYE
    reason: str


class Challenge(Message, frozen=True):
    """Who connects names its token and asks the server to prove that it has it too."""

    KIND = Kind.CHALLENGE
    token: Name
    nonce: bytes


class Proof(Message, frozen=True):
    """The server's answer to a CHALLENGE, with a nonce of its own; then that of who connects, without."""

    KIND = Kind.PROOF
    proof: bytes
    nonce: bytes = b""


class Rings(Message, frozen=True):
    """Whether the rings that were offered are taken: then all that follows goes over them. Otherwise it follows here."""

    KIND = Kind.RINGS
    taken: bool


class Hello(Message, frozen=True):
    """A worker introduces itself. `instance` differs at each start of it; `max_shards` 0 takes all that are free."""

    KIND = Kind.HELLO
    worker: Name
    instance: Name
    workflows: list[Name]
    max_shards: Number = 0
    features: Number = 0
    version: Name = ""


class Welcome(Message, frozen=True):
    """The router takes the worker. `features` are those of the HELLO that are granted.

    What is kept of ended runs: `retention_ms` (None: for ever), `history` (their journals), `archive` (then these go to the archive).
    `payload_bytes_max`: what the server takes as one payload.
    """

    KIND = Kind.WELCOME
    server: Name
    shards: Number
    ping_ms: Number
    revoke_ms: Number
    features: Number = 0
    retention_ms: Number | None = None
    history: bool = True
    archive: bool = False
    payload_bytes_max: Number = PAYLOAD_BYTES_MAX


class Assign(Message, frozen=True):
    """The worker should lease these shards, each over a connection of its own."""

    KIND = Kind.ASSIGN
    shards: list[Shard]


class Released(Message, frozen=True):
    """The worker has handed the shard back."""

    KIND = Kind.RELEASED
    shard: Shard


class Revoke(Message, frozen=True):
    """The worker must hand the shard back: at once, or `gently`, when the step bodies that run there have ended or had their grace."""

    KIND = Kind.REVOKE
    shard: Shard
    reason: str
    gently: bool = False


class Lacking(Message, frozen=True):
    """In the shard runs of these types have something to do, and the worker has no code for them."""

    KIND = Kind.LACKING
    shard: Shard
    workflows: list[Name]


class Elsewhere(Message, frozen=True):
    """The types that other workers have and this one has not. Replaces what was said before."""

    KIND = Kind.ELSEWHERE
    workflows: list[Name]


class Drain(Message, frozen=True):
    """From the worker: assign me nothing more. From the router: finish, and hand everything back."""

    KIND = Kind.DRAIN


class Lease(Message, frozen=True):
    """A worker asks for the lease of the shard."""

    KIND = Kind.LEASE
    worker: Name
    instance: Name
    shard: Shard


class Granted(Message, frozen=True):
    """The lease is the worker's. `base_lsn` is the log's last LSN then, `applied_lsn` what the keeper has folded of it."""

    KIND = Kind.GRANTED
    epoch: Number
    base_lsn: Number
    applied_lsn: Number
    flags: Number
    state: bytes


class Append(Message, frozen=True, gc=False):
    """`count` records for the log, numbered from `first` within the lease; `records` as records.pack_records makes it."""

    KIND = Kind.APPEND
    first: int
    count: int
    records: bytes


class Durable(Message, frozen=True, gc=False):
    """Everything up to append number `through` is on disk, the last of it at `lsn`; the keeper has folded up to append number `applied`."""

    KIND = Kind.DURABLE
    through: int
    lsn: int
    applied: int


class Read(Message, frozen=True):
    """A question to the keeper, to be answered from a state that holds everything up to LSN `min_lsn`."""

    KIND = Kind.READ
    method: Name
    args: bytes
    min_lsn: Number = 0


class Value(Message, frozen=True):
    """The answer to a READ."""

    KIND = Kind.VALUE
    value: bytes


class Relay(Message, frozen=True):
    """Outbox entries for shard `target`, numbered densely from `first`; `entries` as records.pack_records makes it."""

    KIND = Kind.RELAY
    target: Shard
    first: Number
    entries: bytes


class Deliver(Message, frozen=True):
    """Outbox entries of shard `source`, numbered densely from `first`."""

    KIND = Kind.DELIVER
    source: Shard
    first: Number
    entries: bytes


class RelayAck(Message, frozen=True):
    """Shard `target` has made durable what shard `source` sent it, up to number `through`."""

    KIND = Kind.RELAY_ACK
    source: Shard
    target: Shard
    through: Number


class Return(Message, frozen=True):
    """The worker hands the lease back: nothing runs, and nothing more will be appended."""

    KIND = Kind.RETURN


class Revoked(Message, frozen=True):
    """The lease of the frame's epoch is over."""

    KIND = Kind.REVOKED
    reason: str


class PermitSay(Message, frozen=True):
    """A holder speaks to the table of a limit, or without a name to all tables. Its session is its shard and the epoch. `tickets`: those
    that it holds, which `renew` renews."""

    KIND = Kind.PERMIT_SAY
    what: Literal["ask", "release", "renew", "leave"]
    name: Name = ""
    ticket: Number = 0
    level: int = 0
    fairness: Name = ""
    weight: Number = 1
    tickets: list[Number] = []


class PermitAnswer(Message, frozen=True):
    """The table speaks to a session: this ticket has its permit, may ask again in `wait_ms`, or names a limit that is not defined;
    `ask` calls for the next ask under this limit."""

    KIND = Kind.PERMIT_ANSWER
    what: Literal["granted", "retry", "undefined", "ask"]
    name: Name
    ticket: Number
    wait_ms: Number = 0


class ClientHello(Message, frozen=True):
    """A client introduces itself."""

    KIND = Kind.CLIENT_HELLO
    client: Name
    features: Number = 0


class ClientWelcome(Message, frozen=True):
    """The shard takes the client's calls, with payloads of at most so many bytes."""

    KIND = Kind.CLIENT_WELCOME
    server: Name
    shards: Number
    payload_bytes_max: Number = PAYLOAD_BYTES_MAX


class Call(Message, frozen=True):
    """A client's call, from it or forwarded to the worker; `args` is MessagePack that only the worker decodes. `repeat`: it may have
    been carried out before."""

    KIND = Kind.CALL
    method: Name
    args: bytes
    repeat: bool = False


class Reply(Message, frozen=True):
    """A call's result."""

    KIND = Kind.REPLY
    value: bytes


class Cancel(Message, frozen=True):
    """The client no longer waits for the request of the frame's head. The call may have its effect all the same."""

    KIND = Kind.CANCEL


class Part(Message, frozen=True):
    """A piece of an answer that is too long for one frame; the VALUE or REPLY to the same request follows with the last."""

    KIND = Kind.PART
    value: bytes


class Adopt(Message, frozen=True):
    """The shard process takes over a connection, whose socket comes with the frame and whose preface was read."""

    KIND = Kind.ADOPT
    preface: bytes


class Ring(Message, frozen=True):
    """The shard process opens a link to shard `shard` on the descriptors that come with the frame, and drops an older one."""

    KIND = Kind.RING
    shard: Shard
    generation: Number


class Ready(Message, frozen=True):
    """The shard process has recovered its log and takes connections."""

    KIND = Kind.READY


class Held(Message, frozen=True):
    """The shard's lease was granted."""

    KIND = Kind.HELD
    shard: Shard
    worker: Name
    epoch: Number


class Free(Message, frozen=True):
    """Nobody holds the shard's lease."""

    KIND = Kind.FREE
    shard: Shard


class Stop(Message, frozen=True):
    """The shard process should end, within `grace_ms`."""

    KIND = Kind.STOP
    grace_ms: Number


class Status(Message, frozen=True):
    """Without facts it asks; the answer bears the same request number and the facts."""

    KIND = Kind.STATUS
    facts: dict[str, Any] = {}


class Keys(Message, frozen=True):
    """Certificate, key and tokens for connections that come from now on: in the memory file that comes with the frame."""

    KIND = Kind.KEYS


class _Codec(NamedTuple):
    type: type[Message]
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]


_APPEND = struct.Struct("<QI")
_DURABLE = struct.Struct("<QQQ")


def _encode_append(message: Append) -> bytes:
    return _APPEND.pack(message.first, message.count) + message.records


def _decode_append(body: bytes) -> Append:
    first, count = _APPEND.unpack_from(body)
    return Append(first, count, body[_APPEND.size:])


def _encode_durable(message: Durable) -> bytes:
    return _DURABLE.pack(message.through, message.lsn, message.applied)


def _decode_durable(body: bytes) -> Durable:
    return Durable(*_DURABLE.unpack(body))


def _codec(kind: type[Message]) -> _Codec:
    return _Codec(kind, msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder(kind).decode)


_CODECS: dict[int, _Codec] = {kind.KIND: _codec(kind) for kind in Message.__subclasses__()}
_CODECS[Kind.APPEND] = _Codec(Append, _encode_append, _decode_append)
_CODECS[Kind.DURABLE] = _Codec(Durable, _encode_durable, _decode_durable)
assert set(_CODECS) == set(Kind), "every kind has exactly one message"

# Descriptors that come with a frame: a connection's socket; regions and life line of a link; a memory file.
_DESCRIPTORS: dict[int, int] = {Kind.ADOPT: 1, Kind.RING: 3, Kind.KEYS: 1}


def encode(message: Message, request: int = 0, shard: int = 0, epoch: int = 0) -> bytes:
    """The bytes of the frame that carries the message. Raises Rejected when it is larger than any peer would take."""
    kind = message.KIND
    return encode_frame(kind, _CODECS[kind].encode(message), request, shard, epoch)


def encode_answer(kind: type[Value] | type[Reply], value: bytes, request: int, shard: int, epoch: int = 0) -> Iterator[bytes]:
    """The frames that carry an answer: one, or for a long one its PARTs first."""
    at = 0
    while len(value) - at > PART_BYTES:
        yield encode(Part(value[at:at + PART_BYTES]), request, shard, epoch)
        at += PART_BYTES
    yield encode(kind(value[at:] if at else value), request, shard, epoch)


def decode(frame: Frame) -> Message:
    """The message that the frame carries. Raises ProtocolError that names the kind, and the field at fault."""
    codec = _CODECS.get(frame.kind)
    if codec is None:
        raise ProtocolError(f"a frame of kind {frame.kind} is unknown to this version: upgrade the older side", kind=frame.kind)
    try:
        message: Message = codec.decode(frame.body)
    except (msgspec.DecodeError, struct.error, RecursionError) as error:
        raise _malformed(codec.type, error) from error
    return message


def descriptors_of(frame: bytes) -> int:
    """How many descriptors must come with this frame, judged by its kind alone; 0 for bytes too short to be one."""
    return _DESCRIPTORS.get(frame[8], 0) if len(frame) > 8 else 0


def error_message(error: FuseeError) -> Error:
    """An error as it travels: of its fields, those that are plain."""
    return Error(error.code, error.message, {name: value for name, value in error.fields.items() if isinstance(value, str | int | float)})


_PATH = re.compile(r" - at `\$\[(\d+)\]")
_TOO_SHORT = re.compile(r"of at least length \d+, got (\d+)$")


def _malformed(kind: type[Message], error: Exception) -> ProtocolError:
    name, field = kind.KIND.name, _field_at_fault(kind, str(error))
    place = f'field "{field}" of {name}' if field else f"the body of {name}"
    return ProtocolError(f"{place} is malformed: {error}", kind=name, field=field)


def _field_at_fault(kind: type[Message], text: str) -> str:
    found = _PATH.search(text) or _TOO_SHORT.search(text)
    fields = kind.__struct_fields__
    return fields[int(found[1])] if found and int(found[1]) < len(fields) else ""
