# A connection to a server on this host, by rings where it takes them.
#
# The socket carries preface and offer, then the server's word on it. Whatever goes wrong with rings, the connection goes on over the
# socket, with the same frames.
"""`reach_here`: opens a connection over a Unix socket."""
from __future__ import annotations

import asyncio
import socket

import msgspec

from fusee_mp.bounds import RING_BYTES_DEFAULT
from fusee_mp.errors import Unavailable
from fusee_mp.ring.offer import Offer
from fusee_mp.ring.transport import LinkTransport
from fusee_mp.wire import messages as m
from fusee_mp.wire.frames import first_frame
from fusee_mp.wire.preface import ConnectionKind, Preface

ANSWER_BYTES_MAX = 64 * 1024
# A client has one connection a shard, and little to say at a time.
CLIENT_RING_BYTES = RING_BYTES_DEFAULT // 4


async def reach_here(path: str, preface: Preface, protocol: asyncio.Protocol) -> None:
    """Connect, send the preface, and give the connection to `protocol`. Raises OSError."""
    loop = asyncio.get_running_loop()
    sock = socket.socket(socket.AF_UNIX)
    offer = None
    try:
        sock.setblocking(False)
        await loop.sock_connect(sock, path)
        offer = _offer(preface)
        await loop.sock_sendall(sock, msgspec.structs.replace(preface, offers_rings=offer is not None).encode())
        heard = b"" if offer is None else await _answered(loop, sock, offer)
        if offer is not None and heard.startswith(m.encode(m.Rings(True))):  # and rings, perhaps: the link looks by itself first
            LinkTransport(loop, offer.take(sock), protocol).begin()
            return
        await loop.create_connection(lambda: protocol, sock=sock)
        if words := heard.removeprefix(m.encode(m.Rings(False))):
            protocol.data_received(words)  # why it does not go on
    except BaseException:
        sock.close()
        raise
    finally:
        if offer is not None:
            offer.close()


def _offer(preface: Preface) -> Offer | None:
    if preface.kind is ConnectionKind.CONTROL:
        return None
    try:
        return Offer(RING_BYTES_DEFAULT if preface.kind is ConnectionKind.WORKER else CLIENT_RING_BYTES)
    except (Unavailable, OSError):  # another platform; no room for descriptors or memory
        return None


async def _answered(loop: asyncio.AbstractEventLoop, sock: socket.socket, offer: Offer) -> bytes:
    """What the server says to the offer: one frame, or less when it closed the connection."""
    offer.send(sock)
    heard = b""
    while first_frame(heard, ANSWER_BYTES_MAX) is None and (data := await loop.sock_recv(sock, ANSWER_BYTES_MAX)):
        heard += data
    return heard
