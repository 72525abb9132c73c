# A connection to the server on which questions are asked, each answered by a frame with its request number.
from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from fusee_mp.errors import BY_CODE, FuseeError, Unavailable
from fusee_mp.sdk.address import Address
from fusee_mp.wire import messages as m
from fusee_mp.wire.frames import Frame
from fusee_mp.wire.kinds import Kind
from fusee_mp.wire.preface import Preface
from fusee_mp.wire.stream import Stream

CONNECT_TIMEOUT_S: Final = 5.0
C = TypeVar("C", bound="Connection")


class Connection(Stream):
    """Subclasses take the frames that answer nothing (`unasked`)."""

    def __init__(self, preface: Preface) -> None:
        super().__init__()
        self._preface = preface
        self._requests = 0
        self._asked: dict[int, asyncio.Future[Frame]] = {}
        self.why_lost = ""

    def opened(self) -> None:
        assert self._transport is not None
        self._transport.write(self._preface.encode())

    def received(self, frame: Frame) -> None:
        answer = self._asked.pop(frame.request, None) if frame.request else None
        if answer is None:
            self.unasked(frame)
        elif not answer.done():
            answer.set_result(frame)

    def unasked(self, frame: Frame) -> None:
        """A frame that answers no question of this side."""

    async def ask(self, message: m.Message, shard: int = 0, epoch: int = 0) -> Frame:
        """Send a question and wait for its answer. Raises the FuseeError of an ERROR; Unavailable when the connection is lost."""
        if not self.is_open:
            raise Unavailable(f"the connection is closed: {self.why_lost or 'it was never open'}")
        self._requests += 1
        request = self._requests
        answer: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self._asked[request] = answer
        self.send(message, request, shard, epoch)
        try:
            frame = await answer
        except asyncio.CancelledError:
            if self._asked.pop(request, None) is not None:
                self.cancelled(request, shard)
            raise
        if frame.kind == Kind.ERROR:
            raise error_of(frame)
        return frame

    def cancelled(self, request: int, shard: int) -> None:
        """Nobody waits for this answer any more."""

    def lost(self, reason: str) -> None:
        self.why_lost = reason
        asked, self._asked = self._asked, {}
        for answer in asked.values():
            if not answer.done():
                answer.set_exception(Unavailable(f"the connection was lost: {reason}"))


def error_of(frame: Frame) -> FuseeError:
    """The error that an ERROR frame carries."""
    error = m.decode(frame)
    assert isinstance(error, m.Error)
    return BY_CODE.get(error.code, FuseeError)(error.message, **error.fields)


async def connect(address: Address, make: Callable[[], C]) -> C:
    """Open a connection. Raises Unavailable, naming the address and what to do."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            if address.path:
                _, connection = await loop.create_unix_connection(make, address.path)
            else:
                _, connection = await loop.create_connection(make, address.host, address.port)
    except (OSError, TimeoutError) as e:
        raise Unavailable(
            f"no server answers at {address}: {e or 'it took too long'}. Start one with `fusee-mp serve`, or give the right address",
            address=str(address),
        ) from e
    return connection
