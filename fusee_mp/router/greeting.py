# The first 16 bytes of each connection.
#
# Rule 1: exactly the preface is read. The next byte belongs to whoever gets the socket.
# Rule 2: a connection is in one place at a time, and whoever has it closes it: here until its preface is whole, then `on_greeted`'s
#         owner, or the farewells.
"""`Greetings`: reads prefaces, and refuses what is none."""
from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from fusee_mp.bounds import ROUTER_GREETING_MS, ROUTER_GREETINGS_MAX, ROUTER_GREETINGS_PER_SECOND
from fusee_mp.errors import ProtocolError
from fusee_mp.security.crowd import Crowd, host_of
from fusee_mp.security.farewell import Farewells
from fusee_mp.security.turns import Turns
from fusee_mp.wire.preface import PREFACE_BYTES, Preface
from fusee_mp.wire.preface import decode as decode_preface

_HTTP: Final = re.compile(rb"(GET|HEAD|POST|PUT|DELETE|OPTIONS|PATCH|CONNECT|TRACE|PRI) ")
_HTTP_TEXT: Final = b"This port speaks the fusee-mp protocol, not HTTP: connect with a fusee-mp client or worker.\n"
HTTP_ANSWER: Final = b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (
    len(_HTTP_TEXT), _HTTP_TEXT,
)


@dataclass(slots=True, eq=False)
class _Greeting:
    sock: socket.socket
    received: bytes = b""
    age_ms: int = 0


class Greetings:
    """Owns the sockets given to `add` until `on_greeted(socket, preface, its bytes)` has them."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, on_greeted: Callable[[socket.socket, Preface, bytes], None], farewells: Farewells
    ) -> None:
        self._loop, self._on_greeted, self._farewells = loop, on_greeted, farewells
        self._pending: Crowd[_Greeting] = Crowd()
        self._turns: Turns[_Greeting] = Turns(loop, ROUTER_GREETINGS_PER_SECOND, self._begin)

    def add(self, sock: socket.socket) -> None:
        """Take a connection; its preface may be there already."""
        greeting = _Greeting(sock)
        if len(self._pending) >= ROUTER_GREETINGS_MAX:
            driven_out = self._pending.who_gives_way()
            self._forget(driven_out)
            self._farewells.brief(driven_out.sock, f"over {ROUTER_GREETINGS_MAX} connections have not said what they are for")
        host = host_of(sock)
        self._pending.add(greeting, host)
        self._turns.add(greeting, host)

    def _begin(self, greeting: _Greeting) -> None:
        self._loop.add_reader(greeting.sock.fileno(), self._on_readable, greeting)
        self._on_readable(greeting)

    def tick(self, passed_ms: int) -> None:
        for greeting in self._pending.members():
            greeting.age_ms += passed_ms
            if greeting.age_ms >= ROUTER_GREETING_MS:
                found = f"{len(greeting.received)} ({greeting.received.hex(' ')})" if greeting.received else "none"
                self._refuse(greeting, f"expected a preface of {PREFACE_BYTES} bytes within {ROUTER_GREETING_MS // 1000} s, found {found}")

    def close(self, reason: str) -> None:
        """Refuse all that are pending."""
        for greeting in self._pending.members():
            self._refuse(greeting, reason)
        self._turns.close()

    def _on_readable(self, greeting: _Greeting) -> None:
        try:
            data = greeting.sock.recv(PREFACE_BYTES - len(greeting.received))
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self._forget(greeting)
            greeting.sock.close()
            return
        greeting.received += data
        if len(greeting.received) == PREFACE_BYTES:
            self._forget(greeting)
            self._greeted(greeting.sock, greeting.received)

    def _greeted(self, sock: socket.socket, received: bytes) -> None:
        try:
            preface = decode_preface(received)
        except ProtocolError as error:
            if _HTTP.match(received):
                self._farewells.say(sock, HTTP_ANSWER)
            else:
                self._farewells.goodbye(sock, error.message)
            return
        self._on_greeted(sock, preface, received)

    def _refuse(self, greeting: _Greeting, reason: str) -> None:
        self._forget(greeting)
        self._farewells.goodbye(greeting.sock, reason)

    def _forget(self, greeting: _Greeting) -> None:
        self._pending.remove(greeting)
        self._turns.remove(greeting)
        self._loop.remove_reader(greeting.sock.fileno())
