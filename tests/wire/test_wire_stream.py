"""A connection that breaks in the middle of what is sent."""
from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from fusee_mp.wire.frames import Frame
from fusee_mp.wire.messages import Ping
from fusee_mp.wire.stream import Stream


class Told(Stream):
    def __init__(self) -> None:
        super().__init__()
        self.end: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def received(self, frame: Frame) -> None:
        raise AssertionError(f"nobody sends {frame}")

    def lost(self, reason: str) -> None:
        self.end.set_result(reason)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_what_is_sent_after_a_break_is_dropped_quietly(run: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> str:
        ours, theirs = socket.socketpair()
        _, stream = await asyncio.get_running_loop().create_unix_connection(Told, sock=ours)
        theirs.close()
        for count in range(20):
            stream.send(Ping(count))
        async with asyncio.timeout(10):
            return await stream.end

    assert "closed" in (reason := run(main())) or "broke" in reason
    assert caplog.messages == []
