# The limits whose home is this shard: their definitions, on disk, and who holds permits, in memory.
#
# A definition is durable before it holds: one that could not be saved changes nothing, and may be made again. Grants are not kept: after
# a restart nothing is granted for as long as a permit of the life before may still be held (core/permits.py, rule 3).
#
#   shard-NNN/limits    magic "FML1", CRC-32C of the rest (u32, little-endian), JSON: name -> {concurrent, per_second}
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from fusee_mp.checksum import crc32c
from fusee_mp.core.calls import LimitCall, LimitRow, LimitState
from fusee_mp.core.permits import LimitSpec, Permits
from fusee_mp.errors import Rejected, StorageError
from fusee_mp.log.disk import Disk

FILE: Final = "limits"
PAGE_LIMITS: Final = 500
_MAGIC: Final = b"FML1"
_HEAD_BYTES: Final = len(_MAGIC) + 4


class LimitTable:
    """The table of one shard. `directory` None keeps nothing; `uptime` gives ms since the open, None where no permit can be older."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self.uptime: Callable[[], int] | None = None
        self.permits = Permits()
        self.on_defined: Callable[[str], None] = lambda name: None
        if directory is not None:
            self._define_all(directory / FILE)

    def call(self, call: LimitCall, now_ms: int) -> LimitState:
        """Carry out a call on one of the limits."""
        if call.spec is not None:
            self.define(call.name, call.spec)
        permits = self.permits
        return LimitState(permits.in_use(call.name, now_ms), permits.waiting(call.name), permits.spec(call.name))

    def page(self, after: str, now_ms: int) -> list[LimitRow]:
        """The limits that come next behind a name, by name."""
        permits, names = self.permits, sorted(name for name in self.permits.names() if name > after)
        return [
            LimitRow(name, permits.in_use(name, now_ms), permits.waiting(name), permits.max_in_use(name), self._spec(name))
            for name in names[:PAGE_LIMITS]
        ]

    @property
    def uptime_ms(self) -> int | None:
        return None if self.uptime is None else self.uptime()

    def define(self, name: str, spec: LimitSpec) -> None:
        """Set a limit, durably. The same again changes nothing. Raises Rejected for one that cannot be, StorageError."""
        fault = spec.fault()
        if fault is not None:
            raise Rejected(fault)
        if self.permits.spec(name) == spec:
            return
        if self._directory is not None:
            _save(self._directory, {known: self._spec(known) for known in self.permits.names()} | {name: spec})
        self.permits.define(name, spec)
        self.on_defined(name)

    def _define_all(self, path: Path) -> None:
        for name, spec in _load(path).items():
            self.permits.define(name, spec)
        if self.permits.failure is not None:
            raise StorageError(f"damaged limit definitions: {path}: {self.permits.failure}", path=str(path))

    def _spec(self, name: str) -> LimitSpec:
        spec = self.permits.spec(name)
        assert spec is not None
        return spec


def _load(path: Path) -> dict[str, LimitSpec]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise StorageError(f"the limit definitions {path} cannot be read: {error}", path=str(path)) from error
    head, body = data[:_HEAD_BYTES], data[_HEAD_BYTES:]
    if head != _head(body):
        raise StorageError(
            f"damaged limit definitions: {path} does not match its checksum. Restore it from a backup, or remove it and define"
            " the limits again", path=str(path),
        )
    try:
        return msgspec.json.decode(body, type=dict[str, LimitSpec])
    except msgspec.DecodeError as error:
        raise StorageError(f"damaged limit definitions: {path}: {error}", path=str(path)) from error


def _head(body: bytes) -> bytes:
    return _MAGIC + crc32c(body).to_bytes(4, "little")


def _save(directory: Path, specs: dict[str, LimitSpec]) -> None:
    body = msgspec.json.encode(specs)
    disk, new = Disk(str(directory)), FILE + ".new"
    try:
        disk.unlink(new)
        fd = disk.open(new, create=True)
        try:
            disk.write_at(fd, _head(body) + body, 0)
            disk.flush_fd(fd)
        finally:
            disk.close(fd)
        disk.rename(new, FILE)
        disk.flush_directory()
    except OSError as error:
        raise StorageError(f"the limit definitions in {directory} cannot be written: {error}") from error
