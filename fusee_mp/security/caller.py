# The way in, seen from outside: the preface in the clear, TLS, the proof of a token, and then the protocol that it is all for.
#
# Rule 1: nothing but the preface, a name and random numbers leaves before the server has shown its certificate and its proof.
# Rule 2: on every path but the good one the connection is closed.
"""`reach`: opens a connection to a server that asks for TLS or tokens."""
from __future__ import annotations

import asyncio
import ssl
from typing import Final, cast

from fusee_mp.bounds import PROOF_FRAME_BYTES_MAX
from fusee_mp.errors import BY_CODE, Denied, FuseeError, ProtocolError, Unavailable
from fusee_mp.security.credentials import Credentials
from fusee_mp.security.tls import channel_of, explain
from fusee_mp.security.token import NO_CHANNEL, Proving, Token
from fusee_mp.wire import messages as m
from fusee_mp.wire.frames import Frame, first_frame

TLS_TIMEOUT_S: Final = 10.0
# Of a peer that does not speak TLS. A server that stops, or whose shard is starting, refuses in the clear too.
_PLAIN: Final = (
    "the other side did not answer with TLS: the server is stopping or starting, or it has none on this port (then leave out ca=)"
)


WITHOUT_A_WORD: Final = "The server's log says why; if it asks for certificates, it does not accept the one of this side"


def denial(reason: str) -> Denied | None:
    """The error that the reason of a GOODBYE is, if it is one for good."""
    code, _, words = reason.partition(": ")
    return Denied(words) if code == Denied.code else None


async def reach(host: str, port: int, preface: bytes, credentials: Credentials, protocol: asyncio.Protocol) -> None:
    """Connect, secure the connection and give it to `protocol`, whose `connection_made` is called then.

    Raises Denied for what trying again does not mend, Rejected for files that cannot be used, else Unavailable and OSError.
    """
    context, token = credentials.context(), credentials.token()
    loop = asyncio.get_running_loop()
    caller = Caller()
    transport, _ = await loop.create_connection(lambda: caller, host, port)
    try:
        transport.write(preface)
        if context is not None:
            transport = await _over_tls(loop, transport, caller, context, host)
        caller.transport = transport
        if token is not None:
            await caller.prove(token, preface, _channel(transport))
        caller.hand_over(protocol)
    except BaseException:
        transport.abort()
        raise


async def _over_tls(
    loop: asyncio.AbstractEventLoop, transport: asyncio.Transport, caller: Caller, context: ssl.SSLContext, host: str
) -> asyncio.Transport:
    try:
        secured = await loop.start_tls(transport, caller, context, server_hostname=host, ssl_handshake_timeout=TLS_TIMEOUT_S)
    except ssl.SSLError as error:
        if why := explain(error):
            raise Denied(why) from error
        raise Unavailable(_PLAIN if error.reason == "WRONG_VERSION_NUMBER" else f"TLS failed: {error}") from error
    return cast(asyncio.Transport, secured)


def _channel(transport: asyncio.Transport) -> bytes:
    found = transport.get_extra_info("ssl_object")
    return NO_CHANNEL if found is None else channel_of(found.getpeercert(True))


class Caller(asyncio.Protocol):
    """Holds a connection until it is secured."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self._buffer = bytearray()
        self._waiter: asyncio.Future[Frame] | None = None
        self._fault: FuseeError | None = None

    async def prove(self, token: Token, preface: bytes, channel: bytes) -> None:
        """Prove the token, once the server has. Raises Denied."""
        proving = Proving(token, preface, channel)
        answer = m.decode(await self._ask(m.Challenge(token.name, proving.nonce)))
        if isinstance(answer, m.Error):
            raise BY_CODE.get(answer.code, FuseeError)(answer.message, **answer.fields)
        if isinstance(answer, m.Goodbye):
            raise denial(answer.reason) or Unavailable(answer.reason)
        if not isinstance(answer, m.Proof):
            raise ProtocolError(f"expected PROOF of the server, found {type(answer).KIND.name}: upgrade the older side")
        proving.check_server(answer.proof, answer.nonce)
        self.transport.write(m.encode(m.Proof(proving.of_client(answer.nonce))))

    def hand_over(self, protocol: asyncio.Protocol) -> None:
        if self._fault is not None:
            raise self._fault
        self.transport.set_protocol(protocol)
        protocol.connection_made(self.transport)
        if self._buffer:
            protocol.data_received(bytes(self._buffer))

    async def _ask(self, message: m.Message) -> Frame:
        if self._fault is not None:
            raise self._fault
        self._waiter = asyncio.get_running_loop().create_future()
        self.transport.write(m.encode(message))
        self._look()
        return await self._waiter

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._look()

    def _look(self) -> None:
        if self._waiter is None or self._waiter.done():
            return
        try:
            frame = first_frame(self._buffer, PROOF_FRAME_BYTES_MAX)
        except ProtocolError as error:
            self._waiter.set_exception(error)
            return
        if frame is not None:
            self._buffer.clear()  # the server says nothing more before it has the proof of this side
            self._waiter.set_result(frame)

    def connection_lost(self, exc: Exception | None) -> None:
        why = explain(exc) if exc is not None else ""
        self._fault = Denied(why) if why else Unavailable(
            f"the server closed the connection without a word{f' ({exc})' if exc else ''}. {WITHOUT_A_WORD}")
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(self._fault)
