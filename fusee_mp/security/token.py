# Tokens: what a peer has in a file, and proves to have without ever sending it.
#
#   who connects  ->  CHALLENGE(name, nonce)
#   server        ->  PROOF(HMAC-SHA256(secret, ".. server" + bound), its own nonce)
#   who connects  ->  PROOF(HMAC-SHA256(secret, ".. client" + bound))
#
# `bound` is the connection's preface, the channel, both nonces and the name; each but the last has a fixed length, so no two meanings
# have the same bytes. The channel is the SHA-256 of the server's certificate under TLS (RFC 5929, tls-server-end-point), and zeros
# without. So a proof fits one connection, of one kind, to the holder of one certificate: it cannot be repeated, reflected, or passed on
# by somebody between the two.
#
# Rule 1: each side is convinced before anything else is answered or asked. The server shows its proof first: to whoever asks it is one
#         hash of a secret that cannot be guessed.
# Rule 2: a name that the server does not have is answered like one that it has, with a secret that nobody knows.
# Rule 3: no message, log line or repr holds a secret.
"""Tokens: `parse_tokens` reads their file, `Proving` is one proof of both sides."""
from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from fusee_mp.bounds import NONCE_BYTES, TOKEN_NAME_CHARS_MAX, TOKEN_SECRET_CHARS_MAX, TOKEN_SECRET_CHARS_MIN
from fusee_mp.errors import Denied, ProtocolError, Rejected
from fusee_mp.wire.preface import PREFACE_BYTES

NO_CHANNEL: Final = bytes(hashlib.sha256().digest_size)
_NAME: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{TOKEN_NAME_CHARS_MAX}}}")
_SECRET: Final = re.compile(rf"[A-Za-z0-9+/=_-]{{{TOKEN_SECRET_CHARS_MIN},{TOKEN_SECRET_CHARS_MAX}}}")
_MAKE: Final = "`openssl rand -base64 32` makes one"


class Scope(IntEnum):
    """How far a token goes; each includes those before it."""

    READ = 1  # calls that change nothing
    CLIENT = 2  # all calls
    FULL = 3  # leases too: a worker


def check_leasing(scope: str) -> None:
    """Raises Denied for the scope of a token with which nobody leases shards."""
    if scope != "full":
        raise Denied(f"a worker needs a token of scope full, this one has {scope}")


@dataclass(frozen=True)
class Token:
    """One line of a tokens file."""

    scope: Scope
    name: str
    secret: str = field(repr=False)


# Of who came in where no token is asked for.
UNASKED: Final = Token(Scope.FULL, "", "")


def parse_tokens(data: bytes, source: str) -> dict[str, Token]:
    """The tokens of a file by name: a line each, `SCOPE NAME SECRET`; empty lines and those that begin with # are left out.

    Raises Rejected that names the line and what is wrong with it, never what stands there.
    """
    found: dict[str, Token] = {}
    for number, line in _lines(data, source):
        token = _token(line, f"{source}, line {number}")
        if token.name in found:
            raise Rejected(f'{source}, line {number}: the name "{token.name}" stands there twice: give each token a name of its own')
        found[token.name] = token
    if not found:
        raise Rejected(f"{source} has no token: write a line SCOPE NAME SECRET, such as `client shop` and a secret; {_MAKE}")
    return found


def _lines(data: bytes, source: str) -> Iterator[tuple[int, str]]:
    try:
        text = data.decode("ascii")
    except UnicodeDecodeError as error:
        raise Rejected(f"{source} is no tokens file: byte {error.start} is not ASCII. Write lines SCOPE NAME SECRET") from None
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            yield number, line


def _token(line: str, place: str) -> Token:
    words = line.split()
    if len(words) != 3:
        raise Rejected(f"{place}: expected three words, SCOPE NAME SECRET, found {len(words)}")
    scope, name, secret = words
    if scope not in ("full", "client", "read"):
        raise Rejected(f"{place}: the first word is no scope: write full (workers), client (calls) or read (calls that change nothing)")
    if not _NAME.fullmatch(name):
        raise Rejected(f"{place}: the second word is no name: 1 to {TOKEN_NAME_CHARS_MAX} letters, digits, dots, dashes, underscores")
    if not _SECRET.fullmatch(secret):
        expected = f"{TOKEN_SECRET_CHARS_MIN} to {TOKEN_SECRET_CHARS_MAX} letters, digits and + / = _ -"
        raise Rejected(f"{place}: the third word is no secret: expected {expected}, found {len(secret)} characters; {_MAKE}")
    return Token(Scope[scope.upper()], name, secret)


def one_token(data: bytes, source: str) -> Token:
    """The token of a file that holds exactly one: that of a worker or client. Raises Rejected."""
    tokens = parse_tokens(data, source)
    if len(tokens) > 1:
        raise Rejected(f"{source} holds {len(tokens)} tokens: who connects has one. Put its line into a file of its own")
    return next(iter(tokens.values()))


class Proving:
    """One side of one proof. `nonce` is this side's."""

    def __init__(self, token: Token, preface: bytes, channel: bytes) -> None:
        assert len(preface) == PREFACE_BYTES and len(channel) == len(NO_CHANNEL)
        self.token = token
        self.nonce = secrets.token_bytes(NONCE_BYTES)
        self._bound = preface + channel

    def of_server(self, client_nonce: bytes) -> bytes:
        """What the server shows."""
        return self._proof(b"server", client_nonce, self.nonce)

    def of_client(self, server_nonce: bytes) -> bytes:
        """What who connects shows."""
        return self._proof(b"client", self.nonce, server_nonce)

    def check_server(self, proof: bytes, server_nonce: bytes) -> None:
        """Raises Denied unless the server has the token too."""
        if not hmac.compare_digest(proof, self._proof(b"server", self.nonce, server_nonce)):
            raise Denied(
                f'this server does not know the token "{self.token.name}" (was it taken out?), or it is not the server that you mean: it'
                " did not prove that it has a token of that name and secret. Compare the token file with the server's",
                token=self.token.name)

    def check_client(self, proof: bytes, client_nonce: bytes) -> None:
        """Raises Denied unless who connects has the token."""
        if not hmac.compare_digest(proof, self._proof(b"client", client_nonce, self.nonce)):
            raise Denied("the proof does not fit the token: compare the token file with the server's")

    def _proof(self, side: bytes, client_nonce: bytes, server_nonce: bytes) -> bytes:
        for nonce in (client_nonce, server_nonce):
            if len(nonce) != NONCE_BYTES:
                raise ProtocolError(f"expected a nonce of {NONCE_BYTES} bytes, found {len(nonce)}", found=len(nonce))
        bound = b"fusee-mp/token/1/" + side + self._bound + client_nonce + server_nonce + self.token.name.encode()
        return hmac.digest(self.token.secret.encode(), bound, "sha256")


def decoy(name: str) -> Token:
    """For a name that there is not: a proof that nobody can give."""
    return Token(Scope.READ, name, secrets.token_hex(TOKEN_SECRET_CHARS_MIN))
