# A link in the place of a socket: protocols of asyncio run over it unchanged.
#
# Rule 1: as over a socket, `connection_lost` comes once, last, and never from within a call of ours.
# Rule 2: no frame of the link is longer than a piece: cutting the stream into frames of its own is the protocol's, which bounds what it
#         holds of an unfinished one.
# Rule 3: `close` sends what waits first; what the peer had written whole before it closed is still handed over.
"""`LinkTransport`: an asyncio transport over the rings of a Link."""
from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from fusee_mp.errors import Unavailable
from fusee_mp.ring.link import PEER_CLOSED, Link, LinkFds

# Beyond it the protocol is asked to pause, until all has found room in the ring.
HIGH_WATER_BYTES = 256 * 1024


class LinkTransport(asyncio.Transport):
    """Owns the descriptors from the constructor on, which raises ProtocolError, and closes them, when they are no link.

    Call `begin` once: then the protocol has its `connection_made`.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, ends: LinkFds, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._loop, self._protocol = loop, protocol
        self._is_closing = self._is_over = self._is_paused = False
        self._waiting: asyncio.Task[None] | None = None
        self._link = Link(loop, ends, self._received, self._ended, is_offered=True)

    def begin(self) -> None:
        self._protocol.connection_made(self)

    def stay_awake_while(self, is_awake: Callable[[], bool]) -> None:
        """While the loop is kept from sleeping anyway, the ring is looked at in each of its turns: the peer need not ring the bell."""
        self._link.is_awake = is_awake

    # What asyncio asks of a transport.

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """`life_line`: a descriptor that hangs up when the peer has ended the link."""
        return self._link.life_line if name == "life_line" else default

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = cast(asyncio.Protocol, protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def is_closing(self) -> bool:
        return self._is_closing

    def get_write_buffer_size(self) -> int:
        return self._link.queued_bytes

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_closing or not data:
            return
        whole, most = bytes(data), self._link.piece_max
        for at in range(0, len(whole), most):
            self._link.send(whole[at:at + most])
        if self._link.queued_bytes > HIGH_WATER_BYTES and not self._is_paused:
            self._is_paused = True
            self._protocol.pause_writing()
            self._wait_for_room()

    def pause_reading(self) -> None:
        self._link.hold_back()

    def resume_reading(self) -> None:
        self._link.go_on()

    def close(self) -> None:
        if self._is_closing:
            return
        self._is_closing = True
        if self._link.queued_bytes:
            self._wait_for_room()
        else:
            self._end(None)

    def abort(self) -> None:
        self._is_closing = True
        self._end(None)

    # The link's side.

    def _received(self, data: bytes) -> None:
        if not self._is_closing:
            self._protocol.data_received(data)

    def _ended(self, reason: str) -> None:
        self._end(None if reason == PEER_CLOSED else ConnectionError(reason))

    def _end(self, error: Exception | None) -> None:
        if not self._is_over:
            self._is_closing = self._is_over = True
            self._link.close()
            self._loop.call_soon(self._protocol.connection_lost, error)

    def _wait_for_room(self) -> None:
        if self._waiting is None:
            self._waiting = self._loop.create_task(self._room())

    async def _room(self) -> None:
        try:
            await self._link.drained()
        except Unavailable:  # the link has ended, or will say so
            return
        finally:
            self._waiting = None
        if self._is_paused:
            self._is_paused = False
            self._protocol.resume_writing()
        if self._is_closing:
            self._end(None)
