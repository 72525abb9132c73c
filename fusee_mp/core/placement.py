"""Which shard an ID lives in.

The rule is part of the data format: the first 8 bytes (little-endian) of BLAKE2b-64 of the ID's UTF-8 bytes, modulo the
number of shards. It needs no table, and every process in every language gives the same answer.
"""
from __future__ import annotations

from hashlib import blake2b

from fusee_mp.bounds import WORKFLOW_ID_BYTES_MAX
from fusee_mp.errors import Rejected


def id_hash(id: str) -> int:
    """The 64-bit hash of an ID."""
    return int.from_bytes(blake2b(id.encode(), digest_size=8).digest(), "little")


def shard_of(id: str, shards: int) -> int:
    """The shard, 0 to `shards` - 1, that holds every run of this ID."""
    if shards < 1:
        raise Rejected(f"a number of shards is at least 1, not {shards}")
    return id_hash(id) % shards if shards > 1 else 0


def check_id(id: object) -> str:
    """The ID itself, if it may be one; else Rejected."""
    if not isinstance(id, str):
        raise Rejected(f"a workflow ID is text, not {type(id).__name__} ({id!r})")
    try:
        size = len(id.encode())
    except UnicodeEncodeError as e:
        raise Rejected(f"workflow ID {id!r} has a lone surrogate at {e.start}: an ID is text that UTF-8 can hold") from None
    if not 1 <= size <= WORKFLOW_ID_BYTES_MAX:
        raise Rejected(f"a workflow ID has 1 to {WORKFLOW_ID_BYTES_MAX} UTF-8 bytes, this one has {size}: {id[:40]!r}")
    if "\0" in id:
        raise Rejected(f"workflow ID {id!r} has a NUL at {id.index(chr(0))}: take it out")
    return id
