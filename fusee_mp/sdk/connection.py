# A connection to the server on which questions are asked, each answered by a frame with its request number.
#
# A server that is gone without a word (its machine, the path to it) shows by silence alone. So this side asks for a sign of life, and
# ends the connection when several in a row bring nothing. Beats are counted, not seconds: a process that was itself held up finds
# the answers in its socket before it has missed two beats.
from __future__ import annotations

import asyncio
import errno
import re
from collections.abc import Callable
from typing import Final, TypeVar

from fusee_mp.errors import BY_CODE, Denied, FuseeError, ProtocolError, Unavailable
from fusee_mp.sdk.address import Address
from fusee_mp.sdk.same_host import reach_here
from fusee_mp.security.caller import WITHOUT_A_WORD, denial, reach
from fusee_mp.security.tls import explain
from fusee_mp.wire import messages as m
from fusee_mp.wire.frames import Frame
from fusee_mp.wire.kinds import Kind
from fusee_mp.wire.preface import Preface
from fusee_mp.wire.stream import Stream

CONNECT_TIMEOUT_S: Final = 5.0
# The router itself refuses a connection that no shard process takes, after 5 s.
GREETING_TIMEOUT_S: Final = 10.0
SECURED_TIMEOUT_S: Final = CONNECT_TIMEOUT_S + GREETING_TIMEOUT_S
C = TypeVar("C", bound="Connection")
M = TypeVar("M", bound=m.Message)


class Lost(Unavailable):
    """There is no connection, or no longer. What was asked may have been carried out; another connection may bring the answer."""


class Connection(Stream):
    """Subclasses take the frames that answer nothing (`unasked`)."""

    beat_s = 5.0
    beats_max = 3

    def __init__(self, preface: Preface) -> None:
        super().__init__()
        self.preface = preface
        self.is_announced = False  # the preface has been sent
        self._denial = ""
        self._is_unheard_over_tls = False
        self._requests = 0
        self._asked: dict[int, asyncio.Future[Frame]] = {}
        self._parts: dict[int, list[bytes]] = {}
        self.why_lost = ""
        self._heard = 0.0
        self._unheard = 0
        self._beating: asyncio.TimerHandle | None = None

    def opened(self) -> None:
        assert self._transport is not None
        self._is_unheard_over_tls = self._transport.get_extra_info("ssl_object") is not None
        if not self.is_announced:
            self._transport.write(self.preface.encode())
        self._beating = asyncio.get_running_loop().call_later(self.beat_s, self.beat)

    def beat(self) -> None:
        """Ask for a sign of life, or give up."""
        if self.heard_at != self._heard:
            self._heard, self._unheard = self.heard_at, 0
        elif self._unheard >= self.beats_max:
            self.abort(f"the server gave no sign of life for {self._unheard * self.beat_s:g} s")
            return
        self._unheard += 1
        self.send(m.Ping(self.stamp()))
        self._beating = asyncio.get_running_loop().call_later(self.beat_s, self.beat)

    def stamp(self) -> int:
        """What comes back in the PONG."""
        return 0

    def received(self, frame: Frame) -> None:
        self._is_unheard_over_tls = False
        if frame.kind == Kind.PART:
            self._take_part(frame)
            return
        answer = self._asked.pop(frame.request, None) if frame.request else None
        if answer is None:
            self.unasked(frame)
        elif not answer.done():
            answer.set_result(frame)

    def _take_part(self, frame: Frame) -> None:
        part = m.decode(frame)
        if frame.request in self._asked and isinstance(part, m.Part):
            self._parts.setdefault(frame.request, []).append(part.value)

    def unasked(self, frame: Frame) -> None:
        """A frame that answers no question of this side."""

    async def ask(self, message: m.Message, shard: int = 0, epoch: int = 0) -> m.Message:
        """Send a question and wait for its answer. Raises the FuseeError of an ERROR; Lost when the connection is lost."""
        if not self.is_open:
            raise Lost(f"the connection is closed: {self.why_lost or 'it was never open'}")
        self._requests += 1
        request = self._requests
        answer: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self._asked[request] = answer
        try:
            self.send(message, request, shard, epoch)
            reply = m.decode(await answer)
        except asyncio.CancelledError:
            if request in self._asked:
                self.cancelled(request, shard)
            raise
        finally:
            self._asked.pop(request, None)
            parts = self._parts.pop(request, None)
        if isinstance(reply, m.Error):
            raise error_of(reply)
        if parts and isinstance(reply, m.Value | m.Reply):
            return type(reply)(b"".join([*parts, reply.value]))
        return reply

    async def greet(self, message: m.Message, expected: type[M], shard: int = 0) -> M:
        """The first question, which a server answers soon or never. On any failure the connection is ended. Raises as `ask` does."""
        try:
            async with asyncio.timeout(GREETING_TIMEOUT_S):
                answer = await self.ask(message, shard)
            if not isinstance(answer, expected):
                raise ProtocolError(f"expected {expected.KIND.name}, found {type(answer).KIND.name}: upgrade the older side")
        except TimeoutError:
            self.abort("the server did not answer the greeting")
            raise Lost(f"the server did not answer {message.KIND.name} within {GREETING_TIMEOUT_S:g} s") from None
        except BaseException:
            self.abort("it was not welcomed")
            raise
        return answer

    def cancelled(self, request: int, shard: int) -> None:
        """Nobody waits for this answer any more."""

    def connection_lost(self, exc: Exception | None) -> None:
        # In TLS 1.3 the server looks at our certificate when for us the handshake is over.
        self._denial = explain(exc) if exc is not None else ""
        super().connection_lost(exc)

    def lost(self, reason: str) -> None:
        self.why_lost = reason = f"{reason}. {WITHOUT_A_WORD}" if self._is_unheard_over_tls and not self._reason else reason
        if self._beating is not None:
            self._beating.cancel()
        asked, self._asked = self._asked, {}
        for answer in asked.values():
            if not answer.done():
                answer.set_exception(self._loss(reason))

    def _loss(self, reason: str) -> FuseeError:
        return Denied(self._denial) if self._denial else denial(reason) or Lost(f"the connection was lost: {reason}")


def error_of(error: m.Error) -> FuseeError:
    """The error that an ERROR carries."""
    return BY_CODE.get(error.code, FuseeError)(error.message, **error.fields)


async def connect(address: Address, make: Callable[[], C]) -> C:
    """Open a connection. Raises Lost, naming the address and what to do; Denied when one side does not accept who the other is."""
    connection = make()
    try:
        async with asyncio.timeout(SECURED_TIMEOUT_S if address.credentials else CONNECT_TIMEOUT_S):
            await _open(address, connection)
    except Unavailable as e:
        raise Lost(f"no connection with {address}: {e.message}", address=str(address)) from e
    except (OSError, TimeoutError) as e:
        raise Lost(
            f"no server answers at {address}: {_why(e)}. Start one with `fusee-mp serve`, or give the right address",
            address=str(address),
        ) from e
    return connection


def _why(error: OSError | TimeoutError) -> str:
    if not str(error):
        return "it took too long"
    # Of a host with several addresses all errors come as one text.
    if {int(number) for number in re.findall(r"\[Errno (\d+)\]", str(error))} == {errno.ECONNREFUSED}:
        return "nobody listens there"
    return error.strerror or str(error)


async def _open(address: Address, connection: Connection) -> None:
    loop = asyncio.get_running_loop()
    if address.path:
        connection.is_announced = True
        await reach_here(address.path, connection.preface, connection)
    elif address.credentials:
        connection.is_announced = True
        await reach(address.host, address.port, connection.preface.encode(), address.credentials, connection)
    else:
        await loop.create_connection(lambda: connection, address.host, address.port)
