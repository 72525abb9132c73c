"""Accepts connections, and goes on when the process has run out of descriptors."""
from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable, Sequence
from typing import Final

LOG: Final = logging.getLogger("fusee_mp.router")
# Connections taken from one listener in one turn of the loop: its other work waits no longer.
ACCEPTS_PER_TURN: Final = 64
PAUSE_SECONDS: Final = 0.5
# The peer gave up while it queued: nothing of ours is wrong.
_PEER_GONE: Final = frozenset({errno.ECONNABORTED, errno.EPERM, errno.EPROTO})


class Listener:
    """Hands every accepted socket to `on_socket`, which owns it; they are non-blocking. Owns the listening sockets until `close`."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, sockets: Sequence[socket.socket], on_socket: Callable[[socket.socket], None]
    ) -> None:
        self._loop, self._sockets, self._on_socket = loop, list(sockets), on_socket
        self._resume_timer: asyncio.TimerHandle | None = None
        self._watch()

    def close(self) -> None:
        """Stop accepting; what waits in the backlog is refused by the kernel."""
        if self._resume_timer is not None:
            self._resume_timer.cancel()
        for sock in self._sockets:
            self._loop.remove_reader(sock.fileno())
            sock.close()
        self._sockets.clear()

    def _watch(self) -> None:
        self._resume_timer = None
        for sock in self._sockets:
            self._loop.add_reader(sock.fileno(), self._on_readable, sock)

    def _on_readable(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                sock, _ = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _PEER_GONE:
                    continue
                self._pause(error)
                return
            self._prepare(sock)

    def _prepare(self, sock: socket.socket) -> None:
        try:
            sock.setblocking(False)
            if sock.family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:  # reset already
            sock.close()
            return
        self._on_socket(sock)

    def _pause(self, error: OSError) -> None:
        """Out of descriptors or memory. The socket stays readable, so asking again at once would be a busy loop."""
        LOG.error("accepting connections failed, trying again in %.1f s: %s (see `ulimit -n`)", PAUSE_SECONDS, error)
        for sock in self._sockets:
            self._loop.remove_reader(sock.fileno())
        self._resume_timer = self._loop.call_later(PAUSE_SECONDS, self._watch)
