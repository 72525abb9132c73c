"""Addresses of a server: `host:port` or `unix:/path`, with options after `?`."""
from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TypeAlias
from urllib.parse import parse_qsl

from fusee_mp.errors import Rejected
from fusee_mp.security.credentials import Credentials

OPTIONS = frozenset(("ca", "cert", "key", "name", "token-file"))
PORT_DEFAULT = 7410
FilePath: TypeAlias = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens: a host and a port, or the path of a Unix socket, on which `credentials` are not asked for."""

    host: str = ""
    port: int = 0
    path: str = ""
    name: str = ""
    credentials: Credentials = Credentials()

    def __str__(self) -> str:
        return f"unix:{self.path}" if self.path else f"{self.host}:{self.port}"

    def secured(self, ca: FilePath | None, cert: FilePath | None, key: FilePath | None, token_file: FilePath | None) -> Address:
        """The address with these in place of its own where they are given. Raises Rejected for those that cannot be used."""
        own = self.credentials
        chosen = [own_one if given is None else os.fspath(given)
                  for given, own_one in zip((ca, cert, key, token_file), (own.ca, own.cert, own.key, own.token_file))]
        credentials = Credentials(*chosen)
        if not self.path:
            credentials.context()
            credentials.token()
        return replace(self, credentials=credentials)


def parse_address(text: str) -> Address:
    """Raises Rejected for what is no address, naming the part that is wrong."""
    place, _, query = text.partition("?")
    options = _options(text, query)
    credentials = Credentials(options.get("ca", ""), options.get("cert", ""), options.get("key", ""), options.get("token-file", ""))
    name = options.get("name", "")
    if place.startswith("unix:"):
        path = place.removeprefix("unix:")
        if not path:
            raise Rejected(f'address "{text}" names no path: write unix:/path/to/socket')
        return Address(path=path, name=name, credentials=credentials)
    host, colon, port = place.rpartition(":")
    if not colon:
        host, port = place, str(PORT_DEFAULT)
    if not host or not port.isascii() or not port.isdigit() or len(port) > 5 or not 0 < int(port) < 65536:
        raise Rejected(f'address "{text}" is not host:port (port 1 to 65535) or unix:/path')
    return Address(host.strip("[]"), int(port), name=name, credentials=credentials)


def _options(text: str, query: str) -> dict[str, str]:
    try:
        options = dict(parse_qsl(query, keep_blank_values=True))
    except ValueError as error:  # more fields than it takes
        raise Rejected(f'address "{text:.200}" has options that cannot be read: {error}') from None
    unknown = sorted(set(options) - OPTIONS)
    if unknown:
        raise Rejected(f'address "{text}" has an unknown option "{unknown[0]}": known are {", ".join(sorted(OPTIONS))}')
    empty = sorted(name for name, value in options.items() if not value)
    if empty:
        raise Rejected(f'address "{text}" gives its option "{empty[0]}" no value: give one, or leave it out')
    return options
