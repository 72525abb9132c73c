"""What clients leave behind when they go."""
from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from fusee_mp import heap
from fusee_mp.heap import GONE_MANY
from fusee_mp.security.token import UNASKED
from fusee_mp.shardproc.calls import ClientCalls
from fusee_mp.shardproc.clients import Clients


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
