"""Valid examples, spoilt: in one place of all, or at random in several."""
from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

# What lengths, counts and codecs trip over.
_BYTES = (0x00, 0x01, 0x7F, 0x80, 0x90, 0xC0, 0xC1, 0xDB, 0xDD, 0xDF, 0xFE, 0xFF)
_PIECES = (b"", b"\0" * 8, b"\xff" * 8, b"\xff\xff\xff\x7f", b"\xdd\xff\xff\xff\xff", b"\x91" * 300, b"9" * 5000,
           "\u0663\ud7ff\U0001f600".encode(), b"\r\n", b"%00", b'"', b"{[", b"-1", b"1e999", b"NaN")


def byte_by_byte(data: bytes, values: Sequence[int] = _BYTES) -> Iterator[bytes]:
    """Cut at every byte; and every byte in turn another one, gone, and twice."""
    for at in range(len(data)):
        yield data[:at]
        yield data[:at] + data[at + 1:]
        yield data[:at] + data[at:at + 1] + data[at:]
        for value in (*values, data[at] ^ 1, data[at] ^ 0x80):
            yield data[:at] + bytes([value]) + data[at + 1:]


def mutated(examples: Sequence[bytes], chance: random.Random) -> bytes:
    """One of them with one to four changes; now and then nothing but noise."""
    if chance.random() < 0.05:
        return chance.randbytes(chance.randrange(64))
    data = chance.choice(examples)
    for _ in range(chance.randint(1, 4)):
        data = chance.choice(_CHANGES)(data, examples, chance)[:1 << 16]
    return data


def _flip(data: bytes, examples: Sequence[bytes], chance: random.Random) -> bytes:
    if not data:
        return data
    at = chance.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1:]


def _set(data: bytes, examples: Sequence[bytes], chance: random.Random) -> bytes:
    at = chance.randrange(len(data) + 1)
    return data[:at] + bytes([chance.choice(_BYTES)]) + data[at + 1:]


def _cut(data: bytes, examples: Sequence[bytes], chance: random.Random) -> bytes:
    start, end = sorted((chance.randrange(len(data) + 1), chance.randrange(len(data) + 1)))
    return data[:start] + data[end:]


def _insert(data: bytes, examples: Sequence[bytes], chance: random.Random) -> bytes:
    at = chance.randrange(len(data) + 1)
    return data[:at] + chance.choice((*_PIECES, chance.randbytes(4))) + data[at:]


def _splice(data: bytes, examples: Sequence[bytes], chance: random.Random) -> bytes:
    other = chance.choice(examples)
    return data[:chance.randrange(len(data) + 1)] + other[chance.randrange(len(other) + 1):]


_CHANGES = (_flip, _set, _cut, _insert, _splice)
