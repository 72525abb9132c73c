"""What the tables of step limits say, at the level of frames: three hand-driven workers, each with one of three shards."""
from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fusee_mp import Client, Limit, LimitStatus, shard_of
from fusee_mp.bounds import PERMIT_LEASE_MS
from fusee_mp.core.calls import LimitCall
from fusee_mp.core.permits import LimitSpec
from fusee_mp.wire import messages as m
from tests.server.raw import RawClient, RawLease
from tests.server.tree import Tree, serving, until

SHARDS = 3
HOME = 1
# Limits of the table in shard HOME.
NAMES = (name for name in (f"limit-{number}" for number in itertools.count()) if shard_of(name, SHARDS) == HOME)
# One of them that is not defined: its answer comes behind all that was said before.
FENCE = next(NAMES)


class Session(RawLease):
    """A lease whose holder asks for permits of one limit."""

    limit = ""

    def say(self, what: Any, ticket: int = 0, *, of: str = "", level: int = 0, key: str = "", weight: int = 1, held: Any = ()) -> None:
        say = m.PermitSay(what, of or self.limit, ticket, level, key, weight, list(held))
        self.send(say, shard=self.shard, epoch=self.epoch)

    def heard(self, what: str = "") -> list[m.PermitAnswer]:
        """What the table said to this session so far; with `what`, of this only."""
        self.say("ask", 1, of=FENCE)
        said = []
        while (answer := self.expect(m.PermitAnswer)[1]).what != "undefined":
            said.append(answer)
        assert (answer.name, answer.ticket) == (FENCE, 1)
        return [answer for answer in said if not what or answer.what == what]

    def permit(self, ticket: int, of: str = "", **priority: Any) -> int | None:
        """Ask with this ticket: the one that was granted, if one was."""
        self.say("ask", ticket, of=of, **priority)
        granted = self.heard("granted")
        assert len(granted) < 2 and all(answer.name == (of or self.limit) for answer in granted)
        return granted[0].ticket if granted else None


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    # Hand-driven workers do not ping: silence is allowed for long.
    with serving(tmp_path_factory.mktemp("permits") / "data", shards=SHARDS, revoke_ms=120_000) as tree:
        yield tree


@pytest.fixture
def limit(tree: Tree) -> str:
    """A limit of one permit, not used before."""
    define(tree, {(name := next(NAMES)): Limit(concurrent=1)})
    return name


@pytest.fixture
def sessions(tree: Tree, limit: str) -> Iterator[list[Session]]:
    """A session of each shard."""
    held = [until(lambda shard=shard: session(tree, shard)) for shard in range(SHARDS)]  # type: ignore[misc]
    for one in held:
        one.limit = limit
    yield held
    for one in held:
        one.close()


def session(tree: Tree, shard: int) -> Session | None:
    """A lease on a shard whose former holder may have left a moment ago."""
    try:
        return Session(tree.address, f"raw-{shard}", shard)
    except AssertionError as e:
        assert "held by another worker" in str(e)
        return None


def define(tree: Tree, limits: dict[str, Limit]) -> None:
    async def body() -> None:
        async with Client.connect(tree.address) as client:
            for name, limit in limits.items():
                await client.limit(name, limit)

    asyncio.run(body())


def listed(tree: Tree) -> list[LimitStatus]:
    async def body() -> list[LimitStatus]:
        async with Client.connect(tree.address) as client:
            return await client.list_limits()

    return asyncio.run(body())


def seen(tree: Tree, name: str) -> LimitStatus:
    return next(limit for limit in listed(tree) if limit.name == name)


def test_a_new_server_grants_at_once(tree: Tree, sessions: list[Session], limit: str) -> None:
    """E4, E17: there was no life before in which permits were granted. Who asks again for what it holds has it."""
    for one in sessions:
        one.say("ask", 7)
        one.say("ask", 7)
        assert one.heard() == [m.PermitAnswer("granted", limit, 7)] * 2
        one.say("release", 7)
        one.heard()
    assert seen(tree, limit).in_use == 0


def test_the_first_ask_has_the_place_and_a_grant_names_whichever_is_next(tree: Tree, sessions: list[Session], limit: str) -> None:
    """E6, E7, E9, E15: a permit goes to the session whose ticket is next, and only when it asks."""
    a, b, c = sessions
    assert a.permit(1) == 1
    c.say("release", 1)
    c.heard()
    assert b.permit(1) is None and b.permit(2) is None and b.permit(3, level=-1) is None and c.permit(1) is None
    b.say("ask", 3, level=9)
    assert b.heard() == c.heard("granted") == [] and seen(tree, limit) == LimitStatus(limit, 1, 0.0, 1, 4, 1)
    a.say("release", 1)
    a.heard()
    assert c.permit(1) is None, "it is not next"
    assert b.permit(3) == 1, "asked for one ticket, granted that which came first"
    b.say("release", 1)
    assert b.permit(3) == 2
    b.say("release", 2)
    assert b.heard("granted") == [] and c.permit(1) == 1
    c.say("release", 1)
    c.heard()
    assert b.permit(3) == 3


def test_another_client_of_the_same_session_is_not_granted_what_is_not_its_own(sessions: list[Session]) -> None:
    """E2, E7: the bits above 2**40 name it."""
    a, b, _ = sessions
    first, other = (5 << 40) + 1, (6 << 40) + 1
    assert b.permit(1) == 1 and a.permit(first) is None and a.permit(other) is None
    b.say("release", 1)
    b.heard()
    assert a.permit(other) is None and a.permit(first) == first


def test_levels_go_first_then_fairness_keys_take_turns_over_all_sessions(tree: Tree, sessions: list[Session], limit: str) -> None:
    """E10, D27"""
    a, b, c = sessions
    assert c.permit(100) == 100
    for ticket in range(101, 121):
        assert a.permit(ticket, key="big") is None
    for ticket, key in ((201, "a"), (202, "b"), (203, "a")):
        assert b.permit(ticket, key=key) is None
    assert b.permit(299, level=5) is None
    assert seen(tree, limit).waiting == 24
    assert served(c, 100, [(a, 120, "big"), (b, 203, "a")], 6) == [299, 101, 201, 202, 102, 203]
    assert seen(tree, limit).most == 1


def served(holder: Session, ticket: int, asking: list[tuple[Session, int, str]], count: int) -> list[int]:
    """The tickets that are granted one after the other, each given back as the next is wanted. Those who wait ask in turn."""
    order = []
    for _ in range(count):
        holder.say("release", ticket)
        holder.heard()
        answers = [(one, one.permit(asked, key=key)) for one, asked, key in asking]
        ((holder, ticket),) = [(one, granted) for one, granted in answers if granted is not None]
        order.append(ticket)
    return order


def test_a_key_of_three_times_the_weight_gets_three_times_the_turns(sessions: list[Session]) -> None:
    a, b, c = sessions
    assert c.permit(1) == 1
    for ticket in range(100, 120):
        assert a.permit(ticket, key="heavy", weight=3) is None
    for ticket in range(200, 220):
        assert b.permit(ticket, key="light") is None
    order = served(c, 1, [(a, 119, "heavy"), (b, 219, "light")], 16)
    heavy = [ticket < 200 for ticket in order]
    assert sum(heavy) == 12 and all(2 <= sum(heavy[at:at + 4]) for at in range(13))
    assert sorted(order) == [*range(100, 112), *range(200, 204)]


def test_no_bound_bounds_nothing_and_counts(tree: Tree, sessions: list[Session], limit: str) -> None:
    """E8"""
    define(tree, {limit: Limit()})
    assert all(one.permit(ticket) == ticket for one in sessions for ticket in range(1, 21))
    assert seen(tree, limit).in_use == seen(tree, limit).most == 60


def test_a_permit_outlives_its_session_until_its_lease_ends_and_its_places_do_not(tree: Tree, sessions: list[Session], limit: str) -> None:
    """E1, E5, E11 to E14: a lease is of 3 s from the end of its session, and what has ended stays ended."""
    define(tree, {(other := next(NAMES)): Limit(concurrent=1)})
    a, b, c = sessions
    assert c.permit(30, other) == 30
    c.say("leave")
    assert a.permit(1) == 1 and a.permit(2, level=9) is None and b.permit(20) is None
    time.sleep(0.5)
    renewed_at = time.monotonic()
    a.say("renew", held=[1])
    a.heard()
    a.close()
    until(lambda: seen(tree, limit).waiting == 1)
    assert seen(tree, limit).in_use == 1
    assert until(lambda: b.permit(20)) == 20
    assert time.monotonic() - renewed_at >= PERMIT_LEASE_MS / 1000 - 0.002  # whole ms of another process's clock
    c.say("renew", of=other, held=[30])
    assert c.heard("granted") == [] and seen(tree, other).in_use == 0
    assert b.permit(21, other) == 21


def test_the_next_in_line_is_called_when_a_session_leaves_its_place(sessions: list[Session], limit: str) -> None:
    """E11"""
    a, b, c = sessions
    assert c.permit(1) == 1 and a.permit(1) is None and b.permit(1) is None
    c.say("release", 1)
    assert c.heard() == [] and a.heard() == [m.PermitAnswer("ask", limit, 1)]
    a.close()
    assert b.expect(m.PermitAnswer)[1] == m.PermitAnswer("ask", limit, 1)
    assert b.permit(1) == 1


def test_a_definition_that_cannot_be_is_refused_and_changes_nothing(tree: Tree, sessions: list[Session], limit: str) -> None:
    """E24"""
    with RawClient(tree.address, HOME) as client:
        for number, spec in enumerate((LimitSpec(-1), LimitSpec(1 << 32), LimitSpec(0, -2.0), LimitSpec(0, float("nan")))):
            call = m.Call("limit", msgspec.msgpack.encode(LimitCall(limit, spec)))
            refused = client.ask(call, m.Error, number + 10, HOME)
            assert refused.code == "rejected" and refused.message.startswith("Limit ")
    assert seen(tree, limit).concurrent == 1
    assert sessions[0].permit(1) == 1 and sessions[1].permit(1) is None


@pytest.mark.parametrize("shard", range(SHARDS))
def test_a_priority_that_cannot_be_ends_the_lease_with_the_reason(sessions: list[Session], shard: int) -> None:
    sessions[shard].say("ask", 1, weight=0)
    assert "rejected: weight: expected a whole number" in sessions[shard].goodbye()


def test_after_a_restart_a_table_answers_retry_until_old_permits_have_ended(tree: Tree, sessions: list[Session], limit: str) -> None:
    """E18: also to who held one, and nobody is in the queue meanwhile."""
    a, b = (one for one in sessions if one.shard != HOME)
    assert a.permit(1) == 1
    killed_at = time.monotonic()
    tree.shard(HOME).kill()
    for one in (a, b):
        retry = until(lambda one=one: retries(one))  # type: ignore[misc]
        assert retry.wait_ms <= PERMIT_LEASE_MS + 1
        assert time.monotonic() + retry.wait_ms / 1000 > killed_at + PERMIT_LEASE_MS / 1000
    assert seen(tree, limit) == LimitStatus(limit, 1, 0.0, 0, 0, 0)
    assert until(lambda: retries(b, "granted")).ticket == 1
    assert time.monotonic() - killed_at >= PERMIT_LEASE_MS / 1000


def retries(one: Session, what: str = "retry") -> m.PermitAnswer | None:
    """What is said to an ask, if it is this; what is asked of a table that is not there yet is lost."""
    one.say("ask", 1)
    one.say("ask", 1, of=FENCE)
    one.sock.settimeout(0.2)
    try:
        while (answer := one.expect(m.PermitAnswer)[1]).what != "undefined":
            if answer.what == what:
                return answer
    except TimeoutError:
        pass
    finally:
        one.sock.settimeout(30)
    return None


def test_definitions_outlive_a_server_that_was_killed_and_the_same_again_is_not_written(tmp_path: Path) -> None:
    """E16, E25: on every shard. Damaged ones stop the server, which names them."""
    limits = {f"limit-{number}": Limit(number, number / 3) for number in range(12)}
    with serving(tmp_path / "data", shards=SHARDS) as tree:
        define(tree, limits)
        files = sorted(tree.directory.glob("shard-*/limits"))
        assert len(files) == SHARDS
        written = [os.stat(file).st_ino for file in files]
        define(tree, limits)
        assert [os.stat(file).st_ino for file in files] == written
        for shard in range(SHARDS):
            tree.shard(shard).kill()
        tree.restart()
        assert {one.name: Limit(one.concurrent, one.per_second) for one in listed(tree)} == limits
        tree.stop()
        files[0].write_bytes(files[0].read_bytes()[:-1])
        with pytest.raises(AssertionError, match="expected the ready line"):
            tree.start()
        assert f"damaged limit definitions: {files[0]}" in tree.log
