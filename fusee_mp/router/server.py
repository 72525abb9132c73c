# The router: wires listeners, processes, leases and sessions together, from start to stop.
#
# Its life: bind every listener (what cannot be had is said before anything is written), open the directory, start the shard processes,
# say ready when all of them are, and then only react. Stopping: accept nothing more, ask the workers to hand back, wait for that as long
# as the grace lasts, ask the shard processes to end, wait for them, remove the Unix socket's file.
#
# Rule 1: the router touches no record and is on nobody's path but that of beginning connections.
# Rule 2: whatever the lease table orders is carried out by `_apply`, and nothing else talks about leases.
# Rule 3: however `serve` ends, no process and no descriptor of it is left.
"""`Router`: a server's parent process. `serve` runs one."""
from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from fusee_mp.errors import FuseeError
from fusee_mp.log.directory import LOCK, Lock, open_directory, read_meta
from fusee_mp.router import lease_events as t
from fusee_mp.router.binding import bind_tcp, bind_unix, bound_address
from fusee_mp.router.dispatch import Dispatch
from fusee_mp.router.elsewhere import Elsewhere, Telling
from fusee_mp.router.greeting import Greetings
from fusee_mp.router.health import Ticks
from fusee_mp.router.leases import LeaseTable
from fusee_mp.router.links import Links
from fusee_mp.router.listener import Listener
from fusee_mp.router.options import ServeOptions, check_exposure
from fusee_mp.router.processes import Processes
from fusee_mp.router.sessions import Sessions
from fusee_mp.router.status import server_status
from fusee_mp.security.door import Door
from fusee_mp.security.expiry import age_of, end_of
from fusee_mp.security.farewell import Farewells
from fusee_mp.security.keys import Keys, Material
from fusee_mp.wire import messages as m
from fusee_mp.wire.preface import ConnectionKind, Preface

LOG: Final = logging.getLogger("fusee_mp.router")
STOPPING: Final = "the server stops"
# What shard processes get beyond the grace for sealing their logs, and a killed one for being reaped.
SEALING_MS: Final = 10_000
REAPING_MS: Final = 5_000
DEFAULT_SHARDS_MAX: Final = 8


def clock_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def _default_shards(directory: Path) -> int | None:
    """What a directory has; a new one gets a shard per core that this process may use, at most DEFAULT_SHARDS_MAX."""
    return min(len(os.sched_getaffinity(0)), DEFAULT_SHARDS_MAX) if read_meta(directory) is None else None


@contextlib.contextmanager
def _made(directory: Path) -> Iterator[None]:
    """The directory is there, also for a Unix socket in it. One that was made for a body that fails goes again, with its new parents."""
    new = [place for place in (directory, *directory.parents) if not place.exists()]
    with contextlib.suppress(OSError):  # Whoever opens it says what is wrong with it.
        directory.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):  # Somebody else has come to use it.
            for place in new:
                place.rmdir()
        raise


class Router:
    """One server. `serve` once; `stop` from a signal handler: the first call drains, the second ends at once."""

    def __init__(self, options: ServeOptions) -> None:
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._is_stopping = self._is_hurried = False
        self._failure: FuseeError | None = None
        self._certificate_expires = ""
        self._timer: asyncio.TimerHandle | None = None

    async def serve(self, on_ready: Callable[[list[str]], None]) -> None:
        """Serve until stopped; `on_ready` gets the bound addresses once every shard is there.

        Raises StorageError, Rejected or Unavailable for a server that cannot start or go on; all that it started has ended then. A
        cancellation ends it at once.
        """
        async with AsyncExitStack() as closing:
            self._open(closing)
            self._processes.start()
            self._ticks = Ticks(self._options.ping_ms, clock_ms())
            self._schedule_tick()
            await self._until(lambda: self._processes.are_ready or self._is_stopping)
            if not self._is_stopping:
                LOG.info("ready on %s", " ".join(self._addresses))
                on_ready(self._addresses)
            await self._until(lambda: self._is_stopping)
            await self._drain()
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Begin to end; called again, end now."""
        self._is_hurried = self._is_stopping
        self._is_stopping = True
        self._changed.set()

    def reload(self) -> None:
        """Read certificate, key, CA and tokens again. Connections that came in with a token that is gone end. With files that cannot be
        used nothing changes."""
        try:
            material, keys = self._read_keys()
            self._processes.keyed(material)
        except (FuseeError, OSError) as error:
            LOG.error("certificates and tokens were not read again, those at hand stay in use: %s", error)
            return
        self._door.keys = keys
        self._certificate_expires = end_of(material.cert)
        self._sessions.keyed(keys)
        LOG.info("certificates and tokens were read again: %s", keys)

    @property
    def was_hurried(self) -> bool:
        """It was not given the time to end in order."""
        return self._is_hurried

    # Opening.

    def _open(self, closing: AsyncExitStack) -> None:
        o = self._options
        material, keys = self._read_keys()
        self._certificate_expires = end_of(material.cert)
        directory = Path(o.dir)
        with _made(directory):
            sockets = self._bind(closing)
        closing.callback(Lock.acquire(directory / LOCK).release)
        meta = open_directory(directory, o.shards or _default_shards(directory), new_id=lambda: secrets.token_hex(8))
        self._server, shards = meta.id, meta.shards
        self._table, self._elsewhere, self._telling = LeaseTable(shards), Elsewhere(), Telling(self._loop, self._tell)
        closing.callback(self._telling.close)
        self._farewells = Farewells(self._loop)
        closing.callback(self._farewells.close)
        self._processes = Processes(self._loop, o, shards, self._server, self, clock_ms, material)
        self._door = Door(self._loop, self._farewells, LOG, keys)
        self._links = Links(self._processes.send)
        self._dispatch = Dispatch(shards, self._processes.adopt, self._farewells)
        self._greetings = Greetings(self._loop, self._greeted, self._farewells)
        welcome = m.Welcome(
            self._server, shards, o.ping_ms, o.revoke_ms, 0, o.retention_ms, o.keep_history, o.archive_history, o.payload_bytes_max)
        self._sessions = Sessions(welcome, self, self._door)
        self._listener = Listener(self._loop, sockets, self._greetings.add)
        closing.push_async_callback(self._end)

    def _read_keys(self) -> tuple[Material, Keys]:
        files = self._options.key_files()
        material = files.read()
        keys = Keys.of(material, f"the tokens file {files.tokens}")
        if material.cert is not None and (age := age_of(material.cert, datetime.now(UTC))):
            LOG.warning("%s", age)
        return material, keys

    def _bind(self, closing: AsyncExitStack) -> list[socket.socket]:
        sockets: list[socket.socket] = []
        for address in self._options.listen:
            for sock in bind_tcp(address):
                closing.callback(sock.close)
                check_exposure(self._options, sock.getsockname()[0])
                sockets.append(sock)
        if self._options.unix_path is not None:
            unix = bind_unix(self._options.unix_path, self._options.unix_mode)
            closing.callback(unix.close)
            sockets.append(unix.sock)
        self._addresses = [bound_address(sock) for sock in sockets]
        return sockets

    # Ending.

    async def _drain(self) -> None:
        """End in order, or at once when hurried."""
        deadline_ms = clock_ms() + self._options.grace_ms
        self._listener.close()
        self._greetings.close(STOPPING)
        self._dispatch.close(STOPPING)
        self._apply(t.Closed())
        self._sessions.drain()
        await self._until(lambda: self._table.held == 0, deadline_ms)
        left_ms = max(0, deadline_ms - clock_ms())
        if self._table.held:
            LOG.warning("%d shards were not handed back within %d ms: their leases are ended", self._table.held, self._options.grace_ms)
        self._processes.stop(left_ms)
        await self._until(lambda: self._processes.are_gone, clock_ms() + left_ms + SEALING_MS)

    async def _end(self) -> None:
        """Whatever has happened: leave no process and no connection."""
        if self._timer is not None:
            self._timer.cancel()
        self._listener.close()
        killed = self._processes.kill()
        if killed:
            LOG.warning("the processes of shards %s were killed; their logs are recovered at the next start", killed)
        self._is_hurried, hurried = False, self._is_hurried
        await self._until(lambda: self._processes.are_gone, clock_ms() + REAPING_MS)
        self._is_hurried = hurried
        self._greetings.close(STOPPING)
        self._dispatch.close(STOPPING)
        self._door.close(STOPPING)
        await self._sessions.close(STOPPING)

    async def _until(self, holds: Callable[[], bool], deadline_ms: int | None = None) -> None:
        """Return when it holds, at the deadline, or when hurried. Looks again at each change."""
        while not holds() and not self._is_hurried:
            self._changed.clear()
            left_s = None if deadline_ms is None else (deadline_ms - clock_ms()) / 1000
            if left_s is not None and left_s <= 0:
                return
            try:
                async with asyncio.timeout(left_s):
                    await self._changed.wait()
            except TimeoutError:
                return

    # Time.

    def _schedule_tick(self) -> None:
        self._timer = self._loop.call_later(self._options.ping_ms / 1000, self._tick)

    def _tick(self) -> None:
        self._schedule_tick()
        now_ms = clock_ms()
        passed_ms = self._ticks.passed(now_ms)
        self._greetings.tick(passed_ms)
        self._dispatch.tick(passed_ms)
        self._sessions.tick(passed_ms, now_ms)
        self._processes.tick(passed_ms)
        self._links.link()
        self._apply(t.TimePassed())

    # Connections.

    def _greeted(self, sock: socket.socket, preface: Preface, data: bytes) -> None:
        if preface.kind is ConnectionKind.CONTROL:
            self._sessions.add(sock, data)
        else:
            self._dispatch.take(sock, preface.shard, data)

    # The floor of the processes.

    def shard_up(self, shard: int) -> None:
        LOG.info("shard %d is ready", shard)
        self._links.up(shard)
        self._dispatch.retry()
        self._apply(t.ShardUp(shard))

    def shard_down(self, shard: int) -> None:
        self._links.down(shard)
        self._apply(t.ShardDown(shard))

    def held(self, shard: int, holder: str, epoch: int) -> None:
        LOG.info("shard %d is held by %s (epoch %d)", shard, holder, epoch)
        self._apply(t.Held(shard, holder, epoch))

    def freed(self, shard: int) -> None:
        LOG.info("shard %d is free", shard)
        self._apply(t.Freed(shard))

    def failed(self, error: FuseeError) -> None:
        if self._failure is None:
            LOG.critical("%s", error)
            self._failure = error
            self._is_stopping = True
            self._changed.set()

    def all_gone(self) -> None:
        self._changed.set()

    # The desk of the sessions.

    def joined(self, session: int, hello: m.Hello) -> None:
        self._apply(t.Joined(session, hello.worker, hello.instance, tuple(hello.workflows), hello.max_shards))

    def left(self, session: int) -> None:
        self._apply(t.Left(session))

    def drains(self, session: int) -> None:
        self._apply(t.Draining(session))

    def released(self, session: int, shard: int) -> None:
        self._apply(t.Released(session, shard))

    def lacks(self, session: int, shard: int, workflows: tuple[str, ...]) -> None:
        self._apply(t.Lacks(session, shard, workflows))

    def status(self) -> dict[str, Any]:
        state = "stopping" if self._is_stopping else "serving"
        facts = server_status(self._server, self._processes.slots, self._table, state, self._door.refusals.count)
        return {**facts, "certificate_expires": self._certificate_expires} if self._certificate_expires else facts

    # Leases.

    def _apply(self, event: t.Event) -> None:
        for effect in self._table.apply(event, clock_ms()):
            match effect:
                case t.Assign(session, shards):
                    self._sessions.send(session, m.Assign(list(shards)))
                case t.Revoke(session, shard, reason, gently):
                    if gently:
                        LOG.info("shard %d is handed on: %s", shard, reason)
                    self._sessions.send(session, m.Revoke(shard, reason, gently))
                case t.Fence(shard, reason):
                    self._processes.send(shard, m.Revoke(shard, reason))
                case t.Dismiss(session, reason):
                    self._sessions.dismiss(session, reason)
        if isinstance(event, t.Joined | t.Left):
            self._telling.soon()
        self._changed.set()

    def _tell(self) -> None:
        for session, types in self._elsewhere.news(self._table.members):
            self._sessions.send(session, m.Elsewhere(types))


async def serve(options: ServeOptions, on_ready: Callable[[list[str]], None]) -> None:
    """Run a server in this task until it is cancelled or fails; see Router.serve. Without signal handlers: `main.run` has those."""
    await Router(options).serve(on_ready)
