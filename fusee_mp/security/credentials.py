"""What who connects has: the CA of the server, a certificate, a token."""
from __future__ import annotations

import ssl
from dataclasses import dataclass

from fusee_mp.bounds import PEM_BYTES_MAX, TOKENS_BYTES_MAX
from fusee_mp.errors import Rejected
from fusee_mp.security import tls
from fusee_mp.security.files import read_file, read_secret
from fusee_mp.security.token import Token, one_token


@dataclass(frozen=True, slots=True)
class Credentials:
    """Paths, empty where there is none. They are read for each connection, so that files may be renewed. Raises Rejected for those
    that cannot be together."""

    ca: str = ""
    cert: str = ""
    key: str = ""
    token_file: str = ""

    def __post_init__(self) -> None:
        if bool(self.cert) != bool(self.key):
            raise Rejected("a certificate goes with its key: give both cert= and key=, or neither")
        if self.cert and not self.ca:
            raise Rejected("a certificate is shown over TLS, which needs the server's CA: give ca= too")

    def __bool__(self) -> bool:
        return bool(self.ca or self.token_file)

    def context(self) -> ssl.SSLContext | None:
        """TLS as these ask for it; None without a CA. Raises Rejected."""
        if not self.ca:
            return None
        if self.cert:
            read_file(self.cert, "certificate file", PEM_BYTES_MAX)
            read_secret(self.key, "key file", PEM_BYTES_MAX)
        return tls.client_context(read_file(self.ca, "CA file", PEM_BYTES_MAX), self.cert, self.key)

    def token(self) -> Token | None:
        """Raises Rejected."""
        if not self.token_file:
            return None
        return one_token(read_secret(self.token_file, "token file", TOKENS_BYTES_MAX), f"the token file {self.token_file}")
