"""The append-only log of one shard. Bytes only: what a record means is for others."""
from __future__ import annotations

from fusee_mp.log.log import Log, damage
from fusee_mp.log.options import LogOptions, Position, Recovery, TornTail
from fusee_mp.log.reader import Batch, join_records, read_batches, split_records
from fusee_mp.log.recovery import Gap, Recovered, recover

__all__ = [
    "Batch", "Gap", "Log", "LogOptions", "Position", "Recovered", "Recovery", "TornTail", "damage", "join_records", "read_batches", "recover",
    "split_records",
]
