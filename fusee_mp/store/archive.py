# Journals of runs that are gone, where they are kept: files beside the store that only ever grow.
#
# A file is the magic, then entries: length (u32, little-endian), CRC-32C of the body (u32), body. A body is the MessagePack array of
# `Archived`.
# Rule 1: an entry is flushed before the transaction that deletes its run commits. A crash in between leaves an entry twice: the run's
#         number tells.
# Rule 2: each process begins a file of its own, when it has something to archive. So only the end of a file can be unfinished, by a
#         crash; an entry before the end that does not fit its checksum is damage.
from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from io import FileIO
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from fusee_mp.bounds import ARCHIVE_FILE_BYTES
from fusee_mp.checksum import crc32c
from fusee_mp.errors import StorageError

DIRECTORY: Final = "archive"
SUFFIX: Final = ".arc"
MAGIC: Final = b"fusearc\x01"
_ENTRY: Final = struct.Struct("<II")


class Archived(Struct, array_like=True, frozen=True):
    """One journal: of run `run` of workflow ID `id`, its records with their lengths, and the LSN of each."""

    run: int
    id: str
    lsns: list[int]
    data: bytes


_decode: Final = msgspec.msgpack.Decoder(Archived).decode


class Archive:
    """Appends to the archive in this directory, which is made when needed. `close` closes its file."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file: FileIO | None = None

    def add(self, journals: Sequence[Archived]) -> None:
        """Write these journals; on return they are on disk. Raises OSError, and then begins another file."""
        entries = [_entry(journal) for journal in journals if journal.data]
        if not entries:
            return
        try:
            if self._file is None or self._file.tell() >= ARCHIVE_FILE_BYTES:
                self._begin()
            assert self._file is not None
            data = memoryview(b"".join(entries))
            while data:
                data = data[self._file.write(data):]
            os.fdatasync(self._file.fileno())
        except OSError:
            self.close()
            raise

    def _begin(self) -> None:
        self.close()
        self._directory.mkdir(exist_ok=True)
        number = 1 + max((int(path.stem) for path in _files(self._directory)), default=0)
        self._file = open(self._directory / f"{number:06}{SUFFIX}", "xb", buffering=0)  # noqa: SIM115  # `close` closes it
        self._file.write(MAGIC)
        for directory in (self._directory, self._directory.parent):
            _flush_directory(directory)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _entry(journal: Archived) -> bytes:
    body = msgspec.msgpack.encode(journal)
    return _ENTRY.pack(len(body), crc32c(body)) + body


def _files(directory: Path) -> list[Path]:
    """In the order in which they were begun. Files of other names are none of ours."""
    found = [path for path in directory.glob(f"*{SUFFIX}") if path.stem.isdecimal()]
    return sorted(found, key=lambda path: int(path.stem))


def _flush_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def read_archive(directory: Path) -> Iterator[Archived]:
    """Every journal in an archive, once, what was archived last first. Raises StorageError where a file is damaged."""
    seen: set[int] = set()
    for path in reversed(_files(directory)):
        for journal in reversed(list(_read(path))):
            if journal.run not in seen:
                seen.add(journal.run)
                yield journal


def _read(path: Path) -> Iterator[Archived]:
    with open(path, "rb") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(0)
        magic = file.read(len(MAGIC))
        if magic != MAGIC[: len(magic)]:
            raise _damaged(path, 0, "it does not begin as an archive")
        at = len(MAGIC)
        while at + _ENTRY.size <= end:
            size, checksum = _ENTRY.unpack(file.read(_ENTRY.size))
            at += _ENTRY.size + size
            if at > end:
                return  # a crash left it unfinished
            body = file.read(size)
            if crc32c(body) == checksum:
                yield _decoded(path, at - size, body)
            elif at < end:
                raise _damaged(path, at - size, "an entry does not fit its checksum")


def _decoded(path: Path, at: int, body: bytes) -> Archived:
    try:
        return _decode(body)
    except msgspec.MsgspecError as e:
        raise _damaged(path, at, str(e)) from e


def _damaged(path: Path, offset: int, reason: str) -> StorageError:
    return StorageError(f"archive {path} is damaged at offset {offset}: {reason}. Restore the file from a backup, or move it away",
                        path=str(path), offset=offset)
