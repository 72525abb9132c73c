"""A list of payloads of which some are sealed, as one payload: made where nobody has the key, opened where somebody has.

A payload in clear is JSON, whose first byte is FIRST_OF_JSON or above. One that begins with FIRST is a MessagePack array of payloads.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from fusee_mp.errors import PayloadError

FIRST_OF_JSON: Final = 9
FIRST: Final = 2
_decode: Final = msgspec.msgpack.Decoder(list[bytes]).decode


def pack(payloads: Sequence[bytes]) -> bytes:
    """JSON where all of them are."""
    if all(payload[:1] >= bytes((FIRST_OF_JSON,)) for payload in payloads):
        return b"[" + b",".join(payloads) + b"]"
    return bytes((FIRST,)) + msgspec.msgpack.encode(payloads)


def unpack(payload: bytes) -> list[bytes]:
    """Raises PayloadError for bytes that `pack` did not make."""
    try:
        return _decode(payload[1:])
    except msgspec.DecodeError as e:
        raise PayloadError(f"expected a list of payloads, found {payload[:16]!r} ({e}): it was altered.", key=None) from None
