# The limits whose home is this shard: their definitions, on disk, and who holds permits, in memory.
#
# Rule 1: a definition is on disk before it is in force, and in force before `define` returns. One whose save failed changes nothing, and
#         then nobody knows what the file holds: the next one is saved even if it is the same.
# Rule 2: a thread writes the file, one at a time. What is defined meanwhile goes into the next one together, in its order.
# Grants are not kept: after a restart nothing is granted for as long as a permit of the life before may still be held (core/permits.py,
# rule 3).
#
#   shard-NNN/limits    magic "FML1", CRC-32C of the rest (u32, little-endian), JSON: name -> {concurrent, per_second}
from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from fusee_mp.bounds import LIMITS_MAX
from fusee_mp.checksum import crc32c
from fusee_mp.core.calls import LimitCall, LimitRow, LimitState
from fusee_mp.core.permits import LimitSpec, Permits
from fusee_mp.errors import Rejected, StorageError
from fusee_mp.log.disk import Disk
from fusee_mp.names import checked_name

FILE: Final = "limits"
PAGE_LIMITS: Final = 500
_MAGIC: Final = b"FML1"
_HEAD_BYTES: Final = len(_MAGIC) + 4


class _Asked(NamedTuple):
    name: str
    spec: LimitSpec
    done: asyncio.Future[None]


class LimitTable:
    """The table of one shard. `directory` None keeps nothing; `uptime` gives ms since the open, None where no permit can be older."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self.uptime: Callable[[], int] | None = None
        self.permits = Permits()
        self.on_defined: Callable[[str], None] = lambda name: None
        self._specs = {} if directory is None else self._define_all(directory / FILE)
        self._names = set(self._specs)  # with those that are being defined
        self._asked: list[_Asked] = []
        self._saving: asyncio.Task[None] | None = None
        self._is_doubtful = False  # a save failed: the file may hold what was before it, or what should have come

    async def call(self, call: LimitCall, clock_ms: Callable[[], int]) -> LimitState:
        """Carry out a call on one of the limits."""
        if call.spec is not None:
            await self.define(call.name, call.spec)
        permits = self.permits
        return LimitState(permits.in_use(call.name, clock_ms()), permits.waiting(call.name), self._specs.get(call.name))

    def page(self, after: str, now_ms: int) -> list[LimitRow]:
        """The limits that come next behind a name, by name."""
        permits, names = self.permits, heapq.nsmallest(PAGE_LIMITS, (name for name in self._specs if name > after))
        return [
            LimitRow(name, permits.in_use(name, now_ms), permits.waiting(name), permits.max_in_use(name), self._specs[name])
            for name in names
        ]

    @property
    def uptime_ms(self) -> int | None:
        return None if self.uptime is None else self.uptime()

    async def define(self, name: str, spec: LimitSpec) -> None:
        """Set a limit, durably. The same again changes nothing. Raises Rejected (it cannot be, or is one too many), StorageError."""
        checked_name("limit", name)
        spec.check()
        if name not in self._names and len(self._names) >= LIMITS_MAX:
            raise Rejected(f'limit "{name}": its shard has {LIMITS_MAX:,} limits, and may have no more. Let steps share one', limit=name)
        self._names.add(name)
        loop = asyncio.get_running_loop()
        asked = _Asked(name, spec, loop.create_future())
        self._asked.append(asked)
        if self._saving is None:
            self._saving = loop.create_task(self._save_asked())
        await asked.done

    def _define_all(self, path: Path) -> dict[str, LimitSpec]:
        specs = _load(path)
        for name, spec in specs.items():
            self.permits.define(name, spec)
        if self.permits.failure is not None:
            raise StorageError(f"damaged limit definitions: {path}: {self.permits.failure}", path=str(path))
        return specs

    async def _save_asked(self) -> None:
        while self._asked:
            asked, self._asked = self._asked, []
            error: Exception | None = None
            try:
                await self._commit({one.name: one.spec for one in asked})
            except Exception as e:
                error = e
                self._names = {*self._specs, *(one.name for one in self._asked)}
            for one in asked:
                _settle(one.done, error)
        self._saving = None

    async def _commit(self, specs: dict[str, LimitSpec]) -> None:
        news = {name: spec for name, spec in specs.items() if self._specs.get(name) != spec}
        if self._directory is not None and (news or self._is_doubtful):
            self._is_doubtful = True
            await asyncio.to_thread(_save, self._directory, self._specs | news)
            self._is_doubtful = False
        self._specs.update(news)
        for name, spec in news.items():
            self.permits.define(name, spec)
            self.on_defined(name)

    async def close(self) -> None:
        """Return when everything that was asked for is written, or could not be."""
        if self._saving is not None:
            await asyncio.wait([self._saving])


def _settle(done: asyncio.Future[None], error: Exception | None) -> None:
    if done.done():  # nobody waits for it any more
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)


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
