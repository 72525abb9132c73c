# The way in: everything between an accepted socket whose preface was read, and the protocol that it is for.
#
#   look      TLS only: is the first byte that of a handshake? Until it is there, a connection costs a descriptor and no more.
#   TLS       the handshake, at a pace (see turns.py)
#   proof     where there are tokens: theirs, both ways (see token.py)
#   greeting  the first frame, whole
#   in        the transport is the protocol's, with all that came behind the proof
#
# A Unix socket begins with its greeting: the mode of its file says who may use it.
#
# Rule 1: each phase has its time and its bound of bytes, however they trickle. What is late or too much is sent away with the reason.
# Rule 2: the number of those on their way in is bounded; beyond it one gives way (see crowd.py). So nobody who was let in notices.
# Rule 3: who is turned away learns why, and the log says it in few lines (see Refusals), however many they are.
# Rule 4: a connection is in one place at a time, and whoever has it closes it: here, then its protocol or the farewells.
"""`Door`: lets connections in."""
from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, cast

from fusee_mp import bounds
from fusee_mp.errors import Denied, FuseeError
from fusee_mp.heap import Tidy
from fusee_mp.security.crowd import Crowd, host_of
from fusee_mp.security.farewell import LINGER_MS, Farewells
from fusee_mp.security.keys import Keys
from fusee_mp.security.refusals import Refusals
from fusee_mp.security.token import NO_CHANNEL, UNASKED, Proving, Scope, Token, decoy
from fusee_mp.security.turns import Turns
from fusee_mp.wire import messages as m
from fusee_mp.wire.frames import Frame, first_frame, frame_bytes
from fusee_mp.wire.kinds import Kind
from fusee_mp.wire.preface import decode as decode_preface

_HANDSHAKE: Final = b"\x16"
NO_TLS: Final = "denied: this server takes connections over TLS alone: connect with ca= (--ca) and the CA of its certificate"
NO_TOKEN: Final = "this server asks for a token: connect with token_file= (--token-file)"
NO_TOKENS: Final = "this server has no tokens and cannot prove that it has yours: connect without token_file=, or serve with --tokens"
NO_CERTIFICATE: Final = "this server asks for a certificate: connect with cert= and key= (--cert and --key)"
TOKEN_GONE: Final = "the token that let it in is no longer among the server's: connect with one that is"
TOKEN_SHOWN_CHARS: Final = 64
CROWDED: Final = "too many connections are beginning: try again"


@dataclass(frozen=True, slots=True)
class Entry:
    """What a connection is for: `make` gives the protocol for a token of at least a scope, `full` why there is no room (or nothing).
    It begins with a frame of a kind, if that is fixed, and of at most so many bytes."""

    make: Callable[[Token], asyncio.Protocol]
    full: Callable[[], str]
    least: Scope
    first: Kind | None
    first_bytes_max: int


async def refuse_rings(sock: socket.socket, protocol: asyncio.Protocol) -> bool:
    raise Denied("rings are not taken here")


class Door:
    """Owns the sockets given to `admit`, until their protocols have them. `keys` may be changed, for those that come later. `by_rings`
    takes rings that were offered over a Unix socket: False when the connection goes on over the socket itself."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, farewells: Farewells, log: logging.Logger, keys: Keys | None = None,
        by_rings: Callable[[socket.socket, asyncio.Protocol], Awaitable[bool]] = refuse_rings,
    ) -> None:
        self.loop, self.farewells, self.keys, self.by_rings = loop, farewells, keys or Keys(), by_rings
        self.refusals = Refusals(loop, log)
        self._tidy = Tidy(loop)
        self._crowd: Crowd[Entrant] = Crowd()
        self._handshakes: Turns[Entrant] = Turns(loop, bounds.DOOR_HANDSHAKES_PER_SECOND, Entrant.start_tls)

    def __len__(self) -> int:
        return len(self._crowd)

    def admit(self, sock: socket.socket, preface: bytes, entry: Entry) -> None:
        """Take a connection whose preface was read."""
        why, host = entry.full(), host_of(sock)
        if why:
            self.refusals.refused(host, why)
            self.farewells.goodbye(sock, why)
            return
        if len(self._crowd) >= bounds.DOOR_PENDING_MAX:
            self._crowd.who_gives_way().refuse(CROWDED)
        entrant = Entrant(self, sock, preface, entry, host)
        self._crowd.add(entrant, host)
        entrant.begin()

    def left(self, entrant: Entrant) -> None:
        self._crowd.remove(entrant)
        self._handshakes.remove(entrant)
        self._tidy.gone()

    def shake_hands(self, entrant: Entrant, host: str) -> None:
        """Let it start TLS, when it is its turn."""
        self._handshakes.add(entrant, host)

    def make_room(self) -> None:
        """Those on their way in hold too much: who holds most gives way."""
        members = self._crowd.members()
        if sum(entrant.held for entrant in members) > bounds.DOOR_BYTES_MAX:
            max(members, key=lambda entrant: entrant.held).refuse(CROWDED)

    def close(self, reason: str) -> None:
        """Refuse all that are on their way."""
        for entrant in self._crowd.members():
            entrant.refuse(reason)
        self._handshakes.close()
        self.refusals.close()
        self._tidy.close()


class Entrant(asyncio.Protocol):
    """One connection on its way in."""

    def __init__(self, door: Door, sock: socket.socket, preface: bytes, entry: Entry, host: str) -> None:
        self._door, self._preface, self._entry, self._host = door, preface, entry, host
        self._sock = sock
        is_unix = sock.family == socket.AF_UNIX
        self._keys = Keys() if is_unix else door.keys
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._buffer = bytearray()
        self._token = UNASKED
        self._is_proven = self._keys.tokens is None
        self._proving: Proving | None = None
        self._client_nonce, self._named = b"", ""
        self._is_refused = False
        self._offers_rings = is_unix and decode_preface(preface).offers_rings

    @property
    def held(self) -> int:
        return len(self._buffer)

    # Towards a transport.

    def begin(self) -> None:
        if self._keys.context is None:
            if self._offers_rings:
                self._within(bounds.DOOR_GREETING_MS, "offer its rings")
            self._connect(None)
            return
        self._within(bounds.DOOR_TLS_MS, "make its TLS handshake")
        self._door.loop.add_reader(self._sock.fileno(), self._look)
        self._look()

    def _look(self) -> None:
        try:
            first = self._sock.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            first = b""
        self._door.loop.remove_reader(self._sock.fileno())
        if first == _HANDSHAKE:
            self._door.shake_hands(self, self._host)
        elif first:
            self.refuse(NO_TLS)
        else:
            self._ended()
            self._sock.close()

    def start_tls(self) -> None:
        self._connect(self._keys.context)

    def _connect(self, context: ssl.SSLContext | None) -> None:
        self._task = self._door.loop.create_task(self._connected(context))

    async def _connected(self, context: ssl.SSLContext | None) -> None:
        try:
            if not (self._offers_rings and await self._door.by_rings(self._sock, self)):
                await self._door.loop.connect_accepted_socket(lambda: self, self._sock, ssl=context)
        except FuseeError as error:  # the rings are not taken; the socket is still here
            self._task = None
            if self._is_refused:
                self._sock.close()
            else:
                self.refuse(error.message)
        except BaseException as error:
            self._ended()
            self._sock.close()
            if not isinstance(error, OSError):
                raise
            if not self._is_refused:
                self._door.refusals.refused(self._host, f"TLS failed: {error or 'the other side ended it'}" if context else str(error))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._is_refused:
            self._transport.abort()
        elif self._keys.asks_certificate and transport.get_extra_info("ssl_object").getpeercert(True) is None:
            self._deny(NO_CERTIFICATE, 0)
        elif self._is_proven:
            self._within(bounds.DOOR_GREETING_MS, "say what it wants")
        else:
            self._within(bounds.DOOR_PROOF_MS, "prove its token")

    # On the transport.

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        try:
            while self._transport is not None and (frame := self._next_frame()) is not None:
                if self._is_proven:
                    self._greeted(frame)
                    return
                del self._buffer[:frame_bytes(frame)]
                self._prove(frame)
        except FuseeError as error:
            self.refuse(error.message)
        else:
            self._door.make_room()

    def _next_frame(self) -> Frame | None:
        return first_frame(self._buffer, self._entry.first_bytes_max if self._is_proven else bounds.PROOF_FRAME_BYTES_MAX)

    def _prove(self, frame: Frame) -> None:
        message = m.decode(frame) if frame.kind in (Kind.CHALLENGE, Kind.PROOF) else None
        if isinstance(message, m.Challenge) and self._proving is None:
            self._challenged(message, frame.request)
        elif isinstance(message, m.Proof) and self._proving is not None:
            try:
                self._proving.check_client(message.proof, self._client_nonce)
            except Denied as error:
                self._deny(error.message, frame.request)
                return
            self._token, self._is_proven = self._proving.token, True
            self._within(bounds.DOOR_GREETING_MS, "say what it wants")
        else:
            self._deny(NO_TOKEN, frame.request)

    def _challenged(self, challenge: m.Challenge, request: int) -> None:
        assert self._keys.tokens is not None
        token = self._keys.tokens.get(challenge.token) or decoy(challenge.token)
        self._proving = Proving(token, self._preface, self._keys.channel if self._keys.context else NO_CHANNEL)
        self._client_nonce, self._named = challenge.nonce, challenge.token[:TOKEN_SHOWN_CHARS]
        self._send(m.Proof(self._proving.of_server(challenge.nonce), self._proving.nonce), request)

    def _greeted(self, frame: Frame) -> None:
        if frame.kind == Kind.CHALLENGE:
            self._deny(NO_TOKENS, frame.request)
            return
        if not self._door.keys.honours(self._token):  # read again meanwhile
            self._deny(TOKEN_GONE, frame.request)
            return
        if why := self._out_of_place(frame):
            self._deny(why, frame.request)
            return
        if why := self._entry.full():  # others came in meanwhile
            self.refuse(why)
            return
        transport, self._transport = self._transport, None
        assert transport is not None
        self._ended()
        protocol = self._entry.make(self._token)
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        protocol.data_received(bytes(self._buffer))

    def _out_of_place(self, frame: Frame) -> str:
        """Why this is no beginning of what the preface named, if it is none."""
        entry, scope = self._entry, self._token.scope
        if entry.first is not None and frame.kind != entry.first:
            return f"this connection begins with {entry.first.name}, by its preface, and not with a frame of kind {frame.kind}"
        if scope < entry.least:
            least, found = entry.least.name.lower(), scope.name.lower()
            return f"this connection needs a token of scope {least}, by its preface, and this one has {found}"
        return ""

    def eof_received(self) -> None:
        """The transport closes itself."""

    def connection_lost(self, exc: Exception | None) -> None:
        if self._proving is not None and not self._is_proven and self._transport is not None:
            why = f"it left before it proved its token {self._named!r}: this server has none of that name and secret"
            self._door.refusals.refused(self._host, why)
        self._ended()
        self._transport = None

    # Turning away.

    def refuse(self, reason: str) -> None:
        """Say why, and end it."""
        self._is_refused = True
        self._door.refusals.refused(self._host, reason)
        self._ended()
        if self._transport is not None:
            self._send(m.Goodbye(reason))
            self._close()
        elif self._task is None:
            self._door.loop.remove_reader(self._sock.fileno())
            self._door.farewells.goodbye(self._sock, reason)
        else:
            # In its handshake, where no words reach it. Cancelled, uvloop would keep the socket for half a minute.
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)

    def _deny(self, reason: str, request: int) -> None:
        self._send(m.error_message(Denied(reason)), request)
        self.refuse(f"denied: {reason}")

    def _send(self, message: m.Message, request: int = 0) -> None:
        assert self._transport is not None
        self._transport.write(m.encode(message, request))

    def _close(self) -> None:
        transport, self._transport = self._transport, None
        assert transport is not None
        self._buffer.clear()
        transport.set_protocol(_Leaving(self._door.loop, transport))
        transport.close()

    # Time.

    def _within(self, time_ms: int, what: str) -> None:
        self._stop_timer()
        self._timer = self._door.loop.call_later(time_ms / 1000, self.refuse, f"expected it to {what} within {time_ms / 1000:g} s")

    def _ended(self) -> None:
        """It is on its way no longer."""
        self._stop_timer()
        self._door.left(self)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _Leaving(asyncio.Protocol):
    """Takes the last word to a peer, but does not wait for it for ever."""

    def __init__(self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport) -> None:
        self._timer = loop.call_later(LINGER_MS / 1000, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
