"""Tokens: what somebody outside is given, to complete an operation that a run waits for.

A token is opaque text. It says which attempt of which operation of which run it is for, under a seal that only the start of that run
gives (its recorded random seed), so a token that was altered, guessed or made by another server fits no run.
"""
from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import blake2b
from hmac import compare_digest
from typing import Final

import msgspec
from msgspec import Struct

from fusee_mp.bounds import WORKFLOW_ID_BYTES_MAX
from fusee_mp.core.records import Start
from fusee_mp.errors import Rejected

PREFIX: Final = "fc1_"
SEAL_BYTES: Final = 12
TOKEN_CHARS_MAX: Final = 8 * WORKFLOW_ID_BYTES_MAX


class Token(Struct, array_like=True, frozen=True, gc=False):
    """What a token says."""

    id: str
    run: int
    op: str
    attempt: int
    seal: bytes


_decode: Final = msgspec.msgpack.Decoder(Token).decode


def seal(start: Start, op: str, attempt: int) -> bytes:
    """What only the run that began with this start can have given out."""
    said = msgspec.msgpack.encode((start.id, start.run, op, attempt))
    return blake2b(said, digest_size=SEAL_BYTES, key=start.seed.to_bytes(8, "big"), person=b"fusee-token").digest()


def token(start: Start, op: str, attempt: int) -> str:
    """The token of one attempt; always the same."""
    said = Token(start.id, start.run, op, attempt, seal(start, op, attempt))
    return PREFIX + urlsafe_b64encode(msgspec.msgpack.encode(said)).rstrip(b"=").decode()


def fits(start: Start, op: str, attempt: int, given: bytes) -> bool:
    """The seal is that of this run."""
    return compare_digest(seal(start, op, attempt), given)


def read_token(text: str) -> Token:
    """What a token says, unproven. Raises Rejected for text that is none."""
    if not isinstance(text, str) or len(text) > TOKEN_CHARS_MAX or not text.startswith(PREFIX):
        raise _damaged(text)
    data = text[len(PREFIX):]
    try:
        return _decode(urlsafe_b64decode(data + "=" * (-len(data) % 4)))
    except (binascii.Error, msgspec.DecodeError, ValueError):
        raise _damaged(text) from None


def _damaged(text: object) -> Rejected:
    return Rejected(f"expected a token as ctx.completion gave it to its sender, found {text!r:.60}: hand it on whole and unchanged")
