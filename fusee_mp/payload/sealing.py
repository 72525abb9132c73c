# Payloads on their way out of the process and back: sealed by a codec, and stored apart when they are large.
#
# Who holds the key sees payloads in clear: workflow code, the runtime, a caller. Records, frames and files hold them sealed. So there is
# one pair of doors, `sealed` and `opened`, over the structs that travel (records, calls, answers).
# Rule 1: every field of bytes is a payload, also in a struct within the struct, but those named in CLEAR; so is every text named in
#         TEXTS. A kind of record that is added later is sealed without anybody's thinking of it.
# Rule 2: a payload in clear is JSON, which never begins with a byte below 9. So its first byte says what a payload is. One that is sealed
#         is not sealed again, what was written before there was a codec is read as it stands, and code never meets a sealed one.
# Rule 3: what is sealed or opened is a copy. What a run has in memory is not touched.
# Limit: names, IDs, search attributes, times and lengths stay in the clear.
from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable
from functools import cache
from types import UnionType
from typing import Any, Final, Protocol, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import Struct

from fusee_mp.bounds import PAYLOAD_BYTES_MAX
from fusee_mp.core import sealed_list
from fusee_mp.errors import FuseeError, PayloadError, Rejected
from fusee_mp.payload.apart import APART, Apart

S = TypeVar("S", bound=Struct)
FIRST_OF_JSON: Final = sealed_list.FIRST_OF_JSON
# What a codec's payloads may begin with: 1 is AesGcm's, the others are free.
CODECS: Final = (1, 4, 5, 6, 7, 8)
CLEAR: Final = frozenset(("attributes", "values", "seal", "answer", "state", "data", "record"))
TEXTS: Final = frozenset(("reason", "message"))
_MARK: Final = "\x01"  # of a text that is sealed; Base64 follows


class PayloadCodec(Protocol):
    """Seals payloads on their way to records and frames and opens them on the way back.

    A sealed payload begins with byte 1 or 4 to 8, which no JSON does. `open` raises PayloadError for what it cannot open.
    """

    def seal(self, payload: bytes) -> bytes: ...

    def open(self, sealed: bytes) -> bytes: ...


class Payloads:
    """The doors of one engine's shard, of one worker or client. bytes_max: of one payload in clear, for those who encode values."""

    __slots__ = ("_codec", "apart", "bytes_max", "is_plain")

    def __init__(self, codec: PayloadCodec | None = None, bytes_max: int = PAYLOAD_BYTES_MAX, apart: Apart | None = None) -> None:
        self._codec = None if codec is None else _checked(codec)
        self.bytes_max = bytes_max
        self.apart = apart
        self.is_plain = codec is None and (apart is None or apart.above_bytes is None)

    def up_to(self, bytes_max: int) -> Payloads:
        """The same, with this bound; never over the one that holds everywhere."""
        return Payloads(self._codec, min(bytes_max, PAYLOAD_BYTES_MAX), self.apart)

    def beside(self, apart: Apart) -> Payloads:
        """The same, with large payloads stored there."""
        return Payloads(self._codec, self.bytes_max, apart)

    # Out.

    def sealed(self, struct: S) -> S:
        """The struct as it may leave."""
        return struct if self._codec is None else _changed(struct, self._seal, self._seal_text)

    def recorded(self, record: S) -> S:
        """A record as it may stand in the log of its shard; what it says to another shard is never stored apart."""
        record, apart = self.sealed(record), self.apart
        return record if apart is None else apart.without_large(record)

    def sealed_answer(self, value: Any) -> Any:
        """The answer to a call as it may leave."""
        if isinstance(value, Struct):
            return self.sealed(value)
        return [self.sealed_answer(item) for item in value] if isinstance(value, list) else value

    def sealed_error(self, error: FuseeError) -> FuseeError:
        """What an error says may show what was sent."""
        return error if self._codec is None else type(error)(self._seal_text(error.message), **error.fields)

    def _seal(self, payload: bytes) -> bytes:
        assert self._codec is not None
        return payload if payload[0] < FIRST_OF_JSON else self._codec.seal(payload)

    def _seal_text(self, text: str) -> str:
        assert self._codec is not None
        if not text or text.startswith(_MARK):
            return text
        return _MARK + b64encode(self._codec.seal(text.encode(errors="replace"))).decode()

    # In.

    def opened(self, struct: S) -> S:
        """The struct in clear. Raises PayloadError, which names the key, when a payload of it cannot be opened; texts never fail."""
        return struct if _is_clear(struct) else _changed(struct, self._open, self._open_text)

    def shown(self, struct: S) -> S:
        """The struct in clear as far as that is possible: for people."""
        return struct if _is_clear(struct) else _changed(struct, self._open_or_leave, self._open_text)

    def whole(self, struct: S) -> S:
        """The struct with what is stored apart, sealed as it may be: so that it can leave its directory. Raises StorageError."""
        return _changed(struct, self._fetch, str)

    def answer(self, value: Any) -> Any:
        """The answer to a call in clear. Raises as `opened`."""
        if isinstance(value, Struct):
            return self.opened(value)
        return [self.answer(item) for item in value] if isinstance(value, list) else value

    def opened_error(self, error: FuseeError) -> FuseeError:
        """The same error with what it says in clear."""
        if error.message.startswith(_MARK):
            error.args = (self._open_text(error.message), *error.args[1:])
        return error

    def _open(self, payload: bytes) -> bytes:
        first = payload[0]
        if first >= FIRST_OF_JSON:
            return payload
        if first == APART:
            if self.apart is None:
                raise PayloadError("this payload is stored apart from the log, by an embedded engine with payload_offload_bytes: read it"
                                   " with an engine on that directory.", key=None)
            return self._open(self.apart.get(payload))
        if first == sealed_list.FIRST:
            return b"[" + b",".join(map(self._open, sealed_list.unpack(payload))) + b"]"
        if self._codec is None:
            raise PayloadError(f"this payload is sealed{_with_key(payload)}, and there is no codec here. Give codec= to the engine, worker"
                               " or client.", key=key_id(payload))
        return self._codec.open(payload)

    def _fetch(self, payload: bytes) -> bytes:
        return self.apart.get(payload) if payload[0] == APART and self.apart is not None else payload

    def _open_or_leave(self, payload: bytes) -> bytes:
        try:
            return self._open(payload)
        except FuseeError:
            return payload

    def _open_text(self, text: str) -> str:
        if not text.startswith(_MARK):
            return text
        try:
            sealed = b64decode(text[len(_MARK):], validate=True)
        except ValueError:
            return text
        try:
            return text if not sealed or self._codec is None and not key_id(sealed) else self._open(sealed).decode()
        except (FuseeError, UnicodeDecodeError):
            return f"[sealed{_with_key(sealed)}]"


PLAIN: Final = Payloads()


def is_closed(payload: bytes) -> bool:
    """It is sealed or stored apart, and no JSON."""
    return bool(payload) and payload[0] < FIRST_OF_JSON


def said_of_closed(payload: bytes) -> dict[str, Any]:
    """What there is to show of a payload that is not opened here."""
    if payload[0] == APART:
        return {"stored_apart": Apart.size_of(payload)}
    if payload[0] == sealed_list.FIRST:
        return {"sealed": sorted({said_of_closed(item)["sealed"] for item in sealed_list.unpack(payload) if is_closed(item)})}
    return {"sealed": key_id(payload)}


def key_id(sealed: bytes) -> str | None:
    """The ID of the key with which AesGcm sealed this; None where it did not (cipher.py has the format)."""
    if len(sealed) < 3 or sealed[0] != CODECS[0]:
        return None
    return sealed[2:2 + sealed[1]].decode(errors="replace")


def _with_key(sealed: bytes) -> str:
    id = key_id(sealed)
    return "" if id is None else f' with key "{id}"'


def _checked(codec: PayloadCodec) -> PayloadCodec:
    if not callable(getattr(codec, "seal", None)) or not callable(getattr(codec, "open", None)):
        raise Rejected(f'codec: expected something with `seal` and `open`, such as AesGcm({{"k1": key}}), found {codec!r:.80}.',
                       option="codec")
    sealed = codec.seal(b"null")
    if not isinstance(sealed, bytes) or sealed[:1] not in [bytes((first,)) for first in CODECS] or codec.open(sealed) != b"null":
        raise Rejected(f"codec {codec!r:.80}: expected `seal` to give bytes that begin with {CODECS} and that `open` gives back, found"
                       f" {sealed!r:.40}. Put such a byte before what it seals.", option="codec")
    return codec


# The fields of structs.


def _is_clear(struct: Struct) -> bool:
    """There is nothing to be opened: what most records are asked, so it is quick."""
    for name, kind in fields_of(type(struct)):
        value = getattr(struct, name)
        if value and (value[0] < FIRST_OF_JSON if kind is bytes else kind is Struct or value[0] == _MARK):
            return False
    return True


def _changed(struct: S, payload: Callable[[bytes], bytes], text: Callable[[str], str]) -> S:
    changes: dict[str, Any] | None = None
    for name, kind in fields_of(type(struct)):
        value = getattr(struct, name)
        if value:
            new = payload(value) if kind is bytes else text(value) if kind is str else _changed(value, payload, text)
            if new is not value:
                changes = changes or {}
                changes[name] = new
    return struct if changes is None else msgspec.structs.replace(struct, **changes)


@cache
def fields_of(kind: type[Struct]) -> tuple[tuple[str, type[Any]], ...]:
    """The fields of a kind of struct that hold payloads: each with bytes, str, or Struct for a struct that holds some itself."""
    found: list[tuple[str, type[Any]]] = []
    for field in msgspec.structs.fields(kind):
        types = [inner for inner in _alternatives(field.type) if isinstance(inner, type)]
        if bytes in types and field.name not in CLEAR:
            found.append((field.name, bytes))
        elif str in types and field.name in TEXTS:
            found.append((field.name, str))
        elif any(issubclass(inner, Struct) and inner is not kind and fields_of(inner) for inner in types):
            found.append((field.name, Struct))
    return tuple(found)


def _alternatives(type_: Any) -> tuple[Any, ...]:
    return get_args(type_) if get_origin(type_) in (Union, UnionType) else (type_,)
