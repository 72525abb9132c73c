"""The tables that a shard's log folds into, and every question they answer. The only SQL of the project."""
from __future__ import annotations

from fusee_mp.store.store import CannotFold, Place, Store, StoreLocked, open_reader

__all__ = ["CannotFold", "Place", "Store", "StoreLocked", "open_reader"]
