# Which shard process gets a connection, and where it waits while that process is down.
#
# Who closes: whoever gives a socket to `take` has given it away. It goes to a shard process (`adopt` closes this process's copy), or to
# the farewells.
"""`Dispatch`: hands connections to shard processes."""
from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass

from fusee_mp.bounds import ROUTER_WAITING_MAX, ROUTER_WAITING_MS
from fusee_mp.security.farewell import Farewells


@dataclass(slots=True)
class _Waiting:
    sock: socket.socket
    shard: int | None
    preface: bytes
    age_ms: int = 0


class Dispatch:
    """`adopt(shard, preface, socket)` takes the socket and returns True, or False if that process cannot take one now."""

    def __init__(self, shards: int, adopt: Callable[[int, bytes, socket.socket], bool], farewells: Farewells) -> None:
        self._shards, self._adopt, self._farewells = shards, adopt, farewells
        self._waiting: list[_Waiting] = []
        self._next = 0
        self._closed = ""

    def take(self, sock: socket.socket, shard: int | None, preface: bytes) -> None:
        """A connection for a shard, or for any."""
        if self._closed:
            self._farewells.goodbye(sock, self._closed)
        elif shard is not None and shard >= self._shards:
            self._farewells.goodbye(sock, f"the connection is for shard {shard}, and this server has shards 0 to {self._shards - 1}")
        elif not self._hand_over(sock, shard, preface):
            self._wait(_Waiting(sock, shard, preface))

    def retry(self) -> None:
        """Try again for all that wait: a shard process came up."""
        waiting, self._waiting = self._waiting, []
        self._waiting = [one for one in waiting if not self._hand_over(one.sock, one.shard, one.preface)] + self._waiting

    def tick(self, passed_ms: int) -> None:
        if not self._waiting:
            return
        self.retry()
        for one in self._waiting:
            one.age_ms += passed_ms
        late = [one for one in self._waiting if one.age_ms >= ROUTER_WAITING_MS]
        self._waiting = [one for one in self._waiting if one.age_ms < ROUTER_WAITING_MS]
        for one in late:
            self._refuse(one, f"within {ROUTER_WAITING_MS // 1000} s it did not come up")

    def close(self, reason: str) -> None:
        """Refuse all that wait, and all that come."""
        self._closed = reason
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            self._farewells.goodbye(one.sock, reason)

    def _hand_over(self, sock: socket.socket, shard: int | None, preface: bytes) -> bool:
        if shard is not None:
            return self._adopt(shard, preface, sock)
        for _ in range(self._shards):
            shard, self._next = self._next, (self._next + 1) % self._shards
            if self._adopt(shard, preface, sock):
                return True
        return False

    def _wait(self, one: _Waiting) -> None:
        if len(self._waiting) < ROUTER_WAITING_MAX:
            self._waiting.append(one)
        else:
            self._refuse(one, f"{ROUTER_WAITING_MAX} connections wait already")

    def _refuse(self, one: _Waiting, why: str) -> None:
        which = "a shard process" if one.shard is None else f"the process of shard {one.shard}"
        self._farewells.goodbye(one.sock, f"{which} is being started: {why}. Try again later")
