# One shard's process: the log and its holder, clients and peers, on one loop.
#
# Rule 1: nothing here looks into a payload; a step costs one frame in, one flush, one frame out.
# Rule 2: when the log fails, the process ends at once and non-zero: nothing it might still say could be trusted.
# Rule 3: when the router is gone, the process seals its log and ends.
from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final

from msgspec import DecodeError, Struct, field

from fusee_mp.bounds import (
    APPENDED_BYTES_MAX,
    CONNECTIONS_DEFAULT,
    GREETING_FRAME_BYTES_MAX,
    PAYLOAD_BYTES_MAX,
)
from fusee_mp.errors import FuseeError
from fusee_mp.log import LogOptions
from fusee_mp.ring.fdpass import Channel
from fusee_mp.ring.link import LinkFds
from fusee_mp.security.door import TOKEN_GONE, Door, Entry
from fusee_mp.security.farewell import Farewells
from fusee_mp.security.keys import Keys, Material
from fusee_mp.security.token import Scope, Token
from fusee_mp.shardproc.calls import ClientCalls
from fusee_mp.shardproc.clients import ClientConnection, Clients
from fusee_mp.shardproc.host import HostOptions, ShardHost
from fusee_mp.shardproc.lease import Lease, LivenessWatch, WorkerConnection
from fusee_mp.shardproc.permits import PermitDesk
from fusee_mp.shardproc.relay import Relay
from fusee_mp.shardproc.rings import OfferedRings
from fusee_mp.shardproc.running import RunningTime
from fusee_mp.wire import messages as m
from fusee_mp.wire.frames import Frame, decode_frame
from fusee_mp.wire.kinds import Kind
from fusee_mp.wire.preface import ConnectionKind
from fusee_mp.wire.preface import decode as decode_preface
from fusee_mp.wire.spin import Spin

LOG: Final = logging.getLogger("fusee_mp.shard")
EXIT_LOG_FAILED: Final = 70
# A worker with one step at a time answers an acknowledgment within this.
SPIN_RECORDS_MAX: Final = 2
SPIN_S: Final = 0.00015
EXIT_DAMAGED: Final = 78


class ShardOptions(Struct, forbid_unknown_fields=True):
    """What the router tells a shard process, as JSON on its command line."""

    data: str
    shard: int
    shards: int
    control: int
    parent: int
    server: str
    log: dict[str, Any] = field(default_factory=dict)
    ping_ms: int = 1_000
    revoke_ms: int = 5_000
    checkpoint_interval_ms: int = 30_000
    checkpoint_on_close: bool = True
    payload_bytes_max: int = PAYLOAD_BYTES_MAX
    core: int | None = None
    is_secured: bool = False
    connections: int = CONNECTIONS_DEFAULT


class ShardProcess:
    """The process's state. `run` returns its exit code."""

    def __init__(self, options: ShardOptions) -> None:
        self.options = options
        self.shard = options.shard
        self.shards = options.shards
        self.server = options.server
        self.loop = asyncio.get_running_loop()
        self.host: ShardHost
        self.running: RunningTime
        self.lease: Lease | None = None
        self.calls = ClientCalls(self)
        self.clients = Clients(self, options.connections)
        self.relay = Relay(self)
        self.permits = PermitDesk(self)
        self.spin = Spin(self.loop, SPIN_S, time.perf_counter)
        self._told_lsn = 0
        self._workers: set[WorkerConnection] = set()
        self._farewells = Farewells(self.loop)
        self._rings = OfferedRings(self.loop)
        # Nobody comes in before it is known whom to let in.
        self._door = None if options.is_secured else self._new_door()
        self._entries = {
            ConnectionKind.WORKER: Entry(self._worker, lambda: "", Scope.FULL, Kind.LEASE, GREETING_FRAME_BYTES_MAX),
            ConnectionKind.CLIENT_SHARD: self.clients.entry,
            ConnectionKind.CLIENT_ANY: self.clients.entry,
        }
        self._tasks: set[asyncio.Task[Any]] = set()
        self._granting: WorkerConnection | None = None
        self._ended: asyncio.Future[int] = self.loop.create_future()
        self._is_hurried = False
        self._watch = LivenessWatch(self, options.ping_ms / 1000, options.revoke_ms / 1000)
        self._channel = Channel(
            self.loop, socket.socket(fileno=options.control), self._from_router, self._router_gone, m.descriptors_of,
        )
        self._early: list[tuple[bytes, list[int]]] | None = []

    async def run(self) -> int:
        """Open the shard, serve it, and close it; the exit code."""
        options = HostOptions(
            LogOptions(**self.options.log), self.options.checkpoint_interval_ms, self.options.checkpoint_on_close,
        )
        self.host = await ShardHost.open(Path(self.options.data), self.shard, options)
        self.host.on_durable, self.host.on_applied = self._durable, self._applied
        self.host.on_failed = self._log_failed
        self._open_limits()
        if self.options.core is not None:
            self._stay_on(self.options.core)
        self._tell(m.Status(self.facts()))  # first, so that whoever hears that it is ready can look at it
        self._tell(m.Ready())
        early, self._early = self._early or [], None
        for frame, descriptors in early:
            self._from_router(frame, descriptors)
        code = await self._ended
        await self._close()
        return code

    def _open_limits(self) -> None:
        limits, self.running = self.host.limits, RunningTime(self.loop)
        limits.on_defined = self.permits.call_next
        if self.host.durable_lsn or limits.permits.names():  # a life before this one may have granted permits, be it to other shards only
            limits.uptime = self.running.ms

    def _stay_on(self, core: int) -> None:
        """Keep this process on one processor; its children, of now and later, may go where it could."""
        os.environ["FUSEE_CORES"] = ",".join(map(str, os.sched_getaffinity(0)))
        os.sched_setaffinity(0, (core,))

    def refuse(self, error: FuseeError) -> None:
        """Opening failed: tell the router why, so that it can name the cause."""
        self._tell(m.Goodbye(f"{error.code}: {error.message}"))
        self._channel.close()

    def spawn(self, body: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self.loop.create_task(body)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # The router.

    def _tell(self, message: m.Message, request: int = 0) -> None:
        if not self._channel.is_closed:
            self._channel.send(m.encode(message, request, self.shard))

    def _from_router(self, data: bytes, descriptors: list[int]) -> None:
        if self._early is not None:
            self._early.append((data, descriptors))
            return
        frame = decode_frame(data)
        message = m.decode(frame)
        if isinstance(message, m.Adopt):
            self._adopt(message.preface, socket.socket(fileno=descriptors[0]))
        elif isinstance(message, m.Keys):
            self._key(descriptors[0])
        elif isinstance(message, m.Ring):
            self.relay.connect(message.shard, LinkFds.of(message.generation, descriptors))
        elif isinstance(message, m.Revoke):
            self.end_lease(message.reason)
        elif isinstance(message, m.Status):
            self._tell(m.Status(self.facts()), frame.request)
        elif isinstance(message, m.Stop):
            self._stop(0)

    def _router_gone(self, reason: str) -> None:
        LOG.warning("shard %d: the router is gone (%s): sealing the log and ending", self.shard, reason)
        self._is_hurried = True  # the next server waits for this shard's lock
        self._stop(0)

    def _stop(self, code: int) -> None:
        if not self._ended.done():
            self._ended.set_result(code)

    def facts(self) -> dict[str, Any]:
        """What `fusee-mp shards` shows of this shard."""
        host, lease = self.host, self.lease
        return {
            "shard": self.shard, "pid": os.getpid(), "keeper_pid": host.keeper_pid, "epoch": host.epoch,
            "worker": lease.holder if lease else "", "durable_lsn": host.durable_lsn, "applied_lsn": host.applied_lsn,
            "clients": len(self.clients.open), "calls_waiting": len(self.calls.waiting), "refusal": host.refusal,
            "flush": host.flush_facts(), "torn": host.torn is not None, "beginning": len(self._door) if self._door else 0,
            "refused": self._door.refusals.count if self._door else 0,
        }

    def _key(self, descriptor: int) -> None:
        """There are keys, or other ones. The router has tried them."""
        try:
            keys = Keys.of(Material.from_descriptor(descriptor))
        except (FuseeError, DecodeError, OSError) as e:
            LOG.error("shard %d: the keys that the router sent cannot be used, and nothing changes: %s", self.shard, e)
            return
        if self._door is None:
            self._door = self._new_door()
        self._door.keys = keys
        for connection in self._connections():
            if not keys.honours(connection.token):
                connection.close(TOKEN_GONE)

    def _connections(self) -> list[ClientConnection | WorkerConnection]:
        return [*self.clients.open, *self._workers]

    def _adopt(self, preface: bytes, sock: socket.socket) -> None:
        """Take over a connection whose preface the router has read."""
        entry = self._entries.get(decode_preface(preface).kind)
        if entry is None or self._door is None:
            self._farewells.goodbye(sock, "this process takes no such connection, or none yet: try again")
            return
        try:
            sock.setblocking(False)
            if sock.family != socket.AF_UNIX:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # a client's machine may vanish
        except OSError:  # reset already
            sock.close()
            return
        self._door.admit(sock, preface, entry)

    def _new_door(self) -> Door:
        return Door(self.loop, self._farewells, LOG, by_rings=self._rings.take)

    def _worker(self, token: Token) -> WorkerConnection:
        connection = WorkerConnection(self, token)
        self._workers.add(connection)
        return connection

    # Leases.

    async def grant(self, connection: WorkerConnection, ask: m.Lease, request: int) -> None:
        """Give the lease to a worker, if it is free."""
        lease = self.lease
        if lease is not None and lease.worker == ask.worker:
            self.end_lease("its worker asked for it anew")  # a new connection, or a new start of the same worker
        if self.lease is not None or self._granting is not None:
            busy = m.Error("busy", f"shard {self.shard} is held by another worker: wait for the router's word")
            connection.send(busy, request, self.shard)
            connection.close(busy.message)
            return
        self._granting = connection
        try:
            holder = f"{ask.worker}/{ask.instance}"
            base_lsn = await self.host.grant(holder, time.time_ns() // 1_000_000)
            epoch = self.host.epoch
            # Before the keeper has caught up, which may take longer than the router waits for an assignment.
            self._tell(m.Held(self.shard, holder, epoch))
            state = await self.host.read_bytes("state", b"\x90", base_lsn, timeout=3600)
        except FuseeError as e:
            connection.send(m.error_message(e), request, self.shard)
            connection.close(e.message)
            self._tell(m.Free(self.shard))
            return
        finally:
            self._granting = None
        if not connection.is_open:
            self._tell(m.Free(self.shard))
            return
        self.lease = connection.lease = Lease(connection, ask.worker, ask.instance, epoch, base_lsn)
        connection.send(m.Granted(epoch, base_lsn, self.host.applied_lsn, 0, state), request, self.shard, epoch)
        self._watch.start()
        self.relay.granted()
        self.calls.granted()

    def end_lease(self, reason: str, in_order: bool = False) -> None:
        """The lease is over; its connection too."""
        lease, self.lease = self.lease, None
        if lease is None:
            if self._granting is not None:
                self._granting.close(reason)
            return
        LOG.info("shard %d: the lease of %s (epoch %d) ended: %s", self.shard, lease.holder, lease.epoch, reason)
        lease.connection.lease = None
        lease.connection.send(m.Revoked(reason), 0, self.shard, lease.epoch)
        lease.connection.close(reason)
        self._watch.stop()
        self.permits.left(lease.epoch)
        self._tell(m.Free(self.shard))
        self.calls.freed(in_order)

    def worker_lost(self, connection: WorkerConnection, reason: str) -> None:
        self._workers.discard(connection)
        if self.lease is not None and self.lease.connection is connection:
            self.end_lease(reason)

    def from_worker(self, frame: Frame) -> None:
        """A frame of the holder, other than its appends."""
        kind = frame.kind
        if kind in (Kind.REPLY, Kind.ERROR):
            self.calls.answered(frame)
        elif kind == Kind.RELAY:
            self.relay.send(frame)
        elif kind == Kind.RELAY_ACK:
            self.relay.acknowledge(frame)
        elif kind == Kind.READ:
            assert self.lease is not None
            read = m.decode(frame)
            assert isinstance(read, m.Read)
            self.spawn(self._read(self.lease.connection, frame, read))
        elif kind == Kind.PERMIT_SAY:
            self.permits.from_holder(frame)
        elif kind == Kind.RETURN:
            self.end_lease("the worker handed it back", in_order=True)

    async def _read(self, connection: WorkerConnection, frame: Frame, read: m.Read) -> None:
        try:
            value = await self.host.read_bytes(read.method, read.args, read.min_lsn)
        except FuseeError as e:
            connection.send(m.error_message(e), frame.request, self.shard, frame.epoch)
            return
        for part in m.encode_answer(m.Value, value, frame.request, self.shard, frame.epoch):
            await connection.room()
            connection.send_bytes(part)

    # The log.

    def _durable(self, lsn: int) -> None:
        lease = self.lease
        if lease is not None and lsn > lease.base_lsn:
            self._progress(lease)
            if lease.connection.is_held_back and self.host.pending_bytes <= APPENDED_BYTES_MAX // 2:
                lease.connection.go_on()

    def _applied(self, lsn: int) -> None:
        lease = self.lease
        if lease is not None and lsn > lease.base_lsn:
            self._progress(lease)

    def _progress(self, lease: Lease) -> None:
        host, base = self.host, lease.base_lsn
        durable = host.durable_lsn
        if 0 < durable - self._told_lsn <= SPIN_RECORDS_MAX:
            self.spin.start()
        self._told_lsn = durable
        lease.connection.send(m.Durable(max(0, durable - base), durable, max(0, host.applied_lsn - base)), 0, self.shard, lease.epoch)

    def _log_failed(self, reason: str) -> None:
        LOG.critical("shard %d: %s: ending at once", self.shard, reason)
        self._tell(m.Goodbye(f"storage: {reason}"))
        os._exit(EXIT_LOG_FAILED)

    async def _close(self) -> None:
        self.end_lease("the server stops")
        if self._door is not None:
            self._door.close("the server stops")
        for connection in self._connections():
            connection.close("the server stops")
        await asyncio.sleep(0)
        for task in list(self._tasks):
            task.cancel()
        self.relay.close()
        self.running.close()
        self._farewells.close()
        await self.host.close(hurried=self._is_hurried)
        self._channel.close()
