# One framed connection on an asyncio transport, whoever is at the other end.
#
# Rule 1: damage ends the connection with a GOODBYE that says why; nothing after it is handled.
# Rule 2: `lost` is called once, last, whoever ended the connection; after `close` too.
# Rule 3: a frame of a kind that is unknown here is of a later version, which can do without our understanding: it is passed over.
# Rule 4: a peer that does not read is held to a bound: beyond it the connection is ended, never the memory. So is one that takes nothing
#         for STALLED_S while somebody waits for room. What a closed connection still has to send gets LINGER_S.
from __future__ import annotations

import asyncio
from typing import Final, cast

from fusee_mp.bounds import FRAME_BYTES_MAX
from fusee_mp.errors import FuseeError, ProtocolError
from fusee_mp.wire.frames import Frame, FrameDecoder
from fusee_mp.wire.kinds import Kind
from fusee_mp.wire.messages import Goodbye, Message, decode, encode

# More than a few of the largest frames waiting for a peer: it does not read.
UNSENT_BYTES_MAX: Final = 8 * FRAME_BYTES_MAX
LINGER_S: Final = 5.0
_KNOWN: Final = frozenset(Kind)
STALLED_S: Final = 30.0


class Stream(asyncio.Protocol):
    """Subclasses say what to do with frames (`received`) and at the end (`lost`)."""

    unsent_bytes_max = UNSENT_BYTES_MAX

    def __init__(self) -> None:
        self._decoder = FrameDecoder()
        self._transport: asyncio.Transport | None = None
        self._reason = ""
        self._lingering: asyncio.TimerHandle | None = None
        self._room: asyncio.Event | None = None
        self.is_open = False
        self.is_held_back = False
        self.heard_at = 0.0  # the loop's time when bytes last came

    # For subclasses.

    def opened(self) -> None:
        """The connection is there."""

    def received(self, frame: Frame) -> None:
        """A frame came."""
        raise NotImplementedError

    def lost(self, reason: str) -> None:
        """The connection is gone."""

    # For those who use it.

    def send(self, message: Message, request: int = 0, shard: int = 0, epoch: int = 0) -> None:
        """Send a message; on a closed connection that does nothing, since `lost` has said so, or is about to."""
        self.send_bytes(encode(message, request, shard, epoch))

    def send_bytes(self, frame: bytes) -> None:
        transport = self._transport
        if transport is None or not self.is_open or transport.is_closing():
            return
        transport.write(frame)
        if transport.get_write_buffer_size() > self.unsent_bytes_max:
            self.abort(f"the peer does not read: over {self.unsent_bytes_max} bytes wait for it")

    @property
    def unsent_bytes(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    async def room(self) -> None:
        """Return when little waits for the peer, or the connection is gone: between the parts of something long."""
        while self._room is not None and self._transport is not None and self.is_open:
            unsent = self._transport.get_write_buffer_size()
            try:
                async with asyncio.timeout(STALLED_S):
                    await self._room.wait()
            except TimeoutError:
                self._give_up_stalled(unsent)

    def _give_up_stalled(self, unsent: int) -> None:
        if self._transport is not None and self._transport.get_write_buffer_size() >= unsent:
            self.abort(f"the peer does not read: it took nothing of {unsent} bytes for {STALLED_S:.0f} s")

    def hold_back(self) -> None:
        """Listen no more, until `go_on`: the peer sends faster than can be handled. What was read already is still handled."""
        if self._transport is not None and self.is_open and not self.is_held_back:
            self.is_held_back = True
            self._transport.pause_reading()

    def go_on(self) -> None:
        if self._transport is not None and self.is_held_back:
            self.is_held_back = False
            self.heard_at = asyncio.get_running_loop().time()
            if not self._transport.is_closing():
                self._transport.resume_reading()

    def close(self, reason: str) -> None:
        """Say why, send what is waiting, and end the connection."""
        if self.is_open and self._transport is not None:
            self.send(Goodbye(reason))
            self._reason = self._reason or reason
            self.is_open = False
            self._decoder.clear()
            self._lingering = asyncio.get_running_loop().call_later(LINGER_S, self._transport.abort)
            self._transport.close()

    def abort(self, reason: str) -> None:
        """End the connection at once."""
        if self._transport is not None:
            self._reason = self._reason or reason
            self.is_open = False
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's does not inherit from it
        self.is_open = True
        self.heard_at = asyncio.get_running_loop().time()
        self.opened()

    def data_received(self, data: bytes) -> None:
        self.heard_at = asyncio.get_running_loop().time()
        try:
            for frame in self._decoder.feed(data):
                if not self.is_open:
                    return
                if frame.kind == Kind.GOODBYE:
                    goodbye = decode(frame)
                    self._reason = self._reason or (goodbye.reason if isinstance(goodbye, Goodbye) else "")
                elif frame.kind in _KNOWN:
                    self.received(frame)
        except ProtocolError as e:
            self.close(e.message)
        except FuseeError as e:
            self.close(f"{e.code}: {e.message}")

    def pause_writing(self) -> None:
        self._room = asyncio.Event()

    def resume_writing(self) -> None:
        if self._room is not None:
            self._room.set()
            self._room = None

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self._transport = None
        if self._lingering is not None:
            self._lingering.cancel()
        self.resume_writing()
        self.lost(self._reason or (f"the connection broke: {exc}" if exc else "the peer closed the connection"))
