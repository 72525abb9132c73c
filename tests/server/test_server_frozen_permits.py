"""Permits while something is frozen: the worker that holds one, the process it speaks through, the table itself."""
from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from fusee_mp import Client, Limit, shard_of
from fusee_mp.bounds import PERMIT_LEASE_MS
from fusee_mp.shardproc.permits import PermitDesk
from fusee_mp.shardproc.relay import QUEUED_BYTES_MAX, Relay
from fusee_mp.shardproc.running import BEAT_S, RunningTime
from fusee_mp.wire import messages as m
from fusee_mp.wire.frames import decode_frame
from tests.server.loopback import asynchronous, id_on, until
from tests.server.raw import RawLease
from tests.server.tree import Tree, serving

SHARDS = 3
LIMIT = "one"
HOME = shard_of(LIMIT, SHARDS)
THERE, ELSEWHERE = sorted(set(range(SHARDS)) - {HOME})
LEASE_S = PERMIT_LEASE_MS / 1000


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    with serving(tmp_path / "data", shards=SHARDS, revoke_ms=120_000) as tree:  # workers by hand do not ping
        yield tree


def ask(worker: RawLease, ticket: int = 1, name: str = LIMIT) -> None:
    worker.send(m.PermitSay("ask", name, ticket), 0, shard_of(name, SHARDS), worker.epoch)


def answer(worker: RawLease) -> str:
    return worker.expect(m.PermitAnswer)[1].what


@contextmanager
def frozen(*processes: psutil.Process) -> Iterator[None]:
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            process.resume()


def use(client: Client, in_use: int, waiting: int) -> Callable[[], Any]:
    async def look() -> bool:
        return (await client.limit_in_use(LIMIT), await client.limit_waiting(LIMIT)) == (in_use, waiting)

    return look


@asynchronous
async def test_a_permit_stands_as_long_as_its_shards_lease_whoever_is_silent_and_a_lease_longer(tree: Tree) -> None:
    """E1, E12: the three seconds count from the end of the session, in which nobody else could know that its steps had ended."""
    with RawLease(tree.address, "holder", THERE) as holder, RawLease(tree.address, "other", ELSEWHERE) as other:
        async with Client.connect(tree.address) as client:
            await client.limit(LIMIT, Limit(concurrent=1))
            ask(holder)
            assert answer(holder) == "granted"
            with frozen(tree.shard(HOME), tree.shard(THERE)):
                await asyncio.sleep(LEASE_S + 0.2)
            ask(other)
            await until(lambda: use(client, 1, 1)())
            ended_at = time.monotonic()
            holder.close()
            await until(lambda: asked_again(client, other))
            assert time.monotonic() - ended_at >= LEASE_S - 0.05
            assert answer(other) == "granted"


async def asked_again(client: Client, worker: RawLease) -> bool:
    ask(worker)
    return await client.limit_waiting(LIMIT) == 0


@asynchronous
async def test_a_table_that_is_frozen_in_its_grace_still_hears_who_holds_a_permit(tree: Tree) -> None:
    """E18: the grace is time in which the table could be told."""
    with RawLease(tree.address, "holder", THERE) as holder, RawLease(tree.address, "other", ELSEWHERE) as other:
        async with Client.connect(tree.address) as client:
            await client.limit(LIMIT, Limit(concurrent=1))
            ask(holder)
            assert answer(holder) == "granted"
            tree.shard(HOME).kill()
            await until(lambda: use(client, 0, 0)())
            for worker in (holder, other):
                reach_the_table(worker)
            with frozen(tree.shard(HOME)):
                ask(other)
                holder.send(m.PermitSay("renew", LIMIT, tickets=[1]), 0, HOME, holder.epoch)
                await asyncio.sleep(LEASE_S + 0.2)
            assert answer(other) == "retry"
            await until(lambda: use(client, 1, 0)())


def reach_the_table(worker: RawLease) -> None:
    """Its shard's process has a link to the table's again, which answers."""
    worker.sock.settimeout(0.1)
    for _ in range(300):
        ask(worker, 9, id_on(HOME, SHARDS, "undefined"))
        try:
            assert answer(worker) == "undefined"
            break
        except TimeoutError:
            continue
    worker.sock.settimeout(30)


class Beats:
    """A loop whose time the test sets."""

    def __init__(self) -> None:
        self.now, self.due = 100.0, (0.0, lambda: None)

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, call: Callable[[], None]) -> Any:
        self.due = self.now + delay, call
        return SimpleNamespace(cancel=lambda: None)

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.due[0] <= end:
            self.now = max(self.now, self.due[0])
            self.due[1]()
        self.now = end


def test_the_time_in_which_the_loop_did_not_run_hardly_counts() -> None:
    loop = Beats()
    running = RunningTime(loop)  # type: ignore[arg-type]
    loop.run(10.25)
    assert running.ms() == 10_250
    loop.now += 60
    assert running.ms() <= 10_250 + 2_000 * BEAT_S
    loop.run(0)
    before = running.ms()
    loop.run(5)
    assert before <= 10_250 + 2_000 * BEAT_S and running.ms() == pytest.approx(before + 5_000, abs=2)


def test_what_begins_or_ends_a_permit_goes_to_a_peer_that_is_far_behind() -> None:
    """Nobody would say it again; of the rest, whatever is lost is said anew."""
    sent: list[m.Message] = []
    process: Any = SimpleNamespace(shard=THERE, shards=SHARDS, host=SimpleNamespace(limits=SimpleNamespace()))
    process.relay, process.permits = Relay(process), PermitDesk(process)
    link = SimpleNamespace(queued_bytes=QUEUED_BYTES_MAX + 1, send=lambda data: sent.append(m.decode(decode_frame(data))))
    process.relay._links = dict.fromkeys((HOME, ELSEWHERE), link)
    for say in (m.PermitSay("ask", LIMIT, 1), m.PermitSay("renew", LIMIT, tickets=[1]), m.PermitSay("release", LIMIT, 1)):
        process.permits.from_holder(decode_frame(m.encode(say, 0, HOME, 5)))
    for what in ("ask", "granted", "retry"):
        process.permits._answer(HOME << 40 | 5, m.PermitAnswer(what, LIMIT, 1))
    assert [message.what for message in sent] == ["release", "granted"]  # type: ignore[attr-defined]
