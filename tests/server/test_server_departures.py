"""What clients leave behind when they go."""
from __future__ import annotations

import asyncio
import gc
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from fusee_mp import heap
from fusee_mp.bounds import PART_BYTES
from fusee_mp.heap import GONE_MANY
from fusee_mp.security.token import UNASKED
from fusee_mp.shardproc.calls import ClientCalls, Pending
from fusee_mp.shardproc.clients import Clients
from fusee_mp.shardproc.process import ShardOptions
from fusee_mp.wire import messages as m
from fusee_mp.wire.frames import Frame, decode_frame
from fusee_mp.wire.kinds import Kind


def test_when_many_have_gone_the_system_gets_their_memory_back_once(monkeypatch: pytest.MonkeyPatch) -> None:
    given_back: list[int] = []

    async def body() -> None:
        process: Any = SimpleNamespace(loop=asyncio.get_running_loop(), shard=0)
        process.calls = ClientCalls(process)
        all_clients = Clients(process, GONE_MANY)
        many = [all_clients.entry.make(UNASKED) for _ in range(GONE_MANY)]
        assert "shard 0 has 100 clients already" in all_clients.entry.full()
        for client in many[1:]:
            client.connection_lost(None)
        await asyncio.sleep(0.01)
        assert given_back == [] and all_clients.entry.full() == ""
        many[0].connection_lost(None)
        await asyncio.sleep(0.01)
        assert given_back == [0]

    monkeypatch.setattr(heap, "GIVE_BACK_S", 0.0)
    monkeypatch.setattr(heap, "give_back", lambda: given_back.append(0))
    asyncio.run(body())


class Keeper:
    """Answers with much."""

    durable_lsn = 0

    async def read_bytes(self, *args: Any) -> bytes:
        return bytes(3 * PART_BYTES)


def test_an_answer_that_nobody_waits_for_any_more_is_freed_at_once() -> None:
    """Without the collector of cycles, which a process that does little hardly ever runs."""

    async def body() -> None:
        loop = asyncio.get_running_loop()
        options = ShardOptions("", 0, 1, 0, 0, "")
        process: Any = SimpleNamespace(loop=loop, shard=0, lease=None, host=Keeper(), spawn=loop.create_task, options=options)
        process.calls = ClientCalls(process)
        process.clients = Clients(process, 1)
        ours, theirs = socket.socketpair()
        with theirs:
            client = process.clients.entry.make(UNASKED)
            await loop.connect_accepted_socket(lambda: client, ours)
            process.calls.take(Frame(Kind.CALL, 1, 0, 0, decode_frame(m.encode(m.Call("count", b"\x90"))).body), client.send_bytes, client)
            async with asyncio.timeout(30):
                while client.unsent_bytes < PART_BYTES // 2:
                    await asyncio.sleep(0.01)
            assert pending()
            client.abort("gone")
            await asyncio.sleep(0.01)
            assert not pending()

    gc.collect()
    gc.disable()
    try:
        asyncio.run(body())
    finally:
        gc.enable()


def pending() -> list[Pending]:
    return [each for each in gc.get_objects() if isinstance(each, Pending)]
