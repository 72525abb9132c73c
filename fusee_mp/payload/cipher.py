# Payloads sealed with AES-256-GCM.
#
#   byte 0          version, 1
#   byte 1          length n of the key ID, 1 to 255
#   2 .. 2+n        key ID, UTF-8, in the clear
#   then 12 bytes   nonce
#   then the rest   ciphertext, 16 bytes of tag at its end
#
# Everything before the nonce is authenticated with the ciphertext, so a payload cannot be moved to another key's name.
# The version byte is no first byte of any JSON, so a payload that was written in clear is told from a sealed one.
# Limit: a nonce is drawn at random, so one key should seal fewer than 2**32 payloads. Put a new key first before that; the old one stays
# in the mapping for as long as payloads of its name are to be read.
# What this hides: contents. Names, IDs, attributes, times and lengths stay in the clear.
from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from fusee_mp.errors import PayloadError, Rejected

VERSION: Final = 1
KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
TAG_BYTES: Final = 16
KEY_ID_BYTES_MAX: Final = 255


class AesGcm:
    """Seals with the first key, opens with whichever key a payload names.

    `keys`: 32 bytes by key ID. `nonce`: gives that many random bytes, never the same twice; the default is the system's.
    Raises Rejected for keys that cannot be. A payload that cannot be opened raises PayloadError and names its key ID; nothing is lost,
    the same bytes open once the right key is there.
    """

    __slots__ = ("_heads", "_keys", "_nonce", "_seals_with")

    def __init__(self, keys: Mapping[str, bytes], nonce: Callable[[int], bytes] = secrets.token_bytes) -> None:
        if not isinstance(keys, Mapping) or not keys:
            raise Rejected('AesGcm keys: expected a mapping of key ID to 32 bytes, with one at least. Write AesGcm({"k1": key}).')
        self._heads = {id: _head(id) for id in keys}
        self._keys = {id: AESGCM(_checked(id, key)) for id, key in keys.items()}
        self._seals_with = next(iter(self._keys))
        self._nonce = nonce

    def __repr__(self) -> str:
        return f"AesGcm({', '.join(map(repr, self._keys))})"  # Never the keys.

    def seal(self, payload: bytes) -> bytes:
        """The payload, readable only with this key. Never the same bytes twice."""
        head, nonce = self._heads[self._seals_with], self._nonce(NONCE_BYTES)
        assert len(nonce) == NONCE_BYTES, "a nonce of another length would be read as part of the ciphertext"
        return b"".join((head, nonce, self._keys[self._seals_with].encrypt(nonce, payload, head)))

    def open(self, sealed: bytes) -> bytes:
        """What was sealed, byte for byte. Raises PayloadError when this is not what a holder of the named key sealed."""
        id, head = _split(sealed)
        key = self._keys.get(id)
        if key is None:
            raise PayloadError(f'this payload is sealed with key "{id}", and AesGcm has only {", ".join(map(repr, self._keys))}. Add that'
                               " key after the first: it opens old payloads, the first seals new ones.", key=id)
        start = len(head) + NONCE_BYTES
        if len(sealed) < start + TAG_BYTES:
            raise _short(sealed, start + TAG_BYTES, id)
        try:
            return key.decrypt(sealed[len(head):start], sealed[start:], head)
        except InvalidTag:
            raise PayloadError(f'this payload names key "{id}", but the key given under that name does not open it: the key is another one,'
                               f" or the {len(sealed)} bytes were altered. Give the key it was sealed with.", key=id) from None


def _split(sealed: bytes) -> tuple[str, bytes]:
    """Key ID and everything before the nonce."""
    if not sealed or sealed[0] != VERSION:
        raise PayloadError(f"expected a payload sealed by AesGcm (version {VERSION}), found {sealed[:8]!r}. It was written without a codec,"
                           " or with another one: open it with the codec that wrote it.", key=None)
    if len(sealed) < 2 or len(sealed) < 2 + sealed[1]:
        raise _short(sealed, 2 + (sealed[1] if len(sealed) > 1 else 1), None)
    head = bytes(sealed[:2 + sealed[1]])
    try:
        return head[2:].decode(), head
    except UnicodeDecodeError:
        raise PayloadError(f"expected the ID of a key in UTF-8, found {head[2:]!r}: the payload was altered.", key=None) from None


def _short(sealed: bytes, expected: int, id: str | None) -> PayloadError:
    of = "" if id is None else f' of key "{id}"'
    return PayloadError(f"expected a sealed payload{of} of at least {expected} bytes, found {len(sealed)}: it was cut off.", key=id)


def _head(id: str) -> bytes:
    if not isinstance(id, str):
        raise Rejected(f"AesGcm keys: expected text as key ID, found {type(id).__name__}.")
    try:
        name = id.encode()
    except UnicodeEncodeError:
        raise Rejected(f"AesGcm keys: key ID {id!r} has a lone surrogate: an ID is text that UTF-8 can hold.") from None
    if not 1 <= len(name) <= KEY_ID_BYTES_MAX:
        raise Rejected(f"AesGcm keys: expected a key ID of 1 to {KEY_ID_BYTES_MAX} UTF-8 bytes, found {len(name)}: {id[:40]!r}.")
    return bytes((VERSION, len(name))) + name


def _checked(id: str, key: bytes) -> bytes:
    if not isinstance(key, (bytes, bytearray)):
        raise Rejected(f'AesGcm key "{id}": expected {KEY_BYTES} bytes, found {type(key).__name__}. Decode it first if it is text.')
    if len(key) != KEY_BYTES:
        raise Rejected(f'AesGcm key "{id}": expected {KEY_BYTES} bytes, found {len(key)}. Make one with secrets.token_bytes({KEY_BYTES}).')
    return bytes(key)
