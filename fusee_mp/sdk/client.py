# A client: the methods of an engine, from any process.
#
# It keeps one connection to the shard process of each shard it acts on. When one is lost, what waited on it is asked again over a
# new one, with its request ID and marked as a repeat, so that it has the effect and the answer of one.
from __future__ import annotations

import asyncio
import os
from collections.abc import Generator
from types import TracebackType
from typing import Any, Final

import msgspec

from fusee_mp.core.call_checks import fault
from fusee_mp.core.calls import (
    Call,
    LimitCall,
    LimitRow,
    LimitState,
    Outcome,
    QueryCall,
    ResultCall,
    StartCall,
    Started,
    StartWithUpdateCall,
    UpdateCall,
)
from fusee_mp.core.time_calls import BackfillCall, ChangeScheduleCall, GatherCall, ScheduleCall, SchedulesCall, ScheduleShown
from fusee_mp.errors import FuseeError, ProtocolError, Unavailable
from fusee_mp.payload.sealing import PLAIN, PayloadCodec, Payloads
from fusee_mp.sdk.address import Address, FilePath, parse_address
from fusee_mp.sdk.connection import Connection, Lost, connect
from fusee_mp.sdk.methods import Methods
from fusee_mp.store.reads import question
from fusee_mp.wire import messages as m
from fusee_mp.wire.preface import ConnectionKind, Preface

RECONNECT_FIRST_S: Final = 0.05
RECONNECT_MOST_S: Final = 1.0
# How long a server may be away before a call that waits for it gives up.
AWAY_S: Final = 30.0
# A call that was lost after it waited for so long was lost by a new trouble: the server was there. One that brings down whoever takes
# it is lost sooner, again and again.
GOOD_WHILE_S: Final = 1.0

_ANSWERS: Final[dict[type, msgspec.msgpack.Decoder[Any]]] = {
    StartCall: msgspec.msgpack.Decoder(Started),
    ScheduleCall: msgspec.msgpack.Decoder(ScheduleShown),
    SchedulesCall: msgspec.msgpack.Decoder(list[ScheduleShown]),
    **dict.fromkeys((ChangeScheduleCall, BackfillCall, GatherCall), msgspec.msgpack.Decoder()),
    **dict.fromkeys((ResultCall, UpdateCall, StartWithUpdateCall, QueryCall), msgspec.msgpack.Decoder(Outcome)),
}


class ShardConnection(Connection):
    """A client's connection to one shard process."""

    def cancelled(self, request: int, shard: int) -> None:
        self.send(m.Cancel(), request, shard)


class Client(Methods):
    """Talks to a server. Made by `connect`. Not for use after a fork, nor on another loop than the one it was made on."""

    def __init__(self, address: Address, name: str = "", payloads: Payloads = PLAIN) -> None:
        super().__init__(payloads)
        self._address = address
        self._client_name = name or address.name or f"{os.uname().nodename}-{os.getpid()}"
        self._shards = 0
        self._connections: dict[int, ShardConnection] = {}
        self._connecting: dict[int, asyncio.Lock] = {}
        self._made_in = os.getpid()
        self._is_closed = False

    @staticmethod
    def connect(
        address: str, *, name: str = "", codec: PayloadCodec | None = None, ca: FilePath | None = None, cert: FilePath | None = None,
        key: FilePath | None = None, token_file: FilePath | None = None,
    ) -> Connecting:
        """A client of the server at this address: `async with Client.connect(..) as client`. Raises Unavailable, Rejected, Denied.

        codec: seals payloads before they leave and opens those that come; the server never has its key, the workers need it too.
        ca, cert, key, token_file: files for a server with TLS and tokens, in place of those that the address names: the CA of its
        certificate (without one there is no TLS), a certificate of ours with its key, a token.
        """
        return Connecting(Client(parse_address(address).secured(ca, cert, key, token_file), name, Payloads(codec)))

    @property
    def shards(self) -> int:
        return self._shards

    async def _begin(self) -> None:
        connection = await self._greet(Preface(ConnectionKind.CLIENT_ANY))
        connection.close("it was only asked how many shards there are")

    async def _greet(self, preface: Preface) -> ShardConnection:
        connection = await connect(self._address, lambda: ShardConnection(preface))
        welcome = await connection.greet(m.ClientHello(self._client_name), m.ClientWelcome)
        self._shards = welcome.shards
        self.payloads = self.payloads.up_to(welcome.payload_bytes_max)
        return connection

    async def _connection(self, shard: int) -> ShardConnection:
        connection = self._connections.get(shard)
        if connection is not None and connection.is_open:
            return connection
        async with self._connecting.setdefault(shard, asyncio.Lock()):
            connection = self._connections.get(shard)
            if connection is None or not connection.is_open:
                connection = self._connections[shard] = await self._greet(Preface(ConnectionKind.CLIENT_SHARD, shard))
            return connection

    async def _ask(self, shard: int, method: str, args: bytes) -> bytes:
        """Ask until there is an answer; across restarts of the server, marked as a repeat."""
        self._check_usable()
        loop = asyncio.get_running_loop()
        pause, away_since, repeat = RECONNECT_FIRST_S, loop.time(), False
        while True:
            asked_at = None
            try:
                connection = await self._connection(shard)
                asked_at = loop.time()
                reply = await connection.ask(m.Call(method, args, repeat), shard)
            except FuseeError as e:
                if not isinstance(e, Lost):
                    raise self.payloads.opened_error(e) from None
                now = loop.time()
                if asked_at is not None and now - asked_at > GOOD_WHILE_S:
                    pause, away_since = RECONNECT_FIRST_S, now
                if self._is_closed or now - away_since > AWAY_S:
                    raise Unavailable(f"{e.message} (tried for {now - away_since:.0f} s)", address=str(self._address)) from None
                repeat = True
                await asyncio.sleep(pause)
                pause = min(pause * 2, RECONNECT_MOST_S)
            else:
                if not isinstance(reply, m.Reply):
                    raise ProtocolError(f"expected REPLY to a call, found {type(reply).KIND.name}: upgrade the older side")
                return reply.value

    async def _call(self, shard: int, call: Call) -> Any:
        method = call.__struct_config__.tag
        assert isinstance(method, str)
        if (wrong := fault(call, self.payloads.bytes_max)) is not None:
            raise wrong
        value = await self._ask(shard, method, msgspec.msgpack.encode(self.payloads.sealed(call)))
        decoder = _ANSWERS.get(type(call))
        return None if decoder is None else self.payloads.answer(decoder.decode(value))

    async def _read(self, shard: int, method: str, args: tuple[Any, ...]) -> Any:
        value = await self._ask(shard, method, msgspec.msgpack.encode(args))
        return msgspec.msgpack.decode(value, type=question(method).result)

    async def _limit(self, shard: int, call: LimitCall) -> LimitState:
        return msgspec.msgpack.decode(await self._ask(shard, "limit", msgspec.msgpack.encode(call)), type=LimitState)

    async def _limit_page(self, shard: int, after: str) -> list[LimitRow]:
        return msgspec.msgpack.decode(await self._ask(shard, "limits", msgspec.msgpack.encode(after)), type=list[LimitRow])

    def _check_usable(self) -> None:
        if os.getpid() != self._made_in:
            raise Unavailable("this client was made before a fork and its connections are the parent's: make a client in this process")
        if self._is_closed:
            raise Unavailable("this client is closed: make another")

    async def close(self) -> None:
        """Close the connections; calls that wait raise Unavailable."""
        self._is_closed = True
        if os.getpid() == self._made_in:
            for connection in self._connections.values():
                connection.close("the client was closed")
        self._connections.clear()


class Connecting:
    """A client about to be connected: `async with` it, or `await` it and close the client yourself."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def _begin(self) -> Client:
        await self._client._begin()
        return self._client

    def __await__(self) -> Generator[Any, None, Client]:
        return self._begin().__await__()

    async def __aenter__(self) -> Client:
        return await self._begin()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._client.close()
