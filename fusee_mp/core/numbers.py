"""The numbers of records: what is within these bounds can be added up, kept in a store's 64 bits, and sent on."""
from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta

from fusee_mp.bounds import SHARDS_MAX

Number: TypeAlias = Annotated[int, Meta(ge=0, lt=1 << 53)]
Signed: TypeAlias = Annotated[int, Meta(gt=-1 << 53, lt=1 << 53)]
Shard: TypeAlias = Annotated[int, Meta(ge=-1, lt=SHARDS_MAX)]
Seed: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
