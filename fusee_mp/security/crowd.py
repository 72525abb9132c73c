# Who gives way when too many are beginning.
#
# A flood comes from few addresses, and those it would shut out from others. So the oldest of the address that has most gives way: a
# flood then drives out itself, and who comes alone is never driven out by it. From one address alone it is the oldest of all.
"""`Crowd`: things that are beginning, by the address they come from."""
from __future__ import annotations

import ipaddress
import socket
from typing import Final, Generic, TypeVar

T = TypeVar("T")
# One host has as many IPv6 addresses as it likes, of one network.
_NETWORK_BITS: Final = 64


class Crowd(Generic[T]):
    """Members by address, each address's the oldest first."""

    def __init__(self) -> None:
        self._by_host: dict[str, dict[T, None]] = {}
        self._host_of: dict[T, str] = {}

    def __len__(self) -> int:
        return len(self._host_of)

    def members(self) -> list[T]:
        return list(self._host_of)

    def add(self, member: T, host: str) -> None:
        self._host_of[member] = host
        self._by_host.setdefault(host, {})[member] = None

    def remove(self, member: T) -> None:
        """Take it out; one that is out already is no error."""
        host = self._host_of.pop(member, None)
        if host is not None:
            of_host = self._by_host[host]
            del of_host[member]
            if not of_host:
                del self._by_host[host]

    def take_next(self) -> T:
        """Take out the next: the addresses in turn, of each the oldest."""
        host, of_host = next(iter(self._by_host.items()))
        member = next(iter(of_host))
        self.remove(member)
        if host in self._by_host:
            self._by_host[host] = self._by_host.pop(host)  # behind the others
        return member

    def who_gives_way(self) -> T:
        """The oldest of the address that has most."""
        fullest = max(self._by_host, key=lambda host: len(self._by_host[host]))
        return next(iter(self._by_host[fullest]))


def host_of(sock: socket.socket) -> str:
    """Where a connection comes from: its address, of IPv6 the network; one name for all of a Unix socket."""
    if sock.family == socket.AF_UNIX:
        return "unix"
    try:
        host: str = sock.getpeername()[0]
    except OSError:  # gone already
        return ""
    if sock.family != socket.AF_INET6:
        return host
    return str(ipaddress.ip_network((host.partition("%")[0], _NETWORK_BITS), strict=False))
