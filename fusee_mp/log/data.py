"""An open data directory, and shard locks that wait for a predecessor's end."""
from __future__ import annotations

import asyncio
import secrets
from pathlib import Path
from typing import Final

from fusee_mp.errors import StorageError
from fusee_mp.log.directory import LOCK, Lock, Meta, open_directory

SUCCESSION_S: Final = 10.0


class DataDirectory:
    """A data directory, locked by this process until `close`."""

    def __init__(self, path: Path, lock: Lock, meta: Meta) -> None:
        self.path = path
        self.shards = meta.shards
        self.id = meta.id
        self._lock = lock

    @classmethod
    def open(cls, path: Path, shards: int | None = None) -> DataDirectory:
        """Open a data directory, or make one in a folder that is missing or empty; `shards` None is what it has, 1 for a new one.

        Raises StorageError when it is in use, is not ours, has another format or another number of shards.
        """
        lock = Lock.acquire(path / LOCK)
        try:
            return cls(path, lock, open_directory(path, shards, new_id=lambda: secrets.token_hex(8)))
        except BaseException:
            lock.release()
            raise

    def close(self) -> None:
        self._lock.release()


async def acquire_soon(path: Path, within_s: float = SUCCESSION_S) -> Lock:
    """Take a lock once the last helper of a predecessor is gone. Raises StorageError when that takes longer than `within_s`."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_s
    while True:
        try:
            return Lock.acquire(path)
        except StorageError:
            if loop.time() >= deadline:
                raise
        await asyncio.sleep(0.01)
