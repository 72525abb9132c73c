"""The processes of a server: they end with it, and leave nothing behind."""
from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest

from fusee_mp import Client
from fusee_mp.wire import messages as m
from fusee_mp.wire.preface import ConnectionKind, Preface
from tests.processes import is_alive
from tests.server.loopback import asynchronous
from tests.server.raw import Raw, RawClient, RawLease
from tests.server.tree import Tree, serving, until


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    with serving(tmp_path_factory.mktemp("tree") / "data") as tree:
        yield tree


def descriptors(tree: Tree) -> dict[int, int]:
    """How many each process has, but for files of the data directory: those come and go with the log's segments."""
    return {process.pid: sum(map(partial(is_connection, tree), Path(f"/proc/{process.pid}/fd").iterdir())) for process in tree.processes}


def is_connection(tree: Tree, descriptor: Path) -> bool:
    try:
        return not os.readlink(descriptor).startswith(str(tree.directory))
    except FileNotFoundError:  # closed meanwhile
        return False


def test_no_process_keeps_a_descriptor_of_five_hundred_connections(tree: Tree) -> None:
    """Clients, workers, sessions; welcome ones, rude ones and some that say nothing."""
    for shard in range(2):
        with RawClient(tree.address, shard) as client:
            until(lambda client=client, shard=shard: is_linked(client, 1 - shard))
    connect_five(tree, range(2))
    before = descriptors(tree)
    connect_five(tree, range(100))
    until(lambda: no_more(descriptors(tree), before), lambda: f"{before} became {descriptors(tree)}")


def no_more(now: dict[int, int], before: dict[int, int]) -> bool:
    """Fewer there may be: the last connections before may not have been closed yet."""
    return now.keys() == before.keys() and all(now[pid] <= before[pid] for pid in now)


def is_linked(client: RawClient, shard: int) -> bool:
    """Whether the client's shard process has its link to another's."""
    client.send(m.Call("count", b"\x90"), 1, shard)
    frame = client.frame()
    assert frame is not None
    return isinstance(m.decode(frame), m.Reply)


def connect_five(tree: Tree, numbers: Iterable[int]) -> None:
    for number in numbers:
        shard = number % 2
        with RawClient(tree.address, shard) as client, Raw(tree.address, Preface(ConnectionKind.CLIENT_ANY)):
            client.send(m.Call("count", b"\x90"), 1, 1 - shard)
            client.send(m.Call("result", b"\x92\xa6result\xa5never"), 2, shard)
        with RawLease(tree.address, "w", shard, str(number)):
            pass
        with Raw(tree.address, Preface(ConnectionKind.CONTROL)) as session:
            session.send(m.Hello(f"session-{number}", "1", []))
        with Raw(tree.address, Preface(ConnectionKind.CLIENT_SHARD, shard)) as rude:
            rude.sock.sendall(b"\xff" * 100)


def test_a_killed_router_takes_every_process_with_it(tmp_path: Path) -> None:
    """G18: no orphan, no port, no shared memory; the directory can be served again at once."""
    with serving(tmp_path / "data", shards=3) as tree:
        tree.keeper(1).suspend()  # one that cannot end in order
        below = tree.processes[1:]
        assert len(below) >= 6
        host, _, port = tree.address.rpartition(":")
        tree.kill_router()
        until(lambda: not any(map(is_alive, below)))
        with socket.socket() as sock:
            assert sock.connect_ex((host, int(port))) != 0
        tree.start()
        assert len(tree.processes) >= 7


@asynchronous
async def test_everything_acknowledged_is_there_after_every_process_was_killed_at_once(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as tree:
        with RawLease(tree.address, "w", 0) as lease:
            lease.append(100)
            lsn = lease.durable(100).lsn
        for process in tree.processes:
            try:
                process.kill()
            except psutil.NoSuchProcess:  # it ended with its parent
                continue
        assert tree.router is not None
        tree.router.wait()
        tree.start()
        with RawLease(tree.address, "w", 0) as lease:
            assert lease.granted.base_lsn == lsn + 1
        async with Client.connect(tree.address) as client:
            assert await client.count() == 0


def test_a_server_that_is_stopped_leaves_nothing_to_recover(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as tree:
        below = tree.processes[1:]
        assert tree.stop() == 0
        assert not any(map(is_alive, below))
        assert "dropped the unfinished batch" not in tree.log
