# Rings offered over a Unix socket.
#
# Who connects makes the rings of a link and sends the descriptors of the other end, with the link's generation, behind the preface. Once
# the offer is taken the socket is the link's life line, and nothing else is sent over it. So a connection by rings costs no more than two
# descriptors beside its socket.
"""`Offer`: the ends of a link, one to keep and one to send over a connected Unix socket; `receive` takes such a one."""
from __future__ import annotations

import array
import asyncio
import os
import secrets
import socket
import struct

from fusee_mp.errors import ProtocolError
from fusee_mp.ring import link
from fusee_mp.ring.link import LinkFds

_GENERATION = struct.Struct("<Q")
_DESCRIPTORS = LinkFds.COUNT - 1  # the life line is the socket
_ANCILLARY_BYTES = socket.CMSG_SPACE(_DESCRIPTORS * array.array("i").itemsize)


class Offer:
    """Owns both ends until `send` has sent one and `take` has given the other away, or `close`.

    Raises Unavailable where there are no rings, OSError when the process has no room for descriptors.
    """

    def __init__(self, ring_bytes: int) -> None:
        self._generation = secrets.randbits(63) | 1
        self._ours, self._theirs = link.regions(ring_bytes, self._generation)

    def send(self, sock: socket.socket) -> None:
        """Send the other end. Raises OSError; nothing is then kept open."""
        theirs, self._theirs = self._theirs, ()
        try:
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", theirs))]
            sock.sendmsg([_GENERATION.pack(self._generation)], ancillary, socket.MSG_NOSIGNAL)
        finally:
            close_all(theirs)

    def take(self, sock: socket.socket) -> LinkFds:
        """The end to keep, with the socket as its life line."""
        ours, self._ours = self._ours, ()
        return LinkFds.of(self._generation, (*ours, sock.detach()))

    def close(self) -> None:
        """Close what was not given away."""
        for descriptors in (self._ours, self._theirs):
            close_all(descriptors)
        self._ours = self._theirs = ()


async def receive(loop: asyncio.AbstractEventLoop, sock: socket.socket) -> tuple[int, tuple[int, ...]]:
    """The generation and the descriptors of an offer; they are the caller's. Raises ProtocolError for what is none, OSError."""
    readable = asyncio.Event()
    loop.add_reader(sock.fileno(), readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(sock.fileno())
    data, ancillary, flags, _ = sock.recvmsg(_GENERATION.size, _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC)
    found = array.array("i")
    for level, kind, part in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(part[:len(part) - len(part) % found.itemsize])
    if len(data) != _GENERATION.size or len(found) != _DESCRIPTORS or flags & socket.MSG_CTRUNC:
        close_all(tuple(found))
        raise ProtocolError(f"expected the {_DESCRIPTORS} descriptors of a ring pair behind the preface, found {len(found)}")
    return _GENERATION.unpack(data)[0], tuple(found)


def close_all(descriptors: tuple[int, ...]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
