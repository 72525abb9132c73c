# The data directory: who may use it, and what it says about itself.
#
#   fusee.meta    text: format=1, shards=N, id=..; written once, when the directory is made
#   lock          held by the engine or the server; each shard-NNN/lock by the process of that shard
#
# A lock is an flock on an open file: the kernel gives it back when the last process that holds the descriptor ends, however it
# ends. Helpers inherit it, so a successor waits until the last of them is gone.
"""Data directories: meta file, locks, and the names of shards' directories."""
from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import secrets
from pathlib import Path
from typing import Final

from fusee_mp.bounds import SHARDS_MAX
from fusee_mp.errors import StorageError
from fusee_mp.log.disk import Disk

FORMAT: Final = 1
META: Final = "fusee.meta"
SUCCESSION_S: Final = 10.0


def shard_directory(data: Path, shard: int) -> Path:
    """Where a shard keeps its files."""
    return data / f"shard-{shard:03d}"


class DirectoryLock:
    """An exclusive lock on a file. `fd` may be inherited: the lock lasts until every copy of it is closed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    @classmethod
    def acquire(cls, path: Path) -> DirectoryLock:
        """Take the lock or raise StorageError that names its holder."""
        lock = cls(path)
        try:
            fcntl.flock(lock.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(lock.fd, 32, 0).decode("ascii", "replace").strip()
            os.close(lock.fd)
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise StorageError(f"{path} cannot be locked: {error}") from error
            who = f"process {holder}" if holder.isdigit() else "another process"
            raise StorageError(
                f"the data directory {path.parent} is in use by {who}: stop it, or use another directory", path=str(path), holder=holder,
            ) from None
        os.ftruncate(lock.fd, 0)
        os.pwrite(lock.fd, f"{os.getpid()}\n".encode(), 0)
        return lock

    @classmethod
    async def acquire_soon(cls, path: Path, within_s: float = SUCCESSION_S) -> DirectoryLock:
        """Take the lock once a predecessor's last helper is gone. Raises StorageError when that takes longer than `within_s`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_s
        while True:
            try:
                return cls.acquire(path)
            except StorageError:
                if loop.time() >= deadline:
                    raise
            await asyncio.sleep(0.01)

    def release(self) -> None:
        """Give the lock back, as far as this process holds it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class DataDirectory:
    """An open data directory: locked, of a known format and number of shards."""

    def __init__(self, path: Path, lock: DirectoryLock, shards: int, id: str) -> None:
        self.path = path
        self.shards = shards
        self.id = id
        self._lock = lock

    @classmethod
    def open(cls, path: Path, shards: int | None = None) -> DataDirectory:
        """Open a data directory, or make one in a folder that is missing or empty.

        `shards` None is what the directory has, 1 for a new one. Raises StorageError when it is in use, is not ours, has a format
        that this version does not know, or another number of shards.
        """
        try:
            path.mkdir(parents=True, exist_ok=True)
            if not (path / META).exists():
                _check_empty(path)
            lock = DirectoryLock.acquire(path / "lock")
        except OSError as error:
            raise StorageError(f"the data directory {path} cannot be used: {error}", path=str(path)) from error
        try:
            if not (path / META).exists():
                _write_meta(path, shards or 1, secrets.token_hex(8))
            found, id = read_meta(path)
            _check_shards(path, found, shards)
        except BaseException:
            lock.release()
            raise
        return cls(path, lock, found, id)

    def close(self) -> None:
        self._lock.release()


def read_meta(path: Path) -> tuple[int, str]:
    """The number of shards and the ID that a directory's meta file names. Raises StorageError for what this version cannot use."""
    file = path / META
    try:
        text = file.read_text("ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise StorageError(f"{path} is not a fusee-mp data directory: {error}", path=str(path)) from error
    values = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    format = values.get("format", "")
    if format == "reshard":
        raise StorageError(f"{path} is in the middle of a change of its shards: run `fusee-mp reshard` again to finish it", path=str(path))
    if format != str(FORMAT):
        raise StorageError(f'{file} names format "{format}", this version knows {FORMAT}: use the version that made it, or upgrade', path=str(path))
    shards = values.get("shards", "")
    if not shards.isascii() or not shards.isdigit() or not 1 <= int(shards) <= SHARDS_MAX:
        raise StorageError(f'{file} names "{shards}" shards: expected 1 to {SHARDS_MAX}. Restore it from a backup', path=str(path))
    return int(shards), values.get("id", "")


def _write_meta(path: Path, shards: int, id: str) -> None:
    if not 1 <= shards <= SHARDS_MAX:
        raise StorageError(f"a data directory has 1 to {SHARDS_MAX} shards, not {shards}")
    temporary = path / f"{META}.new"
    with open(temporary, "w", encoding="ascii") as file:
        file.write(f"format={FORMAT}\nshards={shards}\nid={id}\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path / META)
    Disk(str(path)).flush_directory()


def _check_empty(path: Path) -> None:
    strangers = sorted(entry.name for entry in path.iterdir() if entry.name not in ("lock", f"{META}.new"))
    if strangers:
        raise StorageError(
            f'{path} is not a fusee-mp data directory: it has no {META}, but it has "{strangers[0]}". Name an empty or a new folder',
            path=str(path),
        )


def _check_shards(path: Path, found: int, wanted: int | None) -> None:
    if wanted is not None and wanted != found:
        raise StorageError(
            f"{path} has {found} shard{'s' if found > 1 else ''}, not {wanted}: open it with {found}, or change it with"
            f" `fusee-mp reshard {path} {wanted}`", path=str(path), shards=found,
        )
