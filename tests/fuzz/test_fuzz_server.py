"""Spoilt conversations with a real server, on every kind of connection: none of its processes notices, and others go on."""
from __future__ import annotations

import contextlib
import os
import random
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fusee_mp import SyncClient
from fusee_mp.core import calls as c
from fusee_mp.wire import messages as m
from fusee_mp.wire.frames import encode_frame
from fusee_mp.wire.kinds import Kind
from fusee_mp.wire.preface import ConnectionKind, Preface
from tests.fuzz.decoders import CALLS, FRAMES
from tests.fuzz.mutations import mutated
from tests.security.secured import RawTls, Safe
from tests.server.raw import RawLease
from tests.server.tree import Tree, serving, until

IS_LONG = bool(os.environ.get("FUSEE_LONG"))
ROUNDS = 20_000 if IS_LONG else 400
CONTROL, ANY = Preface(ConnectionKind.CONTROL), Preface(ConnectionKind.CLIENT_ANY)
HELLO, CLIENT = m.encode(m.Hello("w", "1", ["a"]), 1), m.encode(m.ClientHello("c"), 1)
LEASE = m.encode(m.Lease("w", "1", 0), 1, 0)


def conversations() -> list[bytes]:
    """What each kind of peer says from its first byte on, with every frame there is behind its greeting."""
    asked = [m.encode(m.Call(str(call.__struct_config__.tag), c.encode_call(call)), 9, 1) for call in CALLS]
    reads = [m.encode(m.Call(method, b"\x91\xa3o-1"), 9, 0) for method in ("status", "describe", "list", "count", "tally", "limit", "no")]
    client, worker = Preface(ConnectionKind.CLIENT_SHARD, 0).encode() + CLIENT, Preface(ConnectionKind.WORKER, 0).encode() + LEASE
    return [
        client + b"".join(asked), client + b"".join(reads), ANY.encode() + CLIENT + b"".join(FRAMES),
        *(start + frame for start in (client, worker, CONTROL.encode() + HELLO, CONTROL.encode()) for frame in FRAMES),
    ]


def intact(chance: random.Random, shard: int, epoch: int = 0) -> bytes:
    """A frame with a right checksum around a spoilt body."""
    kind = chance.choice([kind for kind in Kind if kind != Kind.APPEND])  # a holder's records are its own affair
    bodies = [frame[29:] for frame in FRAMES if frame[8] == kind] or [b""]
    return encode_frame(kind, mutated(bodies, chance), chance.choice((0, 1, 1 << 63)), chance.choice((shard, 1, 77)), epoch)


def spoken(chance: random.Random) -> bytes:
    """A greeting as it should be, and then intact frames that should not."""
    start = chance.choice((Preface(ConnectionKind.CLIENT_SHARD, 0).encode() + CLIENT, ANY.encode() + CLIENT, CONTROL.encode() + HELLO,
                           CONTROL.encode(), Preface(ConnectionKind.WORKER, 1).encode()))
    return start + b"".join(intact(chance, 0) for _ in range(chance.randint(1, 6)))


def say(address: str, data: bytes, chance: random.Random) -> None:
    """Whole or in pieces; then wait until the server has had it, or go at once."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), 10) as sock, contextlib.suppress(OSError):
        at = chance.randrange(len(data) + 1) if chance.random() < 0.3 else len(data)
        for piece in (data[:at], data[at:]):
            sock.sendall(piece)
        if chance.random() < 0.5:
            sock.shutdown(socket.SHUT_WR)
            sock.settimeout(2)
            while sock.recv(1 << 16):
                pass


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    with serving(tmp_path_factory.mktemp("fuzz") / "data", shards=2) as tree:
        yield tree


def pids(tree: Tree) -> set[int]:
    return {process.pid for process in tree.processes}


def test_spoilt_conversations_end_their_connections_and_nothing_else(tree: Tree) -> None:
    seed = int(os.environ.get("FUSEE_SEED", time.time_ns() % 1_000_000))
    chance, examples, before = random.Random(seed), conversations(), pids(tree)
    print(f"\nFUSEE_SEED={seed}")
    with SyncClient.connect(tree.address) as client:
        for number in range(ROUNDS):
            say(tree.address, spoken(chance) if number % 2 else mutated(examples, chance), chance)
            if number % 100 == 0:
                assert client.status("nobody") is None
        assert client.count() == 0
    until(lambda: pids(tree) == before, lambda: tree.log)
    assert not re.findall(r"^(?:\S+ \S+ \S+ (?:ERROR|CRITICAL)|Traceback).*$", tree.log, re.MULTILINE)
    print(f"fuzz: {ROUNDS:,} spoilt conversations, no process ended, nothing at ERROR in the log")


def test_a_holder_that_speaks_nonsense_loses_its_lease_and_nothing_else_happens(tree: Tree) -> None:
    chance, before = random.Random(2), pids(tree)
    for number in range(ROUNDS // 20):
        with RawLease(tree.address, "babbler", 1, str(number)) as holder, contextlib.suppress(OSError):
            holder.sock.sendall(b"".join(intact(chance, 1, holder.epoch) for _ in range(chance.randint(1, 20))))
            holder.sock.settimeout(0.05)
            while holder.sock.recv(1 << 16):
                pass
        with SyncClient.connect(tree.address) as client:
            assert client.status("nobody") is None
    assert pids(tree) == before and "Traceback" not in tree.log, tree.log


def test_spoilt_proofs_and_handshakes_end_their_connections_and_nothing_else(tmp_path: Path) -> None:
    safe, chance = Safe(tmp_path), random.Random(1)
    proof = m.encode(m.Challenge("shop", bytes(32)), 1) + m.encode(m.Proof(bytes(32)), 2) + CLIENT
    with safe.serving(shards=1) as tree:
        before = pids(tree)
        for _ in range(ROUNDS // 4):
            with RawTls(safe, ANY) as raw, contextlib.suppress(OSError):
                raw.sock.sendall(mutated([proof, *FRAMES[:6]], chance))
                raw.sock.settimeout(0.02)
                raw.sock.recv(100)
            say(tree.address, ANY.encode() + mutated([b"\x16\x03\x01\x00\x50" + chance.randbytes(80)], chance), chance)
        with RawTls(safe, ANY) as raw:
            raw.prove(safe.token("shop"))
            raw.ask(m.ClientHello("c"), m.ClientWelcome)
        assert pids(tree) == before and "Traceback" not in tree.log
