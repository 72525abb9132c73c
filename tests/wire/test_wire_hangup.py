"""The end of a connection is seen before the loop hears of it."""
from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from fusee_mp.wire.hangup import Hangup


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_hangup_has_come_as_soon_as_the_peer_has_ended_the_connection(run: Callable[..., Any]) -> None:
    async def main() -> None:
        ours, theirs = socket.socketpair()
        transport, _ = await asyncio.get_running_loop().create_unix_connection(asyncio.Protocol, sock=ours)
        hangup = Hangup(transport)
        theirs.send(b"what was sent before does not hide it")
        assert not hangup.has_come()
        theirs.close()
        assert hangup.has_come()  # nothing was awaited meanwhile
        transport.close()

    run(main())


def test_a_transport_of_no_descriptor_never_seems_ended() -> None:
    assert not Hangup(asyncio.Transport()).has_come()
