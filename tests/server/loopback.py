"""Asynchronous tests, workers in this process, and a proxy that can stop forwarding and cut."""
from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, ParamSpec, TypeVar

from fusee_mp import shard_of

P = ParamSpec("P")
T = TypeVar("T")
PATIENCE_S = 60.0
_COUNT = itertools.count()


def asynchronous(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """The test runs on a loop of its own and may not take for ever."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        async def within() -> None:
            async with asyncio.timeout(PATIENCE_S):
                await test(*args, **kwargs)

        asyncio.run(within())

    return run


async def until(look: Callable[[], T | Awaitable[T]]) -> T:
    """What `look` gives once that is true. The test's own time-out ends the wait."""
    while True:
        found = look()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return found  # type: ignore[return-value]
        await asyncio.sleep(0.005)


def id_on(wanted: int | Iterable[int], shards: int, word: str = "run") -> str:
    """An ID not used before that hashes to one of the shards (A2)."""
    ids = (f"{word}-{number}" for number in _COUNT)
    places = {wanted} if isinstance(wanted, int) else set(wanted)
    return next(id for id in ids if shard_of(id, shards) in places)


class Proxy:
    """Forwards TCP to an address. `freeze` stops forwarding bytes both ways; `cut` closes both sides of every connection."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._host, self._port = host, int(port)
        self._moving = asyncio.Event()
        self._moving.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._server: asyncio.Server | None = None
        self._is_refusing = False
        # Asked about all that passes, with whether a client sent it; at the first False everything is cut.
        self.may_pass: Callable[[bytes, bool], bool] = lambda data, is_from_client: True

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *exception: object) -> None:
        assert self._server is not None
        self._server.close()
        while self._tasks:
            self.cut()
            await asyncio.wait(list(self._tasks), timeout=0.05)

    @property
    def address(self) -> str:
        assert self._server is not None
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def freeze(self) -> None:
        self._moving.clear()

    def thaw(self) -> None:
        self._moving.set()

    def refuse(self) -> None:
        """Take no further connection."""
        self._is_refusing = True

    def cut(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()
        self._moving.set()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self._is_refusing:
            writer.transport.abort()
            return
        try:
            other_reader, other = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, other}
        try:
            await asyncio.gather(self._carry(reader, other, True), self._carry(other_reader, writer, False))
        finally:
            self._writers -= {writer, other}
            writer.transport.abort()
            other.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_from_client: bool) -> None:
        try:
            while data := await reader.read(1 << 16):
                await self._moving.wait()
                if not self.may_pass(data, is_from_client):
                    self.cut()
                    return
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        writer.transport.abort()
