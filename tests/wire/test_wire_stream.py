"""A connection that breaks in the middle of what is sent, or whose peer does not read."""
from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from fusee_mp.wire import stream as stream_module
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


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_who_takes_nothing_is_given_up_and_who_takes_slowly_is_not(run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "STALLED_S", 0.3)

    async def main() -> str:
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        loop = asyncio.get_running_loop()
        with theirs:
            _, stream = await loop.create_unix_connection(Told, sock=ours)
            stream.send_bytes(bytes(4 << 20))
            waiting = asyncio.create_task(stream.room())
            for _ in range(6):
                await asyncio.sleep(0.1)
                await loop.sock_recv(theirs, 1 << 18)
            assert stream.is_open and not waiting.done()
            async with asyncio.timeout(10):
                await waiting
                return await stream.end

    assert "the peer does not read: it took nothing of" in run(main())
