# Large payloads in files of their own, beside a shard's log: `payloads/<run>/<name>`.
#
# Rule 1: a file is whole and flushed, and so is its name in its directory, before the record that names it is made. So a record never
#         names a file that a crash took away.
# Rule 2: what a crash leaves is a file that no record names. It goes when its run is next loaded, or, if the run itself was lost or is
#         deleted, at the next open.
# Rule 3: a record that goes to another shard, or that others are made from, keeps its payloads: the file's life is that of its run.
# Rule 4: where no file can be written, the payload stays in its record: the log knows what to do when the disk is full.
# Limit: writing waits for the disk, on the loop of the engine: some milliseconds for a payload of a MiB.
from __future__ import annotations

import logging
import os
import re
import shutil
import zlib
from collections.abc import Awaitable, Callable, Iterable
from hashlib import blake2b
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from fusee_mp.core import records as r
from fusee_mp.errors import PayloadError, StorageError

LOG: Final = logging.getLogger("fusee_mp.shard")
PAYLOADS: Final = "payloads"  # beside a shard's log and store
APART: Final = 3  # the first byte of a payload that says where the payload is
S = TypeVar("S", bound=Struct)
_FIELDS: Final[dict[type, str]] = {
    r.Start: "input", r.StepDone: "payload", r.Attempt: "failure", r.Signal: "payload", r.ChildDone: "payload", r.Update: "payload",
    r.UpdateDone: "payload", r.Completed: "payload", r.Done: "payload",
}
_ARCHIVED: Final = ".archived"
_NAME: Final = re.compile(r"[0-9a-f]{32}")


class Reference(Struct, array_like=True, frozen=True):
    run: int
    name: str
    size: int
    crc: int


_decode: Final = msgspec.msgpack.Decoder(Reference).decode


class Apart:
    """The payload files of one shard. above_bytes: which payloads go there; None: none, those that are there are read."""

    def __init__(self, directory: Path, above_bytes: int | None) -> None:
        self._directory = directory
        self.above_bytes = above_bytes

    def without_large(self, record: S) -> S:
        """The record with a large payload replaced by a reference to its file."""
        above = self.above_bytes
        name = _FIELDS.get(type(record))
        if above is None or name is None or isinstance(record, r.Done) and record.parent is not None:
            return record
        payload = getattr(record, name)
        if len(payload) <= above or payload[0] == APART:
            return record
        return msgspec.structs.replace(record, **{name: self._put(record.run, payload)})  # type: ignore[attr-defined]

    def _put(self, run: int, payload: bytes) -> bytes:
        place, name = self._directory / str(run), blake2b(payload, digest_size=16).hexdigest()
        try:
            is_new = not place.is_dir()
            place.mkdir(parents=True, exist_ok=True)
            _write(place / name, payload)
            for directory in (place, self._directory, self._directory.parent)[: 3 if is_new else 1]:
                _flush(directory)
        except OSError as e:
            LOG.warning("payload file %s cannot be written, so %d bytes go into the log: %s", place / name, len(payload), e)
            return payload
        return bytes((APART,)) + msgspec.msgpack.encode(Reference(run, name, len(payload), zlib.crc32(payload)))

    def get(self, payload: bytes) -> bytes:
        """The payload that a reference stands for. Raises PayloadError for one that is none, StorageError when its file is not
        as it was."""
        at = _reference(payload)
        path = self._directory / str(at.run) / at.name
        try:
            if not path.exists():
                path = self._directory / f"{at.run}{_ARCHIVED}" / at.name
            found = path.read_bytes()
        except OSError as e:
            raise StorageError(f"payload file {path} cannot be read: {e}. Restore it from a backup", path=str(path)) from e
        if len(found) != at.size or zlib.crc32(found) != at.crc:
            found_said = f"{len(found)} with {zlib.crc32(found):#x}"
            raise StorageError(f"payload file {path} is damaged: expected {at.size} bytes with checksum {at.crc:#x}, found {found_said}."
                               " Restore it from a backup", path=str(path))
        return found

    @staticmethod
    def size_of(payload: bytes) -> int:
        """Of what a reference stands for, as it is stored."""
        return _reference(payload).size

    # What is no longer named.

    def keep(self, run: int, records: Iterable[Struct]) -> None:
        """Of the files of a run, keep those that its journal names. Its journal must be whole."""
        place = self._directory / str(run)
        if not place.is_dir():
            return
        values = [getattr(record, name) for record in records if (name := _FIELDS.get(type(record))) is not None]
        values += [record.update.payload for record in records if isinstance(record, r.Start) and record.update is not None]
        named = {_reference(value).name for value in values if value[:1] == bytes((APART,))}
        for path in place.iterdir():
            if path.name not in named:
                path.unlink(missing_ok=True)

    def archive(self, run: int) -> None:
        """The run's journal is about to be archived: its files stay, under a name that no sweep looks at."""
        place = self._directory / str(run)
        if place.is_dir():
            place.rename(place.with_name(f"{run}{_ARCHIVED}"))
            _flush(self._directory)

    def forget(self, run: int) -> None:
        """The run is deleted, which is durable."""
        shutil.rmtree(self._directory / str(run), ignore_errors=True)

    def runs(self) -> list[int]:
        """The runs that have files, ascending."""
        names = os.listdir(self._directory) if self._directory.is_dir() else []
        return sorted(int(name) for name in names if name.isdecimal())


async def sweep(apart: Apart, next_run: int, find: Callable[[int], Awaitable[object]]) -> None:
    """Remove the files of runs that are not there. next_run: from there on runs were lost with a crash, and numbers are given anew."""
    for run in apart.runs():
        if run >= next_run or await find(run) is None:
            apart.forget(run)


def _reference(payload: bytes) -> Reference:
    try:
        found = _decode(payload[1:])
    except msgspec.DecodeError as e:
        raise PayloadError(f"expected the place of a payload, found {payload[:32]!r} ({e}): it was altered.", key=None) from None
    if payload[0] != APART or not _NAME.fullmatch(found.name):
        raise PayloadError(f"expected the place of a payload, found {payload[:32]!r}: it was altered.", key=None)
    return found


def _write(path: Path, payload: bytes) -> None:
    new = path.with_name(f"{path.name}.new")
    with open(new, "wb") as file:
        file.write(payload)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)  # equal payloads of a run share a file, which is whole at every moment


def _flush(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
