# What a server's processes have to secure connections with.
#
# The router alone reads the files, at the start and when it is told to read them again. What it found goes to the shard processes as it
# is, in a memory file. So all processes always have the same, one that is started again has what the others have, whatever has become
# of the files, and a file that cannot be used is noticed in one place, where the old content is still at hand.
"""`KeyFiles` names files, `Material` is what was in them, `Keys` what can be done with it."""
from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, field

import msgspec

from fusee_mp.bounds import PEM_BYTES_MAX, TOKENS_BYTES_MAX
from fusee_mp.errors import Rejected
from fusee_mp.security import tls
from fusee_mp.security.files import read_file, read_secret
from fusee_mp.security.token import NO_CHANNEL, UNASKED, Token, parse_tokens


class Material(msgspec.Struct, array_like=True, frozen=True):
    """The content of the files; None where no file was named, which an empty one is not."""

    cert: bytes | None = None
    key: bytes | None = None
    ca: bytes | None = None
    tokens: bytes | None = None

    def __repr__(self) -> str:
        return "Material(..)"

    def to_descriptor(self) -> int:
        """A memory file with it, closed by whoever holds it."""
        descriptor = os.memfd_create("fusee-mp-keys", os.MFD_CLOEXEC)
        with open(os.dup(descriptor), "wb") as file:
            file.write(msgspec.msgpack.encode(self))
        return descriptor

    @classmethod
    def from_descriptor(cls, descriptor: int) -> Material:
        """What the memory file holds; closes it."""
        with open(descriptor, "rb") as file:
            file.seek(0)
            return msgspec.msgpack.decode(file.read(), type=cls)


@dataclass(frozen=True)
class KeyFiles:
    """Paths, empty where there is none. Those that cannot be together raise Rejected."""

    cert: str = ""
    key: str = ""
    ca: str = ""
    tokens: str = ""

    def __post_init__(self) -> None:
        if bool(self.cert) != bool(self.key):
            raise Rejected("TLS needs a certificate and its key: give both --tls-cert and --tls-key, or neither", option="tls_cert")
        if self.ca and not self.cert:
            raise Rejected("--tls-ca names the CA of those who connect, over TLS: give --tls-cert and --tls-key too", option="tls_ca")

    @property
    def has_any(self) -> bool:
        return bool(self.cert or self.tokens)

    def read(self) -> Material:
        """Raises Rejected for what cannot be read, or may be read by too many."""
        return Material(
            read_file(self.cert, "certificate file", PEM_BYTES_MAX) if self.cert else None,
            read_secret(self.key, "key file", PEM_BYTES_MAX) if self.key else None,
            read_file(self.ca, "CA file", PEM_BYTES_MAX) if self.ca else None,
            read_secret(self.tokens, "tokens file", TOKENS_BYTES_MAX) if self.tokens else None,
        )


@dataclass(frozen=True)
class Keys:
    """What connections need from now on. `channel` is what a proof over TLS is bound to; `asks_certificate`: who connects must
    show one."""

    context: ssl.SSLContext | None = None
    channel: bytes = NO_CHANNEL
    tokens: dict[str, Token] | None = field(default=None, repr=False)
    asks_certificate: bool = False

    def __str__(self) -> str:
        names = [f"{token.name} ({token.scope.name.lower()})" for token in (self.tokens or {}).values()]
        return f"{'TLS' if self.context else 'no TLS'}, {'tokens ' if names else 'no tokens'}{', '.join(names)}"

    def honours(self, token: Token) -> bool:
        """Whether who came in with this token may stay."""
        return token is UNASKED or self.tokens is None or self.tokens.get(token.name) == token

    @classmethod
    def of(cls, material: Material, tokens_source: str = "the tokens file") -> Keys:
        """Raises Rejected for what cannot be used."""
        context, channel, tokens = None, NO_CHANNEL, None
        if material.cert is not None:
            context = tls.server_context(material.cert, material.key or b"", material.ca)
            channel = tls.channel_of(tls.first_certificate(material.cert))
        if material.tokens is not None:
            tokens = parse_tokens(material.tokens, tokens_source)
        return cls(context, channel, tokens, material.ca is not None)
