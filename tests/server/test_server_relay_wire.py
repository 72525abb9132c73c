"""Leases and the relay of messages, at the level of frames: hand-driven workers on a server of three shards (A17 to A31)."""
from __future__ import annotations

import select
from collections.abc import Iterator
from pathlib import Path

import pytest

from fusee_mp.bounds import APPENDED_BYTES_MAX
from fusee_mp.core.records import Acked, Attributes, Fired, Grant, Signal, encode, frame
from fusee_mp.wire import messages as m
from fusee_mp.wire.frames import Frame
from fusee_mp.wire.preface import ConnectionKind, Preface
from fusee_mp.wire.records import pack_records
from tests.server.raw import Raw, RawClient, RawLease
from tests.server.tree import Tree, serving, until

NOTE = b"anything at all"


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    # Hand-driven workers do not ping: silence is allowed for long.
    with serving(tmp_path_factory.mktemp("relay") / "data", shards=3, revoke_ms=120_000) as tree:
        yield tree


@pytest.fixture
def leases(tree: Tree) -> Iterator[list[RawLease]]:
    """A lease of each of the three shards, given back afterwards."""
    held = [lease(tree, shard) for shard in range(3)]
    yield held
    for one in held:
        one.close()


def lease(tree: Tree, shard: int, worker: str = "") -> RawLease:
    """A lease on a shard whose former holder may have left a moment ago. The worker's name is of this shard alone."""

    def ask() -> RawLease | None:
        try:
            return RawLease(tree.address, worker or f"raw-{shard}", shard)
        except AssertionError as e:
            assert "held by another worker" in str(e)
            return None

    return until(ask)


def test_a_hello_is_welcomed_and_followed_by_distinct_shards(tree: Tree) -> None:
    """A17, A19: WELCOME has the number of shards and the granted features; three workers of one shard each are assigned different ones."""
    sessions = [Raw(tree.address, Preface(ConnectionKind.CONTROL)) for _ in range(3)]
    assigned = []
    for number, session in enumerate(sessions):
        session.send(m.Hello(f"one-{number}", "1", [], 1, 0xFFFF_FFFF), 40 + number)
        first = session.frame()
        assert first is not None and first.request == 40 + number
        welcome = m.decode(first)
        assert isinstance(welcome, m.Welcome)
        assert (welcome.shards, welcome.ping_ms, welcome.revoke_ms) == (3, 1_000, 120_000)
        assert welcome.features == 0  # granted are those that are known, and so far every feature is unconditional
        assigned += session.expect(m.Assign)[1].shards
    assert sorted(assigned) == [0, 1, 2]
    for session in sessions:
        session.close()


def test_a_relayed_message_arrives_as_it_was_sent(leases: list[RawLease]) -> None:
    """A20: (to, from, the sender's epoch, the same bytes); the server does not look into them."""
    a, b, _ = leases
    a.relay(1, 5, NOTE, b"", b"\x00\xff" * 1000)
    to, source, epoch, first, entries = b.delivered()
    assert (to, source, epoch, first) == (1, 0, a.epoch, 5)
    assert entries == pack_records((NOTE, b"", b"\x00\xff" * 1000))


def test_the_relay_is_there_for_a_worker_that_offers_no_feature(tree: Tree) -> None:
    """A18: who may lease may relay."""
    with Raw(tree.address, Preface(ConnectionKind.CONTROL)) as session:
        assert session.ask(m.Hello("raw-0", "1", [], 1, 0), m.Welcome).features == 0
        with lease(tree, session.expect(m.Assign)[1].shards[0], "raw-0") as held:
            held.relay(held.shard, 1, NOTE)
            assert held.delivered()[:4] == (held.shard, held.shard, held.epoch, 1)


def test_a_message_to_the_own_shard_comes_back_through_the_server(leases: list[RawLease]) -> None:
    a = leases[0]
    a.relay(0, 1, NOTE)
    assert a.delivered()[:4] == (0, 0, a.epoch, 1)
    a.acknowledge(0, a.epoch, 1)
    assert a.acknowledged() == (0, a.epoch, 1)


@pytest.mark.parametrize("by", [-1, 1, 1000])
def test_a_message_under_another_epoch_than_the_senders_is_dropped(leases: list[RawLease], by: int) -> None:
    """A21, A31: the next that the target sees is the next valid one."""
    a, b, _ = leases
    a.relay(1, 1, b"stale", epoch=a.epoch + by)
    a.relay(1, 2, NOTE)
    assert b.delivered()[2:4] == (a.epoch, 2)


def test_an_acknowledgment_reaches_the_lease_that_sent_and_no_other(leases: list[RawLease]) -> None:
    """A22: it is dropped unless its epoch is that of the sender's lease."""
    a, b, _ = leases
    a.relay(1, 1, NOTE)
    assert b.delivered()[:4] == (1, 0, a.epoch, 1)
    b.acknowledge(0, a.epoch - 1, 7)
    b.acknowledge(0, a.epoch + 1, 8)
    b.acknowledge(0, a.epoch, 1)
    assert a.acknowledged() == (0, a.epoch, 1)


def test_an_acknowledgment_for_another_shard_ends_the_lease_that_forged_it(tree: Tree) -> None:
    with lease(tree, 0) as a, lease(tree, 1) as b:
        b.send(m.RelayAck(0, 2, 1), shard=1, epoch=a.epoch)
        assert "RELAY_ACK speaks for shard 2" in b.goodbye()


def test_a_relay_to_a_shard_that_does_not_exist_ends_the_lease_with_the_reason(tree: Tree) -> None:
    with lease(tree, 0) as a:
        a.relay(9, 1, NOTE)
        assert "shard 9" in a.goodbye()


def test_messages_for_a_shard_that_nobody_holds_are_kept_and_delivered_in_order(tree: Tree) -> None:
    """A23. What is sent again meanwhile takes the place of what it repeats."""
    with lease(tree, 0) as a, RawClient(tree.address, 0) as client:
        for _ in range(50):
            a.relay(1, 1, NOTE * 10_000)
        a.relay(1, 2, b"second")
        a.append()
        a.durable(1)
        client.ask(m.Call("count", b"\x90"), m.Reply, shard=1)  # went the same way, so they are there
        with lease(tree, 1) as b:
            assert b.delivered()[:4] == (1, 0, a.epoch, 1)
            assert b.delivered()[3] == 2
            a.relay(1, 3, b"third")
            assert b.delivered()[3] == 3


def test_each_grant_has_a_higher_epoch_than_all_before(tree: Tree) -> None:
    """A24."""
    epochs = []
    for number in range(4):
        with lease(tree, 2, f"raw-{number}") as held:
            epochs.append(held.epoch)
    assert epochs == sorted(set(epochs))


def test_a_new_holder_hears_nothing_of_its_predecessors_acknowledgments(tree: Tree) -> None:
    """A25, A26: the next that it sees is the next message, and its own acknowledgment reaches the sender."""
    with lease(tree, 0, "first") as old, lease(tree, 1) as b:
        old.relay(1, 1, NOTE)
        _, _, old_epoch, _, _ = b.delivered()
        old.close()
        with lease(tree, 0, "second") as new:
            assert new.epoch > old_epoch
            b.acknowledge(0, old_epoch, 1)  # of the dead lease
            b.relay(0, 1, b"next")
            frame, deliver = next_of(new)
            assert isinstance(deliver, m.Deliver)
            assert (frame.shard, deliver.source, frame.epoch, deliver.first) == (0, 1, b.epoch, 1)
            assert deliver.entries == pack_records([b"next"])
            new.acknowledge(1, b.epoch, 1)
            assert b.acknowledged() == (1, b.epoch, 1)


def next_of(session: RawLease) -> tuple[Frame, m.Message]:
    """What comes next, whatever it is."""
    frame = session.frame()
    assert frame is not None
    return frame, m.decode(frame)


def test_other_frames_come_between_relayed_ones(leases: list[RawLease]) -> None:
    """A27: a reader skips what it does not wait for."""
    a, b, _ = leases
    for number in range(1, 6):
        b.append()
        b.send(m.Ping(number))
        a.relay(1, number, NOTE)
        came: list[m.Message] = []
        while {type(message) for message in came} != {m.Durable, m.Pong, m.Deliver}:
            came.append(next_of(b)[1])
        assert [message.first for message in came if isinstance(message, m.Deliver)] == [number]
        assert next(message for message in came if isinstance(message, m.Durable)).through == number
    a.relay(1, 6, NOTE)
    b.send(m.Ping(6))
    b.append()
    assert b.delivered()[3] == 6
    assert b.durable(6).through == 6


def test_a_message_sent_again_is_delivered_again_and_acknowledged_again(leases: list[RawLease]) -> None:
    """A29: a sender whose acknowledgment was lost gets another."""
    a, b, _ = leases
    for _ in range(2):
        a.relay(1, 1, NOTE)
        assert b.delivered()[:4] == (1, 0, a.epoch, 1)
        b.acknowledge(0, a.epoch, 1)
        assert a.acknowledged() == (0, a.epoch, 1)


def test_a_shard_that_is_held_refuses_another_worker_and_says_by_whom(leases: list[RawLease], tree: Tree) -> None:
    with Raw(tree.address, Preface(ConnectionKind.WORKER, 1)) as other:
        refused = other.ask(m.Lease("other", "1", 1), m.Error, shard=1)
        assert refused.code == "busy" and "held by another worker" in refused.message
    leases[1].append()
    leases[1].durable(1)


def test_an_append_under_an_old_epoch_is_refused_at_the_door(leases: list[RawLease]) -> None:
    a = leases[0]
    a.append(epoch=a.epoch - 1)
    frame, revoked = a.expect(m.Revoked)
    assert (frame.epoch, revoked.reason) == (a.epoch - 1, f"epoch {a.epoch - 1} has ended")


@pytest.mark.parametrize(("append", "says"), [
    (m.Append(2, 1, b"\x01\x00\x00\x00x"), "append 2 came where 1 was due"),
    (m.Append(1, 2, b"\x01\x00\x00\x00x"), "expected 2 records"),
    (m.Append(1, 1, b"\x05\x00\x00\x00x"), "expected 1 records"),
    (m.Append(1, 0, b"\x01\x00\x00\x00x"), "append 1 has no records"),
    (m.Append(1, 1, b"\x01\x00\x00\x00xy"), "expected 1 records"),
    (m.Append(1, 1, b"\x01\x00\x00\x00x"), "record 0 of append 1 cannot be read"),
    (m.Append(1, 1, frame(b"\x92\xcc\xfe\x01")), "record 0 of append 1 cannot be read"),
    (m.Append(1, 1, frame(encode(Attributes(1, 2, "1", b"[1]")))), "record 0 of append 1 cannot be read"),
    (m.Append(1, 1, frame(encode(Fired(1, 1 << 53, "1")))), "record 0 of append 1 cannot be read: Expected `int` <= 9007199254740991"),
    (m.Append(1, 1, frame(encode(Grant(1, 1 << 41, "w")))), "record 0 of append 1 is a grant, which the shard process writes"),
    (m.Append(1, 1, frame(encode(Acked(3, 1)))), "record 0 of append 1 names shard 3, this server has shards 0 to 2"),
    (m.Append(1, 1, b""), "has a first number, a count and records"),
])
def test_an_append_that_is_none_ends_the_lease_and_leaves_the_log_alone(tree: Tree, append: m.Append, says: str) -> None:
    with lease(tree, 0) as a:
        a.send(append, shard=0, epoch=a.epoch)
        assert says in a.goodbye()
        base = a.granted.base_lsn
    with lease(tree, 0) as b:
        assert b.granted.base_lsn == base + 1  # its own grant and nothing else
        b.append(3)
        assert b.durable(3).lsn == b.granted.base_lsn + 3


def test_a_worker_that_appends_faster_than_the_disk_takes_is_held_back_and_nothing_is_lost(tmp_path: Path) -> None:
    """While nothing is flushed, the shard process takes a bounded part; the rest waits at the worker until the disk goes on."""
    record = frame(encode(Signal(1_000_000, 0, "big", bytes(4 << 20))))
    with serving(tmp_path / "data", shards=1, flush="helper", revoke_ms=120_000) as tree, lease(tree, 0) as fast:
        fast.append()
        fast.durable(1)
        helper = next(child for child in tree.shard(0).children() if child.pid != tree.keeper(0).pid)
        helper.suspend()
        unsent = memoryview(b"".join(m.encode(m.Append(number, 1, record), 0, 0, fast.epoch) for number in range(2, 42)))
        whole = len(unsent)
        while unsent and select.select([], [fast.sock], [], 1.0)[1]:
            unsent = unsent[fast.sock.send(unsent):]
        assert APPENDED_BYTES_MAX < whole - len(unsent) < 3 * APPENDED_BYTES_MAX
        helper.resume()
        fast.sock.sendall(unsent)
        assert fast.durable(41).lsn == fast.granted.base_lsn + 41


def test_a_connection_asks_for_one_lease_of_the_shard_it_is_for(tree: Tree) -> None:
    with lease(tree, 0) as a:
        a.send(m.Lease("raw-0", "1", 0), 9, 0)
        assert "asks for one lease" in a.goodbye()
    with Raw(tree.address, Preface(ConnectionKind.WORKER, 1)) as wrong:
        wrong.send(m.Lease("raw-0", "1", 0), 9, 0)
        assert "this is shard 1, not 0" in wrong.goodbye()
