"""`Clients`: the connections of clients to this shard process, and where their calls go."""
from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from fusee_mp.bounds import GREETING_FRAME_BYTES_MAX, UNFINISHED_BYTES_MAX, UNREAD_BYTES_MAX
from fusee_mp.core.calls import LimitCall
from fusee_mp.errors import Denied, Rejected
from fusee_mp.heap import Tidy
from fusee_mp.security.door import Entry
from fusee_mp.security.token import Scope, Token
from fusee_mp.shardproc.forwarded import Forwarded
from fusee_mp.shardproc.waiting import CLIENT_READS
from fusee_mp.wire import messages as m
from fusee_mp.wire.bounded import BoundedStream
from fusee_mp.wire.frames import Frame, encode_frame
from fusee_mp.wire.kinds import Kind
from fusee_mp.wire.unfinished import Unfinished
from fusee_mp.wire.unread import Unread

if TYPE_CHECKING:
    from fusee_mp.shardproc.process import ShardProcess

# What a token of scope read may call, and looking at a limit. A query runs code of the workflow, but can record nothing.
READ_SCOPE: Final = CLIENT_READS | {"result", "started", "query", "schedule_look", "schedules", "limits"}


class Clients:
    """All connections of clients. `most` bounds them."""

    def __init__(self, process: ShardProcess, most: int) -> None:
        self._process, self._most = process, most
        self.open: set[ClientConnection] = set()
        self.forwarded = Forwarded(process)
        self.unfinished = Unfinished(UNFINISHED_BYTES_MAX)
        self.unread = Unread(UNREAD_BYTES_MAX)
        self.entry = Entry(self._begin, self._full, Scope.READ, Kind.CLIENT_HELLO, GREETING_FRAME_BYTES_MAX)
        self._tidy = Tidy(process.loop)

    def _begin(self, token: Token) -> ClientConnection:
        connection = ClientConnection(self, token)
        self.open.add(connection)
        return connection

    def _full(self) -> str:
        if len(self.open) < self._most:
            return ""
        return f"shard {self._process.shard} has {self._most} clients already, as many as it may (`serve --connections`): close some"

    @property
    def welcome(self) -> m.ClientWelcome:
        process = self._process
        return m.ClientWelcome(process.server, process.shards, process.options.payload_bytes_max)

    def call(self, frame: Frame, owner: ClientConnection) -> None:
        calls = self._process.calls if frame.shard == self._process.shard else self.forwarded
        calls.take(frame, owner.send_bytes, owner)

    def cancel(self, request: int, owner: ClientConnection) -> None:
        for waiting in (self._process.calls.waiting, self.forwarded.waiting):
            waiting.cancel(owner, request)

    def lost(self, connection: ClientConnection) -> None:
        self.open.discard(connection)
        self._process.calls.waiting.forget(connection)
        self.forwarded.waiting.forget(connection)
        self._tidy.gone()


class ClientConnection(BoundedStream):
    """A client's connection to this shard process."""

    def __init__(self, clients: Clients, token: Token) -> None:
        super().__init__(clients.unfinished, clients.unread)
        self._clients = clients
        self.token = token

    def received(self, frame: Frame) -> None:
        if frame.kind == Kind.CLIENT_HELLO:
            m.decode(frame)
            self.send(self._clients.welcome, frame.request)
        elif frame.kind == Kind.CALL:
            self._call(frame)
        elif frame.kind == Kind.CANCEL:
            self._clients.cancel(frame.request, self)
        elif frame.kind == Kind.PING:
            self.send_bytes(encode_frame(Kind.PONG, frame.body, frame.request))
        else:
            raise Rejected(f"a client does not send frames of kind {frame.kind} to a shard")

    def _call(self, frame: Frame) -> None:
        if self.token.scope < Scope.CLIENT and not is_read(m.decode(frame)):
            denied = Denied("this call changes something, or may, and needs a token of scope client: this one has read")
            self.send(m.error_message(denied), frame.request, frame.shard)
            return
        self._clients.call(frame, self)

    def lost(self, reason: str) -> None:
        self._clients.lost(self)


def is_read(call: m.Message) -> bool:
    """Whether it is a call that changes nothing. What a worker gets is the call that the method names: it compares the two."""
    if not isinstance(call, m.Call) or call.method != "limit":
        return isinstance(call, m.Call) and call.method in READ_SCOPE
    try:
        return msgspec.msgpack.decode(call.args, type=LimitCall).spec is None
    except msgspec.DecodeError:
        return False
