# Control connections: workers that want shards, and whoever asks for the state of the server.
#
# Rule 1: a session that was welcomed is `left` exactly once, whoever ended it.
# Rule 2: any byte is a sign of life, but a frame once begun must be whole in time. Silence counts only in time in which this process
#         looked (see health.py).
# Rule 3: one session's damage or flood ends that session and nothing else.
"""`Sessions`: speaks with workers about leases, and answers STATUS."""
from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Any, Final, Protocol

from fusee_mp.bounds import (
    CONTROL_FRAME_BYTES_MAX,
    CONTROL_FRAME_MS,
    CONTROL_UNFINISHED_BYTES_MAX,
    CONTROL_UNREAD_BYTES_MAX,
    ROUTER_SESSIONS_MAX,
)
from fusee_mp.errors import Denied, ProtocolError
from fusee_mp.security.door import TOKEN_GONE, Door, Entry
from fusee_mp.security.keys import Keys
from fusee_mp.security.token import Scope, Token, check_leasing
from fusee_mp.wire import messages as m
from fusee_mp.wire.bounded import BoundedStream
from fusee_mp.wire.frames import Frame, FrameDecoder
from fusee_mp.wire.hello import check_hello
from fusee_mp.wire.kinds import Kind
from fusee_mp.wire.unfinished import Unfinished
from fusee_mp.wire.unread import Unread

LOG: Final = logging.getLogger("fusee_mp.router")


class Desk(Protocol):
    """What the router is to its sessions."""

    def joined(self, session: int, hello: m.Hello) -> None: ...
    def left(self, session: int) -> None: ...
    def drains(self, session: int) -> None: ...
    def released(self, session: int, shard: int) -> None: ...
    def lacks(self, session: int, shard: int, workflows: tuple[str, ...]) -> None: ...
    def status(self) -> dict[str, Any]: ...


class Session(BoundedStream):
    """One control connection. `hello` is there once it is a worker's."""

    def __init__(
        self, number: int, token: Token, welcome: m.Welcome, desk: Desk, on_lost: Callable[[Session], None], unfinished: Unfinished,
        unread: Unread,
    ) -> None:
        super().__init__(unfinished, unread)
        self._decoder = FrameDecoder(CONTROL_FRAME_BYTES_MAX)
        self.number, self.token = number, token
        self.hello: m.Hello | None = None
        self._welcome, self._desk, self._on_lost = welcome, desk, on_lost
        self._silent_ms = self._unfinished_ms = 0
        self._heard_at = 0.0

    def tick(self, passed_ms: int, stamp: int) -> None:
        """Count silence, and ask for a sign of life. One that was closed and does not take the last word is ended."""
        if not self.is_open:
            self.abort("")
            return
        self._silent_ms += passed_ms
        if self.heard_at != self._heard_at:
            self._heard_at, self._silent_ms = self.heard_at, 0
        self._unfinished_ms = self._unfinished_ms + passed_ms if self._decoder.held_bytes else 0
        if self._silent_ms >= self._welcome.revoke_ms:
            self.close(f"nothing was heard for {self._silent_ms / 1000:.1f} s")
        elif self._unfinished_ms >= CONTROL_FRAME_MS:
            self.close(f"a frame was not finished within {CONTROL_FRAME_MS / 1000:g} s")
        else:
            self.send(m.Ping(stamp))

    def received(self, frame: Frame) -> None:
        self._unfinished_ms = 0
        handler = _HANDLERS.get(Kind(frame.kind))
        if handler is None:
            raise ProtocolError(f"a control connection takes no {Kind(frame.kind).name}: connect to a shard for that", kind=frame.kind)
        handler(self, m.decode(frame), frame.request)

    def lost(self, reason: str) -> None:
        if self.hello is not None:
            LOG.info("worker %s/%s: its session ended: %s", self.hello.worker, self.hello.instance, reason)
        self._on_lost(self)

    @property
    def _scope(self) -> str:
        return self.token.scope.name.lower()

    def _hello(self, hello: m.Hello, request: int) -> None:
        if self.hello is not None:
            raise ProtocolError("a session says HELLO once: open another connection")
        try:
            check_leasing(self._scope)
        except Denied as denied:
            self.send(m.error_message(denied), request)
            return
        check_hello(hello)
        self.hello = hello
        self.send(self._welcome, request)
        LOG.info("worker %s/%s joined", hello.worker, hello.instance)
        self._desk.joined(self.number, hello)

    def _status(self, message: m.Status, request: int) -> None:
        self.send(m.Status({**self._desk.status(), "scope": self._scope}), request)

    def _ping(self, message: m.Ping, request: int) -> None:
        self.send(m.Pong(message.stamp), request)

    def _ignore(self, message: m.Message, request: int) -> None:
        """A sign of life, or an answer that nobody waits for."""

    def _drain(self, message: m.Drain, request: int) -> None:
        self._of_worker()
        self._desk.drains(self.number)

    def _released(self, message: m.Released, request: int) -> None:
        self._of_worker(message)
        self._desk.released(self.number, message.shard)

    def _lacking(self, message: m.Lacking, request: int) -> None:
        self._of_worker(message)
        self._desk.lacks(self.number, message.shard, tuple(message.workflows))

    def _of_worker(self, message: m.Released | m.Lacking | None = None) -> None:
        if self.hello is None:
            raise ProtocolError("only a worker says that: say HELLO first")
        if message is not None and message.shard >= self._welcome.shards:
            shards = self._welcome.shards
            raise ProtocolError(f"{message.KIND.name} names shard {message.shard}, this server has {shards} shards", shard=message.shard)


_HANDLERS: Final[dict[Kind, Callable[[Session, Any, int], None]]] = {
    Kind.HELLO: Session._hello,
    Kind.STATUS: Session._status,
    Kind.PING: Session._ping,
    Kind.PONG: Session._ignore,
    Kind.ERROR: Session._ignore,
    Kind.DRAIN: Session._drain,
    Kind.RELEASED: Session._released,
    Kind.LACKING: Session._lacking,
}


class Sessions:
    """All control connections, by number. Owns the sockets given to `add`."""

    def __init__(self, welcome: m.Welcome, desk: Desk, door: Door) -> None:
        self._welcome, self._desk, self._door = welcome, desk, door
        self._open: dict[int, Session] = {}
        self._unfinished, self._unread = Unfinished(CONTROL_UNFINISHED_BYTES_MAX), Unread(CONTROL_UNREAD_BYTES_MAX)
        self._entry = Entry(self._begin, self._full, Scope.READ, None, CONTROL_FRAME_BYTES_MAX)
        self._last = 0

    def add(self, sock: socket.socket, preface: bytes) -> None:
        """Take a connection whose preface was read."""
        self._door.admit(sock, preface, self._entry)

    def _full(self) -> str:
        if len(self._open) < ROUTER_SESSIONS_MAX or self._onlooker() is not None:
            return ""
        return f"there are {ROUTER_SESSIONS_MAX} sessions of workers already: close some"

    def _onlooker(self) -> Session | None:
        """The oldest that is no worker's."""
        return next((session for session in self._open.values() if session.hello is None and session.is_open), None)

    def _begin(self, token: Token) -> Session:
        if len(self._open) >= ROUTER_SESSIONS_MAX and (onlooker := self._onlooker()) is not None:
            onlooker.close(f"there are {ROUTER_SESSIONS_MAX} control connections already, and another came")
        self._last += 1
        session = Session(self._last, token, self._welcome, self._desk, self._lost, self._unfinished, self._unread)
        self._open[self._last] = session
        return session

    def keyed(self, keys: Keys) -> None:
        """There are other keys: who came in with a token that is gone goes."""
        for session in list(self._open.values()):
            if not keys.honours(session.token):
                session.close(TOKEN_GONE)

    def send(self, number: int, message: m.Message) -> None:
        """Send to a session; one that is gone has been reported as left."""
        session = self._open.get(number)
        if session is not None:
            session.send(message)

    def dismiss(self, number: int, reason: str) -> None:
        session = self._open.get(number)
        if session is not None:
            session.close(reason)

    def drain(self) -> None:
        """Ask all workers to hand everything back."""
        for session in list(self._open.values()):
            if session.hello is not None:
                session.send(m.Drain())

    def tick(self, passed_ms: int, stamp: int) -> None:
        for session in list(self._open.values()):
            session.tick(passed_ms, stamp)

    async def close(self, reason: str) -> None:
        """Say goodbye to all. Returns when the last word has left, or at once if a peer does not read."""
        for session in list(self._open.values()):
            session.close(reason)
        await asyncio.sleep(0)
        for session in list(self._open.values()):
            session.abort(reason)
        await asyncio.sleep(0)

    def _lost(self, session: Session) -> None:
        self._open.pop(session.number, None)
        if session.hello is not None:
            self._desk.left(session.number)
