"""The keeper of an engine that keeps nothing on disk: the same questions over tables in memory, folded when somebody asks.

`publish_records` only puts a batch aside; it becomes rows when a question needs it, or 200 ms later. Nothing here survives the process.
"""
from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any, Final

import msgspec

from fusee_mp.errors import StorageError, Unavailable
from fusee_mp.keeper.owner import HasLsn, ignore
from fusee_mp.keeper.slow import answer_by
from fusee_mp.store import CannotFold, Store
from fusee_mp.store.reads import question

FOLD_S: Final = 0.2


class MemoryKeeper:
    """Keeper's interface without a process. What is published counts as durable, and is applied once somebody asks or it is due."""

    def __init__(self) -> None:
        self.applied_lsn = self.checkpoint_lsn = self.epoch = self.published_lsn = self.pid = 0
        self.trouble = self.trouble_kind = ""
        self.on_applied: Callable[[int], None] = ignore
        self.on_checkpoint: Callable[[int], None] = ignore
        self.on_exit: Callable[[str], None] = ignore
        self.on_trouble: Callable[[str], None] = ignore
        self._store = Store.open(":memory:")
        self._batches: list[tuple[int, bytes | memoryview]] = []
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    @property
    def lag(self) -> int:
        """Records that are published and not applied."""
        return max(0, self.published_lsn - self.applied_lsn)

    def publish_records(self, first_lsn: int, body: bytes | memoryview) -> None:
        """The batch that follows the last one; `body` holds each record behind its length, and is not changed after this."""
        self._batches.append((first_lsn, body))
        if self._timer is None and not self._is_closed:
            self._timer = asyncio.get_running_loop().call_later(FOLD_S, self._on_timer)
        if self._waiters:
            self._apply()

    def publish(self, position: HasLsn) -> None:
        """How far the log is; the records themselves come by `publish_records`."""
        self.published_lsn = max(self.published_lsn, position.lsn)

    def _on_timer(self) -> None:
        self._timer = None
        self._apply()

    def _apply(self) -> None:
        batches, self._batches = self._batches, []
        if not batches or self.trouble:
            return
        try:
            for first_lsn, body in batches:
                self._store.fold(first_lsn, body)
                if self._store.is_full:
                    self._store.commit()
        except CannotFold as e:
            self._halt(e)
        self._store.commit()
        self._tell()

    def _halt(self, error: CannotFold) -> None:
        self.trouble_kind, self.trouble = "record", f"{error}. Folding has halted"
        self.on_trouble(self.trouble)

    def _tell(self) -> None:
        self.applied_lsn = self._store.applied_lsn
        self.published_lsn = max(self.published_lsn, self.applied_lsn)
        for lsn, waiter in self._waiters:
            if not waiter.done() and (lsn <= self.applied_lsn or self.trouble):
                waiter.set_result(None)
        self.on_applied(self.applied_lsn)

    async def read(self, method: str, args: Sequence[Any] = (), *, min_lsn: int = 0, timeout: float = 10.0) -> Any:
        """As Keeper.read. A list or count holds up the event loop, for at most `timeout` seconds."""
        return msgspec.convert(await self._read(method, list(args), min_lsn, timeout), question(method).result)

    async def read_bytes(self, method: str, args: bytes, *, min_lsn: int = 0, timeout: float = 10.0) -> bytes:
        """As Keeper.read_bytes."""
        return msgspec.msgpack.encode(await self._read(method, msgspec.msgpack.decode(args, type=list[Any]), min_lsn, timeout))

    async def _read(self, method: str, args: list[Any], min_lsn: int, timeout: float) -> Any:
        deadline, asked = monotonic() + timeout, question(method)
        self._apply()
        if min_lsn > self.applied_lsn:
            await self._wait(method, min_lsn, timeout)
        if self._is_closed:
            raise Unavailable("the engine in memory was closed, and with it its runs")
        if asked.lane != "at once":
            return answer_by(deadline, self._store.db, method, args)
        return self._store.read(method, args)

    async def _wait(self, method: str, min_lsn: int, timeout: float) -> None:
        waiter = (min_lsn, asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        try:
            if not self.trouble:
                await asyncio.wait_for(waiter[1], timeout)
        except TimeoutError:
            pass
        finally:
            self._waiters.remove(waiter)
        if min_lsn > self.applied_lsn:
            cause = self.trouble or f"nothing later came within {timeout:g} s"
            raise Unavailable(f'"{method}" needs LSN {min_lsn}, the tables are at {self.applied_lsn}: {cause}', trouble=self.trouble_kind)

    async def checkpoint(self, timeout: float = 60.0) -> int:
        """Apply everything published. There is no disk for it to be safe on."""
        self._apply()
        self.checkpoint_lsn = self.applied_lsn
        self.on_checkpoint(self.checkpoint_lsn)
        return self.checkpoint_lsn

    async def close(self, *, checkpoint: bool = False) -> None:
        """Drop everything. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        for _, waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(StorageError("the engine in memory was closed"))
        self._store.close()
