"""Which IDs a shard may know: a set that answers "no" or "maybe" in 2 bytes an ID.

Layers of Bloom filters, each twice as large as the one before: a layer is never resized, so a full one never changes again and
has to be handed over or stored only once. With 16 bits and 6 probes an ID, a full layer calls one unknown ID in a thousand known.

1. A known ID is never answered "no". A layer that is missing or damaged therefore makes every answer "maybe".
2. Nothing is ever taken out: who deletes IDs builds the filter anew from time to time.
3. IDs enter as the 62-bit number that `key` makes. IDs of one shard agree modulo the number of shards, hence the mixing.
"""
from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Sequence
from typing import Final

from fusee_mp.core.placement import id_hash

FIRST_LAYER_IDS: Final = 1 << 16
_BITS_PER_ID: Final = 16
_STEPS: Final = (0, 1, 2, 3, 4, 5)
_U64: Final = (1 << 64) - 1
_MIX: Final = 0x9E37_79B9_7F4A_7C15
_HEADER: Final = struct.Struct("<4sIQQ")
_MAGIC: Final = b"idf1"


def key(id: str) -> int:
    """The number under which an ID is known: the upper 62 bits of its hash, so that it fits a signed 64-bit column."""
    return id_hash(id) >> 2


class _Layer:
    __slots__ = ("bits", "capacity", "count")

    def __init__(self, capacity: int, count: int, bits: bytearray) -> None:
        self.capacity = capacity
        self.count = count
        self.bits = bits


class IdFilter:
    """The IDs added so far, and a few more."""

    __slots__ = ("_complete", "_layers", "_newest", "_tables")

    def __init__(self, first_layer_ids: int = FIRST_LAYER_IDS) -> None:
        assert first_layer_ids >= 64 and not first_layer_ids & (first_layer_ids - 1), "a layer's size is a power of two"
        self._complete = True
        self._layers: list[_Layer] = []
        self._tables: list[tuple[bytearray, int]] = []
        self._grow(first_layer_ids)

    def __len__(self) -> int:
        """How many IDs were added."""
        return sum(layer.count for layer in self._layers)

    @property
    def is_complete(self) -> bool:
        """False when a layer is missing: then every answer is "maybe"."""
        return self._complete

    @property
    def layers(self) -> int:
        return len(self._layers)

    @property
    def layer_bytes(self) -> list[int]:
        """The size of what `layer` returns, for each."""
        return [_HEADER.size + len(layer.bits) for layer in self._layers]

    @property
    def newest_capacity(self) -> int:
        return self._newest.capacity

    def maybe(self, key: int) -> bool:
        """False only if this key was never added."""
        mixed = key * _MIX & _U64
        first, stride = mixed >> 24, mixed & 0xFF_FFFF | 1
        for bits, mask in self._tables:
            at = first & mask
            if bits[at >> 3] >> (at & 7) & 1 and _has_rest(bits, mask, first, stride):
                return True
        return not self._complete

    def add(self, key: int) -> None:
        """From now on `maybe` holds for the key. Meant for keys that it denies: one added again takes its room again."""
        if self._newest.count >= self._newest.capacity:
            self._grow(self._newest.capacity * 2)
        mixed = key * _MIX & _U64
        at, stride = mixed >> 24, mixed & 0xFF_FFFF | 1
        bits, mask = self._tables[-1]
        for step in _STEPS:
            place = at + step * stride & mask
            bits[place >> 3] |= 1 << (place & 7)
        self._newest.count += 1

    def _grow(self, capacity: int) -> None:
        self._append(_Layer(capacity, 0, bytearray(capacity * _BITS_PER_ID // 8)))

    def _append(self, layer: _Layer) -> None:
        self._newest = layer
        self._layers.append(layer)
        self._tables.append((layer.bits, len(layer.bits) * 8 - 1))

    def layer(self, index: int) -> bytes:
        """One layer as bytes, oldest first; only the last one still changes."""
        layer = self._layers[index]
        return _HEADER.pack(_MAGIC, zlib.crc32(layer.bits), layer.capacity, layer.count) + layer.bits

    @classmethod
    def from_layers(cls, layers: Sequence[bytes | None]) -> IdFilter:
        """The filter that these layers make. None, or bytes that are no intact layer, stand for a missing one."""
        if not layers:
            return cls()
        made = cls.__new__(cls)
        made._complete, made._layers, made._tables = True, [], []
        for data in layers:
            made._take(_read_layer(data) if data is not None else None)
        if not made._layers:
            made._grow(FIRST_LAYER_IDS)
        return made

    def _take(self, layer: _Layer | None) -> None:
        if layer is None:
            self._complete = False
        else:
            self._append(layer)

    @classmethod
    def of(cls, keys: Iterable[int], expected: int = FIRST_LAYER_IDS) -> IdFilter:
        """A filter of these keys, in one layer if there are not more than `expected`."""
        made = cls(max(FIRST_LAYER_IDS, 1 << max(0, expected - 1).bit_length()))
        for key in keys:
            if not made.maybe(key):
                made.add(key)
        return made


def _has_rest(bits: bytearray, mask: int, at: int, stride: int) -> bool:
    for step in _STEPS[1:]:
        place = at + step * stride & mask
        if not bits[place >> 3] >> (place & 7) & 1:
            return False
    return True


def _read_layer(data: bytes) -> _Layer | None:
    if len(data) < _HEADER.size:
        return None
    magic, check, capacity, count = _HEADER.unpack_from(data)
    bits = bytearray(data[_HEADER.size:])
    fits = magic == _MAGIC and len(bits) * 8 == capacity * _BITS_PER_ID and not capacity & (capacity - 1) and capacity >= 64
    return _Layer(capacity, count, bits) if fits and zlib.crc32(bits) == check else None
