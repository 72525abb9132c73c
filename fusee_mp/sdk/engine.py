# The engine embedded in one process: logs, keepers and code on one directory, or in memory.
from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Generator, Sequence
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from fusee_mp.core.calls import Call, LimitCall, LimitRow, LimitState
from fusee_mp.core.placement import shard_of
from fusee_mp.errors import FuseeError, Unavailable
from fusee_mp.log import LogOptions
from fusee_mp.log.data import DataDirectory
from fusee_mp.log.directory import shard_directory
from fusee_mp.payload.apart import PAYLOADS, Apart, sweep
from fusee_mp.payload.sealing import PLAIN, Payloads
from fusee_mp.runtime.crew import Crew
from fusee_mp.runtime.limits import LocalLimits
from fusee_mp.runtime.retention import KEEP_ALL, Keeping
from fusee_mp.runtime.shard_runtime import ShardRuntime
from fusee_mp.runtime.weight import Budget
from fusee_mp.sdk.config import Config
from fusee_mp.sdk.definitions import Workflow
from fusee_mp.sdk.methods import Methods
from fusee_mp.sdk.registry import WorkflowRegistry
from fusee_mp.shardproc.host import Host, HostOptions, ShardHost
from fusee_mp.shardproc.memory import MemoryHost

Workflows = Sequence[Workflow[Any, Any]]
_WORKER: Final = "embedded"


def clock_ms() -> int:
    return time.time_ns() // 1_000_000


class LocalHome:
    """The home of a shard whose log is in this process."""

    def __init__(self, engine: Engine, shard: int, host: Host) -> None:
        self._engine = engine
        self._shard = shard
        self._host = host
        self._loop = asyncio.get_running_loop()
        self.append = host.append
        self.limits = engine.limits

    @property
    def refusal(self) -> str:
        return self._host.refusal

    def lacks(self, workflow: str) -> None:
        pass

    def may_act(self) -> bool:
        return True

    def give_up(self, reason: str) -> None:
        self._engine._stopped(reason)

    async def read(self, method: str, args: tuple[Any, ...], min_lsn: int = 0) -> Any:
        return await self._host.read(method, args, min_lsn)

    def relay(self, to: int, messages: Sequence[tuple[int, bytes]]) -> None:
        # From a callback of its own: the receiving runtime must not run within the sending one.
        self._loop.call_soon(self._engine.runtimes[to].deliver, self._shard, [message for _, message in messages])

    def relay_ack(self, sender: int, through: int) -> None:
        self._loop.call_soon(self._engine.runtimes[sender].relay_acked, self._shard, through)


class Engine(Methods):
    """Runs workflows in this process and keeps them in its directory. Made by `open` or `memory`.

    `failed` says why it no longer works, empty while it does: after a failed write nothing more is acknowledged.
    """

    def __init__(self, config: Config | None, workflows: Workflows, shards: int) -> None:
        super().__init__(PLAIN if config is None else config.payloads)
        self._config = config
        self._registry = WorkflowRegistry(workflows, "fail" if config is None else config.on_exhausted)
        self._shards = shards
        self._opened: dict[int, Host] = {}
        self._hosts: list[Host] = []
        self.runtimes: list[ShardRuntime] = []
        self.limits: LocalLimits
        self._directory: DataDirectory | None = None
        self._crew: Crew | None = None
        self.failed = ""
        self._is_closed = False

    @staticmethod
    def open(dir: str | PathLike[str] | Config, *, workflows: Workflows = (), shards: int | None = None) -> Opening:
        """The engine on a data directory, which is made when missing: `async with Engine.open(..) as engine`, or `await` it and
        `close` it. Raises StorageError when the directory is in use, has another number of shards or is not ours; DamagedLog."""
        config = dir if isinstance(dir, Config) else Config(dir=dir, shards=shards)
        return Opening(config, workflows, config.shards)

    @staticmethod
    def memory(*, workflows: Workflows = (), shards: int = 1) -> Opening:
        """An engine that keeps nothing on disk, for tests."""
        return Opening(None, workflows, Config(dir=".", shards=shards).shards)

    async def _begin(self) -> None:
        try:
            if self._config is not None:
                self._directory = DataDirectory.open(Path(self._config.dir), self._config.shards)
                self._shards = self._directory.shards
            self._crew = self._make_crew()
            await asyncio.gather(*(self._open_shard(shard) for shard in range(self._shards)))
            self._hosts = [host for _, host in sorted(self._opened.items())]
            self._share_limits()
            self._make_runtimes()
            await asyncio.gather(*map(self._take_over, range(self._shards)))
        except BaseException:
            await self.close()
            raise

    async def _open_shard(self, shard: int) -> None:
        if self._config is None:
            self._opened[shard] = MemoryHost()
            return
        config = self._config
        options = HostOptions(
            LogOptions(segment_bytes=config.segment_bytes, flush=config.flush), config.checkpoint_interval_ms,
            config.checkpoint_on_shutdown,
        )
        self._opened[shard] = await ShardHost.open(Path(config.dir), shard, options)

    def _make_crew(self) -> Crew:
        return Crew() if self._config is None else Crew(turn_s_max=self._config.turn_timeout_ms / 1000)

    def _share_limits(self) -> None:
        self.limits = LocalLimits(
            asyncio.get_running_loop(), clock_ms, lambda name: self._hosts[shard_of(name, self._shards)].limits.permits)
        for host in self._hosts:
            host.limits.on_defined = self.limits.serve

    def _make_runtimes(self) -> None:
        assert self._crew is not None
        config = self._config
        park_after_ms = 10_000 if config is None else config.park_after_ms
        keeping = KEEP_ALL if config is None else Keeping(config.retention_ms, config.keep_history, config.archive_history)
        budget = Budget(None if config is None else config.memory_budget)
        for shard, host in enumerate(self._hosts):
            runtime = ShardRuntime(
                shard, self._shards, self._registry, LocalHome(self, shard, host), clock=clock_ms, draw=random.random,
                crew=self._crew, park_after_ms=park_after_ms, payloads=self._payloads_beside(shard), keeping=keeping, budget=budget,
            )
            host.on_durable, host.on_applied, host.on_failed = runtime.durable, runtime.applied, self._stopped
            self.runtimes.append(runtime)
        self._crew.shards = self.runtimes

    async def _take_over(self, shard: int) -> None:
        host = self._hosts[shard]
        base_lsn = await host.grant(_WORKER, clock_ms())
        state = await host.read("state", (), base_lsn, timeout=3600)
        runtime = self.runtimes[shard]
        if (apart := runtime.payloads.apart) is not None:
            await sweep(apart, state.next_run, lambda run: host.read("by_run", (run,), base_lsn))
        await runtime.take_over(base_lsn, state)

    def _payloads_beside(self, shard: int) -> Payloads:
        config = self._config
        if config is None:
            return self.payloads
        return self.payloads.beside(Apart(shard_directory(Path(config.dir), shard) / PAYLOADS, config.payload_offload_bytes))

    def _payloads_of(self, shard: int) -> Payloads:
        return self.runtimes[shard].payloads

    def _stopped(self, reason: str) -> None:
        """Nothing works any more: the log failed, or the runtime did."""
        self.failed = reason
        error = Unavailable(f"the engine has stopped: {reason}. What was acknowledged is safe; mend the disk and open it again")
        for runtime in self.runtimes:
            runtime.close(error)

    @property
    def shards(self) -> int:
        return self._shards

    async def _call(self, shard: int, call: Call) -> Any:
        self._check_open()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()

        def reply(value: Any, error: FuseeError | None) -> None:
            if not answer.done():
                if error is None:
                    answer.set_result(value)
                else:
                    answer.set_exception(error)

        runtime = self.runtimes[shard]
        # From a plain callback: workflow code must not run within the caller's task.
        loop.call_soon(runtime.call, call, reply)
        try:
            return runtime.payloads.answer(await answer)
        except asyncio.CancelledError:
            runtime.calls.forget(reply)
            raise

    async def _read(self, shard: int, method: str, args: tuple[Any, ...]) -> Any:
        self._check_open()
        host = self._hosts[shard]
        return await host.read(method, args, host.durable_lsn)

    async def _limit(self, shard: int, call: LimitCall) -> LimitState:
        self._check_open()
        return await self._hosts[shard].limits.call(call, clock_ms)

    async def _limit_page(self, shard: int, after: str) -> list[LimitRow]:
        self._check_open()
        return self._hosts[shard].limits.page(after, clock_ms())

    def _check_open(self) -> None:
        if self.failed:
            raise Unavailable(f"the engine has stopped: {self.failed}")
        if self._is_closed or not self.runtimes:
            raise Unavailable("the engine is closed: open it again")

    async def close(self) -> None:
        """Stop: async step bodies are cancelled and run again after the next open, waiting calls raise Unavailable. Everything
        acknowledged is on disk. Closing twice is allowed."""
        if self._is_closed:
            return
        self._is_closed = True
        error = Unavailable("the engine was closed while this call waited: open it again and ask again")
        for runtime in self.runtimes:
            runtime.close(error)
        if self._crew is not None:
            self._crew.close()
        try:
            results = await asyncio.gather(*(host.close() for host in self._opened.values()), return_exceptions=True)
        finally:
            if self._directory is not None:
                self._directory.close()
        for result in results:
            if isinstance(result, BaseException) and not self.failed:
                raise result


class Opening:
    """An engine about to be opened: `async with` it, or `await` it and close the engine yourself."""

    def __init__(self, config: Config | None, workflows: Workflows, shards: int | None) -> None:
        self._engine = Engine(config, workflows, shards or 1)

    async def _begin(self) -> Engine:
        await self._engine._begin()
        return self._engine

    def __await__(self) -> Generator[Any, None, Engine]:
        return self._begin().__await__()

    async def __aenter__(self) -> Engine:
        return await self._begin()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._engine.close()
