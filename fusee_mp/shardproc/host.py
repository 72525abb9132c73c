# Where a shard's log and keeper live, in a shard process as in an embedded engine.
#
# Rule 1: a grant is durable before its holder appends, its epoch is higher than every earlier one, and from then on only the
#         holder's records follow.
# Rule 2: a keeper that ended is started again, with growing pauses; what was asked meanwhile waits for it. Its end loses nothing:
#         the log has everything, and segments go only when a checkpoint covers them. One that hangs is ended: health is progress.
# Rule 3: when a write or a flush of the log fails, nothing more is acknowledged, and the owner is told to give up the process.
from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from fusee_mp.core import records as r
from fusee_mp.errors import FuseeError, StorageError, StorageFull, Unavailable
from fusee_mp.keeper.owner import Keeper
from fusee_mp.log import Log, LogOptions, TornTail
from fusee_mp.log.data import acquire_soon
from fusee_mp.log.directory import LOCK, Lock, shard_directory
from fusee_mp.shardproc.limits import LimitTable

LOG: Final = logging.getLogger("fusee_mp.shard")
PLACE_AGAIN_S: Final = 0.2
RESTART_FIRST_S: Final = 0.05
RESTART_MOST_S: Final = 5.0
# A keeper that is behind and has not moved for one look is asked for a sign of life. Between two slices it can always give one; a
# commit to a slow disk may take some seconds.
LOOK_S: Final = 5.0
SIGN_OF_LIFE_S: Final = 10.0
# A question that so many keepers ended over may be the cause.
KEEPERS_MAX: Final = 5
# So many records behind, and new work is refused until the keeper has caught up.
LAG_RECORDS_MAX: Final = 200_000


def ignore(_: Any) -> None:
    """What is called when nobody wants to know."""


@dataclass(frozen=True)
class HostOptions:
    log: LogOptions = field(default_factory=LogOptions)
    checkpoint_interval_ms: int = 30_000
    checkpoint_on_close: bool = True


class Host(Protocol):
    """A shard's log and keeper, wherever they are."""

    on_durable: Callable[[int], None]
    on_applied: Callable[[int], None]
    on_failed: Callable[[str], None]

    @property
    def limits(self) -> LimitTable: ...
    @property
    def durable_lsn(self) -> int: ...
    @property
    def applied_lsn(self) -> int: ...
    @property
    def epoch(self) -> int: ...
    @property
    def refusal(self) -> str: ...
    async def grant(self, worker: str, at_ms: int) -> int: ...
    def append(self, records: bytes, count: int) -> int: ...
    async def read(self, method: str, args: Sequence[Any], min_lsn: int = 0, timeout: float = 10.0) -> Any: ...
    async def read_bytes(self, method: str, args: bytes, min_lsn: int = 0, timeout: float = 10.0) -> bytes: ...
    async def close(self) -> None: ...


class ShardHost:
    """One shard's directory, open. `close` ends it on each path; `torn` says what the last crash left unfinished."""

    def __init__(self, directory: Path, options: HostOptions, lock: Lock, keeper: Keeper, log: Log, limits: LimitTable) -> None:
        self.on_durable: Callable[[int], None] = ignore
        self.on_applied: Callable[[int], None] = ignore
        self.on_failed: Callable[[str], None] = ignore
        self.directory = directory
        self.limits = limits
        self.epoch = max(log.recovery.epoch, keeper.epoch)
        self._options = options
        self._lock = lock
        self._log = log
        self._keeper = keeper
        self._keeper_up = asyncio.Event()
        self._restart: asyncio.Task[None] | None = None
        self._unplaced: deque[tuple[bytes, int, int]] = deque()
        self._placing: asyncio.TimerHandle | None = None
        self._is_closing = False
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._adopt(keeper)
        self._watch = asyncio.get_running_loop().create_task(self._watch_keeper())
        log.on_durable = self._durable
        log.on_failed = self._failed
        keeper.publish(log.durable_position)
        if log.recovery.torn is not None:
            LOG.warning("%s", torn_message(directory, log.recovery.torn))

    @classmethod
    async def open(cls, data: Path, shard: int, options: HostOptions) -> ShardHost:
        """Lock the shard's directory, start its keeper, recover its log. Raises StorageError, DamagedLog, StorageFull."""
        directory = shard_directory(data, shard)
        directory.mkdir(parents=True, exist_ok=True)
        lock = await acquire_soon(directory / LOCK)
        keeper = None
        try:
            limits = LimitTable(directory)
            keeper = await Keeper.start(
                directory, pass_fds=(lock.fd,), checkpoint_interval_ms=options.checkpoint_interval_ms,
            )
            log = Log.open(
                directory / "log", options.log, proven_lsn=keeper.applied_lsn, loop=asyncio.get_running_loop(), inherit=(lock.fd,),
            )
        except BaseException:
            if keeper is not None:
                await keeper.close(checkpoint=False)
            lock.release()
            raise
        return cls(directory, options, lock, keeper, log, limits)

    @property
    def torn(self) -> TornTail | None:
        return self._log.recovery.torn

    @property
    def durable_lsn(self) -> int:
        return self._log.durable_lsn

    @property
    def applied_lsn(self) -> int:
        return self._keeper.applied_lsn

    @property
    def pending_bytes(self) -> int:
        """Appended and not yet written."""
        return self._log.pending_bytes

    @property
    def keeper_pid(self) -> int:
        return self._keeper.pid

    def flush_facts(self) -> dict[str, Any]:
        """Flushes since the start: how many, of how many bytes, where they run."""
        metrics = self._log.metrics
        return {"flushes": metrics.flushes, "bytes": metrics.flushed_bytes, "mode": str(metrics.mode)}

    @property
    def refusal(self) -> str:
        """Why no new work is taken now; empty when it is."""
        if self._log.is_full:
            return "the disk is nearly full. Free space on it; work resumes by itself"
        lag = self._log.durable_lsn - self._keeper.applied_lsn
        if lag > LAG_RECORDS_MAX:
            trouble = f" ({self._keeper.trouble})" if self._keeper.trouble else ""
            return f"the store is {lag} records behind the log{trouble}. It catches up by itself; try again later"
        return ""

    async def grant(self, worker: str, at_ms: int) -> int:
        """Give the right to append to a worker, durably, and return the LSN after which its records follow."""
        self.epoch += 1
        lsn = self.append(r.frame(r.encode(r.Grant(at_ms, self.epoch, worker))), 1)
        await self.until_durable(lsn)
        return lsn

    async def until_durable(self, lsn: int) -> None:
        """Wait until the log is durable through `lsn`."""
        if self._log.durable_lsn < lsn:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((lsn, waiter))
            await waiter

    def append(self, records: bytes, count: int) -> int:
        """Append framed records under the current epoch; returns the LSN of the last.

        While the disk has no room even for running work they wait in memory, in order, and nothing after them becomes durable.
        """
        if not self._unplaced:
            try:
                return self._log.append(records, count, self.epoch)
            except StorageFull as e:
                LOG.error("%s: %s", self.directory, e)
                self._placing = asyncio.get_running_loop().call_later(PLACE_AGAIN_S, self._place)
        self._unplaced.append((records, count, self.epoch))
        return self._log.last_lsn + sum(count for _, count, _ in self._unplaced)

    def _place(self) -> None:
        """Try again to place what found no room."""
        while self._unplaced:
            try:
                self._log.append(*self._unplaced[0])
            except StorageFull:
                self._placing = asyncio.get_running_loop().call_later(PLACE_AGAIN_S, self._place)
                return
            self._unplaced.popleft()

    def _durable(self, lsn: int) -> None:
        self._keeper.publish(self._log.durable_position)
        while self._waiting and self._waiting[0][0] <= lsn:
            _, waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
        self.on_durable(lsn)

    def _failed(self, error: BaseException) -> None:
        reason = f"the log in {self.directory} failed: {error}"
        for _, waiter in self._waiting:
            if not waiter.done():
                waiter.set_exception(StorageError(reason))
        self._waiting.clear()
        self.on_failed(reason)

    # The keeper.

    def _adopt(self, keeper: Keeper) -> None:
        self._keeper = keeper
        keeper.on_applied = lambda lsn: self.on_applied(lsn)
        keeper.on_checkpoint = self._log.checkpointed
        keeper.on_exit = self._keeper_ended
        keeper.on_trouble = self._keeper_in_trouble
        self._log.checkpointed(keeper.checkpoint_lsn)
        self._keeper_up.set()

    def _keeper_in_trouble(self, trouble: str) -> None:
        if trouble:
            LOG.warning("keeper of %s: %s", self.directory, trouble)

    def _keeper_ended(self, reason: str) -> None:
        self._keeper_up.clear()
        if not self._is_closing:
            LOG.warning("%s: starting it again", reason)
            self._restart = asyncio.get_running_loop().create_task(self._start_again())

    async def _start_again(self) -> None:
        pause = RESTART_FIRST_S
        while not self._is_closing:
            try:
                keeper = await Keeper.start(
                    self.directory, pass_fds=(self._lock.fd,), checkpoint_interval_ms=self._options.checkpoint_interval_ms,
                )
            except (FuseeError, OSError) as e:
                LOG.error("the keeper of %s does not start: %s", self.directory, e)
                await asyncio.sleep(pause)
                pause = min(pause * 2, RESTART_MOST_S)
                continue
            self._adopt(keeper)
            keeper.publish(self._log.durable_position)
            self.on_applied(keeper.applied_lsn)
            return

    async def _watch_keeper(self) -> None:
        applied = None
        while True:
            await asyncio.sleep(LOOK_S)
            keeper, before = self._keeper, applied
            applied = keeper, keeper.applied_lsn
            if keeper.lag and applied == before and not keeper.has_ended and not await self._is_alive(keeper):
                LOG.error("keeper %d of %s does not answer and is ended: the next goes on from its store", keeper.pid, self.directory)
                os.kill(keeper.pid, signal.SIGKILL)

    async def _is_alive(self, keeper: Keeper) -> bool:
        try:
            await keeper.read("by_run", (0,), timeout=SIGN_OF_LIFE_S)
        except Unavailable:
            return keeper.has_ended
        except FuseeError:
            pass
        return True

    async def read(self, method: str, args: Sequence[Any], min_lsn: int = 0, timeout: float = 10.0) -> Any:
        """Ask the keeper, also one that is about to be started again. Raises the FuseeError of the answer, or Unavailable."""
        return await self._ask(lambda: self._keeper.read(method, args, min_lsn=min_lsn, timeout=timeout), timeout)

    async def read_bytes(self, method: str, args: bytes, min_lsn: int = 0, timeout: float = 10.0, asker: int = 0) -> bytes:
        """`read` for who only passes it on."""
        answer: bytes = await self._ask(
            lambda: self._keeper.read_bytes(method, args, min_lsn=min_lsn, timeout=timeout, asker=asker), timeout)
        return answer

    async def _ask(self, ask: Callable[[], Any], timeout: float) -> Any:
        deadline, keepers = asyncio.get_running_loop().time() + timeout, 0
        while True:
            keeper = self._keeper
            try:
                return await ask()
            except Unavailable:
                if self._is_closing or keeper is self._keeper and not keeper.has_ended:
                    raise  # its own word
                keepers += 1
                if keepers == KEEPERS_MAX or not await self._other_keeper(keeper, deadline):
                    raise

    async def _other_keeper(self, ended: Keeper, deadline: float) -> bool:
        """Wait for the keeper that follows one that has ended; False when it does not come in time."""
        if self._keeper is ended:
            self._keeper_up.clear()  # its end may not have been reported yet
        try:
            async with asyncio.timeout_at(deadline):
                await self._keeper_up.wait()
        except TimeoutError:
            return False
        return not self._is_closing

    async def close(self, *, hurried: bool = False) -> None:
        """Flush and seal the log, fold and checkpoint it if so configured and not `hurried`, end both processes, give the lock back."""
        if self._is_closing:
            return
        self._is_closing = True
        if self._placing is not None:
            self._placing.cancel()
        tasks = [task for task in (self._watch, self._restart) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.limits.close()
        if hurried and not self._keeper.has_ended:
            os.kill(self._keeper.pid, signal.SIGKILL)  # it may hang, and it need not finish anything
        try:
            await self._log.close()
            self._keeper.publish(self._log.durable_position)
        finally:
            await self._keeper.close(checkpoint=self._options.checkpoint_on_close and not hurried)
            self._lock.release()


def torn_message(directory: Path, torn: TornTail) -> str:
    """What is said of a batch that a crash left unfinished."""
    return (
        f"log {directory}: dropped the unfinished batch {torn.sequence} (from LSN {torn.first_lsn}) at {torn.file}:{torn.offset}:"
        f" {torn.reason}. It was never acknowledged"
    )
