"""Rings that workers and clients of this host offer over the Unix socket."""
from __future__ import annotations

import asyncio
import logging
import socket
import weakref
from typing import Final

from fusee_mp.bounds import RING_CONNECTIONS_MAX
from fusee_mp.errors import ProtocolError
from fusee_mp.ring import offer
from fusee_mp.ring.link import LinkFds
from fusee_mp.ring.transport import LinkTransport
from fusee_mp.wire import messages as m

LOG: Final = logging.getLogger("fusee_mp.shard")


class OfferedRings:
    """Takes offers as long as there are few; the other connections go on over their sockets."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._taken: weakref.WeakSet[LinkTransport] = weakref.WeakSet()

    def __len__(self) -> int:
        return sum(not transport.is_closing() for transport in self._taken)

    async def take(self, sock: socket.socket, protocol: asyncio.Protocol) -> bool:
        """Read the offer behind the preface and answer it. True: the protocol is connected by rings, and the socket is its life line.
        Raises ProtocolError for what is no offer, OSError; the socket is then still the caller's."""
        generation, descriptors = await offer.receive(self._loop, sock)
        transport = self._connect(sock, generation, descriptors, protocol)
        sock.send(m.encode(m.Rings(transport is not None)))
        if transport is None:
            return False
        self._taken.add(transport)
        sock.detach()
        transport.begin()
        return True

    def _connect(
        self, sock: socket.socket, generation: int, descriptors: tuple[int, ...], protocol: asyncio.Protocol
    ) -> LinkTransport | None:
        if len(self) >= RING_CONNECTIONS_MAX:
            offer.close_all(descriptors)
            return None
        try:
            return LinkTransport(self._loop, LinkFds.of(generation, (*descriptors, sock.fileno())), protocol)
        except ProtocolError as error:
            LOG.warning("rings that were offered are not taken: %s", error)
            raise
