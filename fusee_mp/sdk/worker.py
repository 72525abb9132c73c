# A worker: a process that leases shards of a server and runs their workflows.
#
# One session with the router says which shards to lease; each lease has a connection of its own to its shard process. A lease
# that is lost takes its shard's code out of memory at once; the router gives it to whoever is next, perhaps to this worker again.
# Leaving is orderly: running step bodies get the grace period, what they bring is made durable, then the leases go back.
from __future__ import annotations

import asyncio
import logging
import math
import os
import random
import secrets
import signal
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from types import TracebackType
from typing import Any, Final

import fusee_mp
from fusee_mp.duration import Duration, to_ms, to_ms_or_none
from fusee_mp.errors import Denied, FuseeError, LeaseLost, Unavailable
from fusee_mp.payload.sealing import PLAIN, PayloadCodec, Payloads
from fusee_mp.runtime.crew import Crew
from fusee_mp.runtime.retention import Keeping
from fusee_mp.runtime.shard_runtime import ShardRuntime
from fusee_mp.runtime.weight import Budget
from fusee_mp.sdk.address import Address, FilePath, parse_address
from fusee_mp.sdk.client import RECONNECT_FIRST_S, RECONNECT_MOST_S, Client
from fusee_mp.sdk.config import turn_timeout_ms
from fusee_mp.sdk.connection import Connection, connect
from fusee_mp.sdk.definitions import Workflow
from fusee_mp.sdk.engine import clock_ms
from fusee_mp.sdk.handover import Patience, let_end
from fusee_mp.sdk.here_only import HereOnly
from fusee_mp.sdk.registry import WorkflowRegistry
from fusee_mp.sdk.remote_home import RemoteHome
from fusee_mp.security.token import check_leasing
from fusee_mp.store.results import State
from fusee_mp.wire import messages as m
from fusee_mp.wire.frames import Frame
from fusee_mp.wire.hello import check_hello
from fusee_mp.wire.kinds import Kind
from fusee_mp.wire.preface import ConnectionKind, Preface

LOG: Final = logging.getLogger("fusee_mp.worker")
# A session that ended sooner was refused; asking at once would be asking in a circle.
GOOD_SESSION_S: Final = 1.0
DISMISSED_MOST_S: Final = 30.0
# The router takes an assignment back after 10 s.
ASSIGNED_S: Final = 8.0
# While a server stays away: how often that is said.
AWAY_SAID_S: Final = 30.0
# A worker that has no shard by then says that it stands by.
STANDBY_SAID_S: Final = 1.0
Lifespan = Callable[[], AbstractAsyncContextManager[Any]]


class Session(Connection):
    """The connection to the router."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(Preface(ConnectionKind.CONTROL))
        self._worker = worker
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def unasked(self, frame: Frame) -> None:
        message = m.decode(frame)
        if isinstance(message, m.Assign):
            for shard in message.shards:
                self._worker._assigned(shard)
        elif isinstance(message, m.Revoke):
            self._worker._revoked(message.shard, message.reason, message.gently)
        elif isinstance(message, m.Elsewhere):
            self._worker._others_have(message.workflows)
        elif isinstance(message, m.Drain):
            self._worker._drain_asked()
        elif frame.kind == Kind.PING and isinstance(message, m.Ping):
            self.send(m.Pong(message.stamp))

    def lost(self, reason: str) -> None:
        super().lost(reason)
        if not self.ended.done():
            self.ended.set_result(reason)


class Worker(HereOnly):
    """Leases shards and runs their workflows. Made by `connect`.

    `held` are the shards it has now, ascending. `engine` has every method of an engine, for the whole server.
    """

    def __init__(
        self, address: Address, workflows: Sequence[Workflow[Any, Any]], max_shards: int, lifespan: Lifespan | None, grace: Duration,
        name: str, payloads: Payloads = PLAIN, park_after_ms: int | None = 10_000, memory_budget: int | None = None,
        turn_ms: int = 2_000,
    ) -> None:
        self._address = address
        self._registry = WorkflowRegistry(workflows)
        self._lifespan = lifespan
        self._grace_s = to_ms(grace, "grace") / 1000
        self._patience = Patience(self._grace_s)
        self.name = name or address.name or f"{os.uname().nodename}-{os.getpid()}"
        self._instance = secrets.token_hex(8)
        self._hello = m.Hello(self.name, self._instance, list(self._registry), max_shards, 0, fusee_mp.__version__)
        check_hello(self._hello)
        self._payloads = payloads
        self._park_after_ms = park_after_ms
        self._budget = Budget(memory_budget)
        self._turn_s = turn_ms / 1000
        self.engine = Client(address, self.name, payloads)
        self._runtimes: dict[int, ShardRuntime] = {}
        self._homes: dict[int, RemoteHome] = {}
        self._taking: set[int] = set()
        self._welcome: m.Welcome
        self._session: Session | None = None
        self._crew: Crew
        self._tasks: set[asyncio.Task[Any]] = set()
        self._holds_one = asyncio.Event()
        self._drain_wanted = asyncio.Event()
        self._is_leaving = False
        self._stack = AsyncExitStack()

    @staticmethod
    def connect(
        address: str, *, workflows: Sequence[Workflow[Any, Any]], max_shards: int = 0, lifespan: Lifespan | None = None,
        grace: Duration = "30s", name: str = "", codec: PayloadCodec | None = None,
        park_after: Duration | None = "10s", memory_budget: int | None = None, turn_timeout: Duration = "2s", ca: FilePath | None = None,
        cert: FilePath | None = None, key: FilePath | None = None, token_file: FilePath | None = None,
    ) -> Joining:
        """A worker of the server at this address: `async with Worker.connect(..) as worker: await worker.run()`.

        Entered once it holds a shard; until one is free it waits as a standby. max_shards: 0 takes all that are free. lifespan: a
        context manager for pools and clients, entered once the server was reached and before the first lease; never when there is no
        server. grace: what running steps get when it leaves. codec: seals every payload before it goes to the server, which never has
        the key; clients need it too. park_after, memory_budget, turn_timeout: when quiet runs leave memory, and how long code may run
        without waiting, as in Config. ca, cert, key, token_file: as in Client.connect; the token must be of scope full.
        Raises Denied when the server does not accept it, Unavailable when no server answers at first; later it reconnects for ever. Raises
        Rejected, before it connects, for a name or workflows that no server takes.
        """
        park_after_ms = to_ms_or_none(park_after, "park_after")
        return Joining(Worker(
            parse_address(address).secured(ca, cert, key, token_file), workflows, max_shards, lifespan, grace, name, Payloads(codec),
            park_after_ms, memory_budget, turn_timeout_ms(turn_timeout, "turn_timeout")))

    @property
    def held(self) -> list[int]:
        return sorted(shard for shard, runtime in self._runtimes.items() if not runtime.is_closed)

    async def run(self, *, signals: bool = False) -> None:
        """Work until cancelled, or until the server or, with `signals`, SIGTERM or SIGINT asks it to leave."""
        loop = asyncio.get_running_loop()
        if signals:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self._drain_wanted.set)
        try:
            await self._drain_wanted.wait()
        finally:
            if signals:
                for number in (signal.SIGTERM, signal.SIGINT):
                    loop.remove_signal_handler(number)

    # Joining.

    async def _begin(self) -> None:
        try:
            await self._reach()
            if self._lifespan is not None:
                await self._stack.enter_async_context(self._lifespan())
            self._crew = Crew(turn_s_max=self._turn_s)
            await self._join()
            await self.engine._begin()
            self._spawn(self._stay())
            await self._first_shard()
        except BaseException:
            await self.close()
            raise

    async def _reach(self) -> Session:
        """A connection on which the server would take this worker, and does not yet count it. Raises Unavailable, Denied."""
        session = await connect(self._address, lambda: Session(self))
        status = await session.greet(m.Status(), m.Status)
        try:
            check_leasing(status.facts.get("scope", "full"))  # an earlier server says it to HELLO alone
        except Denied:
            session.close("its token is not one of a worker")
            raise
        self._session = session
        return session

    async def _join(self) -> None:
        # One that was reached may have been lost while `lifespan` was entered.
        session = self._session if self._session is not None and self._session.is_open else await self._reach()
        self._welcome = await session.greet(self._hello, m.Welcome)
        self._payloads = self._payloads.up_to(self._welcome.payload_bytes_max)

    async def _first_shard(self) -> None:
        try:
            async with asyncio.timeout(STANDBY_SAID_S):
                await self._holds_one.wait()
        except TimeoutError:
            LOG.info("worker %s stands by: %s. It takes over a shard as soon as one is free for it", self.name, await self._why_none())
            await self._holds_one.wait()

    async def _why_none(self) -> str:
        """Why the server gives this worker no shard."""
        try:
            if self._session is None:
                return "it has no session with the server"
            found = await self._session.ask(m.Status())
        except FuseeError as e:
            return e.message
        holders = {shard["shard"]: shard["worker"] for shard in found.facts["shards"]} if isinstance(found, m.Status) else {}
        if not all(holders.values()):
            return "no shard has been assigned to it yet"
        return f"all shards of the server are held ({', '.join(f'{shard} by {holder}' for shard, holder in holders.items())})"

    async def _stay(self) -> None:
        """Keep a session with the router, for ever."""
        loop, pause, most, said_at = asyncio.get_running_loop(), RECONNECT_FIRST_S, RECONNECT_MOST_S, -math.inf
        while True:
            joined_at = math.inf
            try:
                if self._session is None:
                    await self._join()
                assert self._session is not None
                joined_at = loop.time()
                reason, most = await self._session.ended, DISMISSED_MOST_S
            except FuseeError as e:
                reason, most = e.message, RECONNECT_MOST_S
            self._session = None
            if self._is_leaving:
                return
            if loop.time() - joined_at > GOOD_SESSION_S:
                pause, said_at = RECONNECT_FIRST_S, -math.inf
            if loop.time() - said_at >= AWAY_SAID_S:
                said_at = loop.time()
                LOG.warning("worker %s has no session with %s: %s; connecting again until there is one", self.name, self._address, reason)
            await asyncio.sleep(pause * (0.5 + random.random() / 2))
            pause = min(pause * 2, most)

    def _spawn(self, body: Any) -> None:
        task = asyncio.get_running_loop().create_task(body)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Shards.

    def _assigned(self, shard: int) -> None:
        if not self._is_leaving and shard not in self._taking:
            self._taking.add(shard)
            self._spawn(self._take(shard))

    async def _take(self, shard: int) -> None:
        """Lease a shard and take over its runs."""
        home: RemoteHome | None = None
        try:
            await self._old_lease_gone(shard)
            home = await connect(self._address, lambda: RemoteHome(
                shard, self._welcome, self._local, self._lost, self._payloads, self._lacks))
            self._homes[shard] = home
            await self._take_over(shard, home, await home.lease(self.name, self._instance))
        except Exception as e:
            is_ours = not isinstance(e, FuseeError)
            level = logging.ERROR if is_ours else logging.WARNING
            LOG.log(level, "worker %s could not take shard %d: %s", self.name, shard, e, exc_info=is_ours)
            if home is not None:
                home.abort(str(e))
            if self._session is not None:
                self._session.send(m.Released(shard))
        finally:
            self._taking.discard(shard)

    async def _old_lease_gone(self, shard: int) -> None:
        """The router, over its own connection, may hear of a lease's end before this side does over the lease's."""
        home = self._homes.get(shard)
        if home is not None:
            try:
                async with asyncio.timeout(ASSIGNED_S):
                    await home.gone.wait()
            except TimeoutError:
                raise Unavailable(f"this worker holds shard {shard} already") from None

    async def _take_over(self, shard: int, home: RemoteHome, state: State) -> None:
        runtime = ShardRuntime(
            shard, self._welcome.shards, self._registry, home, clock=clock_ms, draw=random.random, crew=self._crew, payloads=self._payloads,
            park_after_ms=self._park_after_ms, budget=self._budget,
            keeping=Keeping(self._welcome.retention_ms, self._welcome.history, self._welcome.archive))
        self._runtimes[shard] = runtime
        self._crew.shards = list(self._runtimes.values())
        home.attach(runtime)
        await runtime.take_over(home.base_lsn, state)
        LOG.info("worker %s holds shard %d (epoch %d)", self.name, shard, home.epoch)
        self._holds_one.set()

    def _local(self, shard: int) -> ShardRuntime | None:
        runtime = self._runtimes.get(shard)
        return runtime if runtime is not None and not runtime.is_closed else None

    def _lost(self, home: RemoteHome, reason: str) -> None:
        """A lease's connection is gone."""
        if self._homes.get(home.shard) is home:
            del self._homes[home.shard]
        runtime = home.runtime
        if runtime is not None:
            if not runtime.is_closed and not self._is_leaving:
                LOG.warning("worker %s lost shard %d: %s", self.name, home.shard, reason)
            runtime.close(LeaseLost(f"shard {home.shard} has left this worker: {reason}"))
            if self._runtimes.get(home.shard) is runtime:
                del self._runtimes[home.shard]
            self._crew.shards = list(self._runtimes.values())

    def _revoked(self, shard: int, reason: str, gently: bool) -> None:
        home = self._homes.get(shard)
        if home is not None and gently and home.runtime is not None:
            if not home.runtime.is_draining:
                self._spawn(self._hand_on(shard, home.runtime, reason))
        elif home is not None:
            home.abort(f"the router revoked it: {reason}")

    def _others_have(self, workflows: list[str]) -> None:
        self._registry.elsewhere = frozenset(workflows)
        for runtime in list(self._runtimes.values()):
            runtime.others_changed()

    def _lacks(self, shard: int, workflow: str) -> None:
        if self._session is not None:
            self._session.send(m.Lacking(shard, [workflow]))

    def _drain_asked(self) -> None:
        self._drain_wanted.set()

    # Leaving.

    async def close(self) -> None:
        """Leave: running bodies get the grace period, then the leases go back. Closing twice is allowed."""
        if self._is_leaving:
            return
        self._is_leaving = True
        if self._session is not None:
            self._session.send(m.Drain())
        runtimes = dict(self._runtimes)
        await let_end(list(runtimes.values()), self._grace_s)
        for shard, runtime in runtimes.items():
            self._give_back(shard, runtime, "the worker leaves")
        await self._end()

    async def _hand_on(self, shard: int, runtime: ShardRuntime, reason: str) -> None:
        """To a worker with other code."""
        await self._patience.let_end(runtime)
        self._give_back(shard, runtime, reason)

    def _give_back(self, shard: int, runtime: ShardRuntime, reason: str) -> None:
        home = self._homes.get(shard)
        runtime.close(LeaseLost(f"shard {shard} was handed back: {reason}"))
        if home is not None and home.runtime is runtime:
            home.hand_back()

    async def _end(self) -> None:
        await self.engine.close()
        if self._session is not None:
            self._session.close("the worker leaves")
        await asyncio.sleep(0)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for home in list(self._homes.values()):  # one that was being taken
            home.abort("the worker leaves")
        if hasattr(self, "_crew"):
            self._crew.close()
        await self._stack.aclose()


class Joining:
    """A worker about to join: `async with` it, or `await` it and close the worker yourself."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    async def _begin(self) -> Worker:
        await self._worker._begin()
        return self._worker

    def __await__(self) -> Generator[Any, None, Worker]:
        return self._begin().__await__()

    async def __aenter__(self) -> Worker:
        return await self._begin()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._worker.close()
