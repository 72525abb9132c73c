"""Answers that are not read hold a bounded amount of memory."""
from __future__ import annotations

import asyncio
import socket
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop

from fusee_mp.security.token import UNASKED
from fusee_mp.shardproc.calls import ClientCalls
from fusee_mp.shardproc.clients import ClientConnection, Clients
from fusee_mp.wire import unread
from fusee_mp.wire.unread import Unread

MIB = 1 << 20


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_beyond_the_bound_of_all_the_one_with_most_unread_is_ended(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unread, "LOOK_EVERY_BYTES", MIB // 4)

    async def body() -> None:
        loop = asyncio.get_running_loop()
        process: Any = SimpleNamespace(loop=loop, shard=0)
        process.calls = ClientCalls(process)
        clients = Clients(process, 10)
        clients.unread = Unread(4 * MIB)
        peers = []

        async def connected() -> ClientConnection:
            ours, theirs = socket.socketpair()
            theirs.setblocking(False)
            peers.append(theirs)
            connection = clients.entry.make(UNASKED)
            assert isinstance(connection, ClientConnection)
            await loop.connect_accepted_socket(lambda: connection, ours)
            return connection

        reads, greedy, *slow = [await connected() for _ in range(4)]

        async def send(connection: ClientConnection, size: int) -> None:
            for _ in range(size // (MIB // 8)):
                connection.send_bytes(bytes(MIB // 8))
                await asyncio.sleep(0)

        await send(greedy, 2 * MIB)
        for _ in range(20):  # what is read does not count
            await send(reads, MIB // 2)
            while reads.unsent_bytes:
                await loop.sock_recv(peers[0], MIB)
        assert greedy.is_open
        for connection in slow:
            await send(connection, 3 * MIB // 2)
        assert not greedy.is_open and all(each.is_open for each in (reads, *slow))
        for connection in clients.open:
            connection.abort("")
        await asyncio.sleep(0.01)
        assert not clients.open
        for peer in peers:
            peer.close()

    run(body())
