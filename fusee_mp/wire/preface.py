# The first 16 bytes of every connection.
#
# They say where the connection belongs, so that the router can hand the socket to its owner after reading exactly these
# bytes. They travel in the clear, before TLS, and hold nothing secret.
#
#   offset  bytes  field
#        0      6  magic: F5 "fmp" CR LF
#        6      2  version, u16
#        8      1  kind of connection
#        9      1  1: rings are offered behind the preface (see docs/protocol.md, Same host); else 0
#       10      2  zero
#       12      4  shard, u32; FF FF FF FF when the kind names none
#
# Numbers are little-endian. F5 occurs in no UTF-8 text, so no text protocol can pass for us; CR LF shows a path that
# rewrites line ends.
"""The 16-byte preface of every connection: `Preface.encode` and `decode`."""
from __future__ import annotations

import struct
from enum import IntEnum

import msgspec

from fusee_mp.bounds import SHARDS_MAX
from fusee_mp.errors import ProtocolError

MAGIC = b"\xf5fmp\r\n"
VERSION = 1
PREFACE_BYTES = 16
NO_SHARD = 0xFFFF_FFFF

_LAYOUT = struct.Struct("<6sHBB2sI")
assert _LAYOUT.size == PREFACE_BYTES


class ConnectionKind(IntEnum):
    """Whom the connection is for."""

    CONTROL = 1  # a worker's session with the router
    WORKER = 2  # a worker's connection to the shard that it leases
    CLIENT_SHARD = 3  # a client's connection to the shard of the ID it acts on
    CLIENT_ANY = 4  # a client's connection to whichever shard the router picks


_OF_ONE_SHARD = frozenset({ConnectionKind.WORKER, ConnectionKind.CLIENT_SHARD})

_FOREIGN: tuple[tuple[bytes, str], ...] = (
    (b"GET ", "an HTTP request"),
    (b"HEAD ", "an HTTP request"),
    (b"POST ", "an HTTP request"),
    (b"PUT ", "an HTTP request"),
    (b"DELETE ", "an HTTP request"),
    (b"OPTIONS ", "an HTTP request"),
    (b"PATCH ", "an HTTP request"),
    (b"CONNECT ", "an HTTP request"),
    (b"PRI * HTTP/2", "an HTTP/2 request"),
    (b"PROXY ", "a PROXY protocol header (switch it off in the load balancer)"),
    (b"\r\n\r\n\x00\r\nQUIT\n", "a PROXY protocol header (switch it off in the load balancer)"),
    (b"\x16\x03", "a TLS handshake (TLS begins after the preface)"),
    (b"SSH-", "an SSH greeting"),
)


class Preface(msgspec.Struct, frozen=True):
    """A connection's kind and the shard that it is for; `shard` is None exactly for the kinds that name none."""

    kind: ConnectionKind
    shard: int | None = None
    offers_rings: bool = False

    def encode(self) -> bytes:
        """The 16 bytes to send first."""
        assert (self.shard is not None) == (self.kind in _OF_ONE_SHARD), "this kind of connection has a shard, or has none"
        return _LAYOUT.pack(MAGIC, VERSION, self.kind, self.offers_rings, bytes(2), NO_SHARD if self.shard is None else self.shard)


def decode(data: bytes) -> Preface:
    """The preface in exactly 16 bytes. Raises ProtocolError that names what was found instead, where it can be told."""
    if len(data) != PREFACE_BYTES:
        raise ProtocolError(f"expected a preface of {PREFACE_BYTES} bytes, found {len(data)} ({_found(data)})", found=len(data))
    magic, version, kind, rings, zero, shard = _LAYOUT.unpack(data)
    if magic != MAGIC:
        raise ProtocolError(f"expected a fusee-mp connection, found {_found(data)}: check address and port", found=data.hex())
    if version != VERSION:
        raise ProtocolError(f"expected protocol version {VERSION}, found {version}: upgrade the older side", found=version)
    if zero != bytes(2):
        raise ProtocolError(f"expected zero in bytes 10 and 11 of the preface, found {zero.hex(' ')}", found=zero.hex())
    return Preface(_kind(kind), _shard(_kind(kind), shard), _offers_rings(_kind(kind), rings))


def _offers_rings(kind: ConnectionKind, number: int) -> bool:
    if number > 1 or number and kind is ConnectionKind.CONTROL:
        raise ProtocolError(f"expected 0 or, to a shard process, 1 (rings) in byte 9 of the preface, found {number}", found=number)
    return number == 1


def _kind(number: int) -> ConnectionKind:
    try:
        return ConnectionKind(number)
    except ValueError:
        known = ", ".join(f"{kind.value} {kind.name}" for kind in ConnectionKind)
        raise ProtocolError(f"expected a kind of connection ({known}), found {number}", found=number) from None


def _shard(kind: ConnectionKind, number: int) -> int | None:
    if kind not in _OF_ONE_SHARD:
        if number != NO_SHARD:
            raise ProtocolError(f"a {kind.name} connection names no shard, found shard {number}", found=number)
        return None
    if number >= SHARDS_MAX:
        raise ProtocolError(f"expected a shard below {SHARDS_MAX}, found {number}", found=number)
    return number


def _found(data: bytes) -> str:
    for start, name in _FOREIGN:
        if data.startswith(start):
            return name
    if data.startswith(MAGIC[:4]):
        return f"a preface altered on its way ({data.hex(' ')})"
    return f"the bytes {data.hex(' ')}" if data else "nothing"
