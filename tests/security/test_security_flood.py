"""A flood of strangers on every port: others go on, newcomers from elsewhere come in, and nothing of it is left."""
from __future__ import annotations

import contextlib
import os
import random
import socket
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pytest

from fusee_mp import SyncClient
from fusee_mp.wire import messages as m
from fusee_mp.wire.preface import ConnectionKind, Preface
from tests.fuzz.decoders import FRAMES
from tests.fuzz.mutations import mutated
from tests.security.secured import RawTls, Safe
from tests.server.tree import Tree, until

OPEN_AT_ONCE, STRANGERS = 400, 4_000
CHALLENGE = m.encode(m.Challenge("x", bytes(32)))
PREFACES = [Preface(ConnectionKind.CONTROL), Preface(ConnectionKind.WORKER, 0), Preface(ConnectionKind.CLIENT_SHARD, 1),
            Preface(ConnectionKind.CLIENT_ANY)]


class Flood:
    """A thread that opens connections to all addresses in turn, says something that leads nowhere, and leaves the last of them open."""

    def __init__(self, addresses: list[str]) -> None:
        self._addresses, self._chance = addresses, random.Random(1)
        self._is_over = threading.Event()
        self.count = 0
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Flood:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        held: deque[socket.socket] = deque()
        while not self._is_over.is_set():
            with contextlib.suppress(OSError):
                sock = self._dial(self._addresses[self.count % len(self._addresses)])
                held.append(sock)
                sock.sendall(self._words())
            self.count += 1
            if len(held) > OPEN_AT_ONCE:
                held.popleft().close()
        for sock in held:
            sock.close()

    def _dial(self, address: str) -> socket.socket:
        path = address.removeprefix("unix:")
        sock = socket.socket(socket.AF_INET if path == address else socket.AF_UNIX)
        sock.settimeout(2)
        host, _, port = address.rpartition(":")
        sock.connect((host, int(port)) if path == address else path)
        return sock

    def _words(self) -> bytes:
        chance = self._chance
        behind = [b"", os.urandom(100), b"\x16\x03\x01\x02\x00" + os.urandom(60), mutated(FRAMES, chance), CHALLENGE]
        return chance.choice([b"", b"\xf5fmp", b"GET / HTTP/1.1\r\n\r\n", *(one.encode() + chance.choice(behind) for one in PREFACES)])


@pytest.fixture
def safe(tmp_path: Path) -> Iterator[Safe]:
    safe = Safe(tmp_path)
    with safe.serving(shards=2, listen=["127.0.0.1:0", "[::1]:0"], unix=str(tmp_path / "s")):
        yield safe


def descriptors(tree: Tree) -> list[int]:
    """Of each process, without /dev/null, which uvloop opens when it first needs it and keeps."""
    return [sum(target(link) != "/dev/null" for link in Path(f"/proc/{process.pid}/fd").iterdir())
            for process in (tree.processes[0], tree.shard(0), tree.shard(1))]


def target(link: Path) -> str:
    try:
        return os.readlink(link)
    except FileNotFoundError:  # closed meanwhile
        return "/dev/null"


def test_a_flood_on_every_port_harms_nobody_else_and_leaves_nothing(safe: Safe) -> None:
    tree, pids = safe.tree, {process.pid for process in safe.tree.processes}
    line = next(line for line in tree.log.splitlines() if "ready on" in line)
    addresses = line.partition("ready on ")[2].split()
    assert len(addresses) == 3
    with SyncClient.connect(tree.address, **safe.of("shop")) as client:
        assert client.count() == 0
        before = descriptors(tree)
        newcomers = 0
        with Flood(addresses) as flood:
            while flood.count < STRANGERS:
                assert client.count() == 0
                with RawTls(safe, PREFACES[3], source="127.0.0.2") as raw:
                    raw.prove(safe.token("wall"))
                    raw.ask(m.ClientHello("newcomer"), m.ClientWelcome)
                    newcomers += 1
        until(lambda: descriptors(tree) == before, lambda: f"{descriptors(tree)} are not {before}")
    assert {process.pid for process in tree.processes} == pids and newcomers
    assert "Traceback" not in tree.log and len(tree.log.splitlines()) < 100, "the log stays short"
