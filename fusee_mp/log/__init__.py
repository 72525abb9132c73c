"""The append-only log of one shard. Bytes only: what a record means is for others.

Names are imported when first used: a keeper reads logs and has no need of the event loop that writing one takes.
"""
from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fusee_mp.log.log import Log as Log
    from fusee_mp.log.options import LogOptions as LogOptions
    from fusee_mp.log.options import Position as Position
    from fusee_mp.log.options import Recovery as Recovery
    from fusee_mp.log.options import TornTail as TornTail
    from fusee_mp.log.reader import Batch as Batch
    from fusee_mp.log.reader import join_records as join_records
    from fusee_mp.log.reader import read_batches as read_batches
    from fusee_mp.log.reader import split_records as split_records
    from fusee_mp.log.recovery import Gap as Gap
    from fusee_mp.log.recovery import Recovered as Recovered
    from fusee_mp.log.recovery import damage as damage
    from fusee_mp.log.recovery import recover as recover

_HOMES = {
    "log": ("Log",),
    "options": ("LogOptions", "Position", "Recovery", "TornTail"),
    "reader": ("Batch", "join_records", "read_batches", "split_records"),
    "recovery": ("Gap", "Recovered", "damage", "recover"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    return value
