"""Rings that workers and clients of this host offer over the Unix socket."""
from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import weakref

from fusee_mp.bounds import RING_CONNECTIONS_MAX
from fusee_mp.ring import offer
from fusee_mp.ring.link import LinkFds
from fusee_mp.ring.transport import LinkTransport
from fusee_mp.wire import messages as m


class OfferedRings:
    """Takes offers as long as there are few; the other connections go on over their sockets."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._taken: weakref.WeakSet[LinkTransport] = weakref.WeakSet()

    def __len__(self) -> int:
        return sum(not transport.is_closing() for transport in self._taken)

    async def take(self, sock: socket.socket, protocol: asyncio.Protocol) -> bool:
        """Read the offer behind the preface and answer it. True: the protocol is connected by rings, and the socket is its life line.
        Otherwise, and when it raises ProtocolError for what is no offer or OSError, the socket is still the caller's."""
        generation, descriptors = await offer.receive(self._loop, sock)
        if len(self) >= RING_CONNECTIONS_MAX:
            offer.close_all(descriptors)
            sock.send(m.encode(m.Rings(False)))
            return False
        transport = self._connect(sock, generation, descriptors, protocol)
        self._taken.add(transport)
        with contextlib.suppress(OSError):  # Who is gone already is noticed by the link.
            sock.send(m.encode(m.Rings(True)))
        sock.close()
        transport.begin()
        return True

    def _connect(self, sock: socket.socket, generation: int, descriptors: tuple[int, ...], protocol: asyncio.Protocol) -> LinkTransport:
        # The life line is a copy: the link closes what it was given, also when it refuses, and the refused one is still to hear why.
        try:
            life = os.dup(sock.fileno())
        except OSError:
            offer.close_all(descriptors)
            raise
        return LinkTransport(self._loop, LinkFds.of(generation, (*descriptors, life)), protocol)
