# Telling a peer why its connection ends.
#
# Closing a socket with unread bytes resets the connection, and the reset overtakes what was sent: the peer reads "connection reset"
# in place of the reason. So the last word is followed by an end of stream, and what the peer still sends is read and dropped
# until it closes too, within bounds.
"""`Farewells`: the last word to refused connections."""
from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass
from typing import Final

from fusee_mp.bounds import ROUTER_FAREWELLS_MAX
from fusee_mp.wire.messages import Goodbye, encode

LINGER_MS: Final = 2_000
DROP_BYTES_MAX: Final = 256 * 1024
_READ_BYTES: Final = 16 * 1024


@dataclass(slots=True)
class _Leaving:
    sock: socket.socket
    timer: asyncio.TimerHandle | None = None
    dropped_bytes: int = 0


class Farewells:
    """Owns the sockets given to `say` and closes each soon, whatever its peer does."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._leaving: dict[int, _Leaving] = {}

    def goodbye(self, sock: socket.socket, reason: str) -> None:
        """Refuse a peer that speaks our protocol, or none that is known."""
        self.say(sock, encode(Goodbye(reason)))

    def brief(self, sock: socket.socket, reason: str) -> None:
        """Refuse one of too many: the word is lost if the peer has sent what was not read."""
        try:
            sock.send(encode(Goodbye(reason)))
        except OSError:
            pass
        sock.close()

    def say(self, sock: socket.socket, last_word: bytes) -> None:
        """Send this, then end the connection."""
        try:
            sock.send(last_word)  # fits any socket's empty buffer
            sock.shutdown(socket.SHUT_WR)
        except OSError:
            sock.close()
            return
        if len(self._leaving) >= ROUTER_FAREWELLS_MAX:
            self._close(next(iter(self._leaving.values())))
        leaving = _Leaving(sock)
        leaving.timer = self._loop.call_later(LINGER_MS / 1000, self._close, leaving)
        self._leaving[sock.fileno()] = leaving
        self._loop.add_reader(sock.fileno(), self._on_readable, leaving)

    def close(self) -> None:
        for leaving in list(self._leaving.values()):
            self._close(leaving)

    def _on_readable(self, leaving: _Leaving) -> None:
        try:
            count = len(leaving.sock.recv(_READ_BYTES))
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            count = 0
        leaving.dropped_bytes += count
        if count == 0 or leaving.dropped_bytes > DROP_BYTES_MAX:
            self._close(leaving)

    def _close(self, leaving: _Leaving) -> None:
        if leaving.timer is not None:
            leaving.timer.cancel()
        del self._leaving[leaving.sock.fileno()]
        self._loop.remove_reader(leaving.sock.fileno())
        leaving.sock.close()
