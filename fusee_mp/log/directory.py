# A data directory and who may write in it.
#
# `fusee.meta` says that a directory is ours, and how many shards it has; it is replaced whole or not at all. A `lock` file is locked
# with flock, which ends with the last process that holds a copy of the descriptor, however it dies: a shard hands its copy to
# its helper and keeper, so a successor waits until nobody of the old life can write any more.
"""The data directory: its meta file, its locks, the folders of its shards."""
from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fusee_mp import bounds
from fusee_mp.errors import Rejected, StorageError
from fusee_mp.log.disk import Disk
from fusee_mp.log.format import FORMAT

META = "fusee.meta"
LOCK = "lock"
RESHARDING = "reshard"
META_BYTES_MAX = 4096
# What a start may leave behind before there is a meta file.
_OURS_BEFORE_META = frozenset({LOCK, META + ".new", "lost+found"})
_LINE = re.compile(r"(format|shards|id)=(\S+)")


@dataclass(frozen=True)
class Meta:
    """What the meta file says; `format` is a number as text, or "reshard" while the shard count is being changed."""

    shards: int
    id: str
    format: str = str(FORMAT)

    def text(self) -> str:
        return f"format={self.format}\nshards={self.shards}\nid={self.id}\n"


def shard_directory(directory: Path, shard: int) -> Path:
    return directory / f"shard-{shard:03d}"


def log_directory(directory: Path, shard: int) -> Path:
    return shard_directory(directory, shard) / "log"


def open_directory(directory: Path, shards: int | None, *, new_id: Callable[[], str]) -> Meta:
    """The meta of a directory, which is made if it is missing or empty: with `shards` shards, or one.

    Hold the directory's lock. `shards` of None takes the count that is there. Raises StorageError for another shard count, another
    format and a directory that is not ours; nothing is changed then.
    """
    if shards is not None and not 1 <= shards <= bounds.SHARDS_MAX:
        raise Rejected(f"a directory has 1 to {bounds.SHARDS_MAX} shards, not {shards}")
    meta = read_meta(directory)
    if meta is None:
        return _create(directory, Meta(shards or 1, new_id()))
    _check_format(directory, meta)
    if shards is not None and shards != meta.shards:
        raise StorageError(
            f"directory {directory} has {meta.shards} shards, and {shards} were asked for. Start with {meta.shards}, or "
            "without a number: it cannot be changed. For another number start anew, in another directory",
            found=meta.shards, asked=shards,
        )
    return meta


def read_meta(directory: Path) -> Meta | None:
    """The meta file of a directory, or None where there is none. Raises StorageError where it cannot be understood."""
    try:
        with open(directory / META, "rb") as file:
            data = file.read(META_BYTES_MAX)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"meta file {directory / META} cannot be read: {error}") from error
    lines = [_LINE.fullmatch(line) for line in data.decode("utf-8", "replace").splitlines()]
    values = {match[1]: match[2] for match in lines if match}
    if not all(lines) or set(values) != {"format", "shards", "id"} or not _is_count(values["shards"]):
        raise StorageError(
            f"meta file {directory / META} should have the lines format=, shards= (1 to {bounds.SHARDS_MAX}) and id=, and has {data!r}. "
            "Restore it from a backup, or correct it by hand."
        )
    return Meta(int(values["shards"]), values["id"], values["format"])


def write_meta(directory: Path, meta: Meta) -> None:
    """Replace the meta file; after a crash the old or the new one is there, whole. Raises StorageError."""
    disk, new = Disk(str(directory)), META + ".new"
    try:
        disk.unlink(new)
        fd = disk.open(new, create=True)
        try:
            disk.write_at(fd, meta.text().encode(), 0)
            disk.flush_fd(fd)
        finally:
            disk.close(fd)
        disk.rename(new, META)
        disk.flush_directory()
    except OSError as error:
        raise StorageError(f"meta file {directory / META} cannot be written: {error}") from error


def _create(directory: Path, meta: Meta) -> Meta:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        others = sorted(entry.name for entry in os.scandir(directory) if entry.name not in _OURS_BEFORE_META and not _is_socket(entry))
    except OSError as error:
        raise StorageError(f"directory {directory} cannot be used: {error}") from error
    if others:
        raise StorageError(
            f"directory {directory} has no {META} but is not empty ({', '.join(others[:3])}, ..): it is not a data directory. "
            "Give an empty or a new one, or restore the meta file."
        )
    write_meta(directory, meta)
    return meta


def _is_socket(entry: os.DirEntry[str]) -> bool:
    """A server listens before it opens its directory, perhaps on a socket in it."""
    return stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode)


def _check_format(directory: Path, meta: Meta) -> None:
    if meta.format == RESHARDING:
        raise StorageError(
            f"a change of the shard count of {directory} was interrupted, and this version does not change it. Finish it with the version"
            " that began it"
        )
    if meta.format != str(FORMAT):
        raise StorageError(
            f"directory {directory} has format {meta.format}, and this version reads format {FORMAT}. Use the version that wrote it, "
            "or one that reads its format.",
            found=meta.format, expected=str(FORMAT),
        )


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 4 and 1 <= int(text) <= bounds.SHARDS_MAX


class Lock:
    """An exclusive lock on a file, held until `release` or until every process with a copy of `fd` is gone."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self.fd = fd

    @classmethod
    def acquire(cls, path: Path) -> Lock:
        """Take the lock at once, or raise StorageError that names the holder. Makes the file and its folder if need be."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        except OSError as error:
            raise StorageError(
                f"lock file {path} cannot be opened: {error}. Give a directory in which this process may make files") from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = _holder(fd)
            os.close(fd)
            raise _not_locked(path, holder, error) from error
        with suppress(OSError):  # The number is a courtesy: a full disk must not keep anybody from starting.
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        return cls(path, fd)

    def release(self) -> None:
        """Give this process's copy back; a second call does nothing."""
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            os.close(fd)


def _holder(fd: int) -> int | None:
    try:
        text = os.pread(fd, 20, 0).decode("ascii", "replace").strip()
    except OSError:
        return None
    return int(text) if text.isascii() and text.isdigit() else None


def _not_locked(path: Path, holder: int | None, error: OSError) -> StorageError:
    if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
        return StorageError(f"lock file {path} cannot be locked: {error}")
    who = f"process {holder} or a helper of it" if holder else "another process"
    return StorageError(f"{path.parent} is in use by {who} (lock file {path}). Stop that first, or use another directory.", holder=holder)
