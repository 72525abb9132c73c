"""Raw connections to secured servers, and their servers."""
from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fusee_mp.security.tls import channel_of
from fusee_mp.security.token import NO_CHANNEL, Proving, Token, one_token
from fusee_mp.wire import messages as m
from fusee_mp.wire.preface import Preface
from tests.security.certificates import Authority, write_tokens
from tests.server.raw import Raw
from tests.server.tree import Tree, serving


class Safe:
    """A server with TLS and tokens, and the files for those who connect."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.authority = folder, Authority(folder)
        self.cert, self.key = self.authority.issue("server")
        self.files = write_tokens(folder)
        self.tree: Tree

    @property
    def address(self) -> str:
        return self.tree.address

    @property
    def log(self) -> str:
        """The server's, also of one that did not start."""
        return (self.folder / "data.log").read_text()

    def of(self, name: str) -> dict[str, Any]:
        """What who has this token connects with."""
        return {"ca": self.authority.ca, "token_file": self.files[name]}

    def token(self, name: str) -> Token:
        return one_token(self.files[name].read_bytes(), name)

    @contextmanager
    def serving(self, **options: Any) -> Iterator[Tree]:
        given = {"tls_cert": str(self.cert), "tls_key": str(self.key), "tokens": str(self.files["tokens"]), **options}
        with serving(self.folder / "data", **given) as self.tree:
            yield self.tree


class RawTls(Raw):
    """A connection on which TLS stands, and nothing has been said."""

    def __init__(self, safe: Safe, preface: Preface, context: ssl.SSLContext | None = None, source: str = "127.0.0.1") -> None:
        super().__init__(safe.address, preface, source)
        self.preface = preface.encode()
        if context is None:
            context = ssl.create_default_context(cafile=safe.authority.ca)
        self.sock = self.tls = context.wrap_socket(self.sock, server_hostname="127.0.0.1")
        certificate = self.tls.getpeercert(binary_form=True)
        assert certificate is not None
        self.channel = channel_of(certificate)

    def challenge(self, token: Token) -> tuple[Proving, m.Proof]:
        """Ask the server for its proof; the answer, unchecked."""
        proving = Proving(token, self.preface, self.channel)
        return proving, self.ask(m.Challenge(token.name, proving.nonce), m.Proof)

    def prove(self, token: Token) -> None:
        """Both sides prove the token."""
        proving, answer = self.challenge(token)
        proving.check_server(answer.proof, answer.nonce)
        self.send(m.Proof(proving.of_client(answer.nonce)))

    def denied(self) -> str:
        """What the error says that is the only answer; then the connection ends."""
        frame = self.frame()
        assert frame is not None
        error = m.decode(frame)
        assert isinstance(error, m.Error) and error.code == "denied", error
        assert self.goodbye() == f"denied: {error.message}"
        return error.message


assert len(NO_CHANNEL) == 32
