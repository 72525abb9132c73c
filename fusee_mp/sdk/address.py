"""Addresses of a server: `host:port` or `unix:/path`, with options after `?`."""
from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import parse_qsl

from fusee_mp.errors import Rejected

OPTIONS = frozenset(("name",))
PORT_DEFAULT = 7410


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens: a host and a port, or the path of a Unix socket."""

    host: str = ""
    port: int = 0
    path: str = ""
    name: str = ""

    def __str__(self) -> str:
        return f"unix:{self.path}" if self.path else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Raises Rejected for what is no address, naming the part that is wrong."""
    place, _, query = text.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    unknown = sorted(set(options) - OPTIONS)
    if unknown:
        raise Rejected(f'address "{text}" has an unknown option "{unknown[0]}": known are {", ".join(sorted(OPTIONS))}')
    name = options.get("name", "")
    if place.startswith("unix:"):
        path = place.removeprefix("unix:")
        if not path:
            raise Rejected(f'address "{text}" names no path: write unix:/path/to/socket')
        return Address(path=path, name=name)
    host, colon, port = place.rpartition(":")
    if not colon:
        host, port = place, str(PORT_DEFAULT)
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise Rejected(f'address "{text}" is not host:port (port 1 to 65535) or unix:/path')
    return Address(host.strip("[]"), int(port), name=name)
