"""Step limits: the table's rules E1 to E15 and E18 to E25, its order D27, and what must hold whatever is asked of it."""
from __future__ import annotations

import math
import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fusee_mp.bounds import PERMIT_LEASE_MS
from fusee_mp.core.permits import CLIENT_SHIFT, Granted, LimitSpec, Permits, Queued, RetryAt, grace_ms
from fusee_mp.core.waitqueue import Priority
from fusee_mp.errors import Rejected, StorageError


def table(concurrent: int = 1, per_second: float = 0.0) -> Permits:
    permits = Permits()
    assert permits.define("db", LimitSpec(concurrent, per_second))
    return permits


def ask(permits: Permits, session: int, ticket: int, now_ms: int = 0, lease_ms: int = 1000, priority: Priority = Priority()) -> Any:
    return permits.acquire("db", session, ticket, priority, now_ms=now_ms, lease_ms=lease_ms)


def test_a_limit_that_is_not_defined_grants_at_once_and_records_nothing() -> None:
    """E3"""
    permits = Permits()
    assert permits.acquire("db", 1, 7, now_ms=0, uptime_ms=0) == Granted(7)
    assert permits.in_use("db", 0) == permits.waiting("db") == permits.max_in_use("db") == 0
    assert permits.state() == []


def test_a_lease_lasts_three_seconds_unless_renewed() -> None:
    """E1"""
    permits = table()
    assert permits.acquire("db", 1, 1, now_ms=0) == Granted(1)
    assert permits.in_use("db", PERMIT_LEASE_MS - 1) == 1
    assert permits.in_use("db", PERMIT_LEASE_MS) == 0


def test_asking_again_for_a_held_permit_renews_it() -> None:
    """E4, E5"""
    permits = table()
    ask(permits, 1, 1, now_ms=0, lease_ms=100)
    assert ask(permits, 1, 1, now_ms=90, lease_ms=100) == Granted(1)
    assert ask(permits, 2, 2, now_ms=189) == Queued()
    assert ask(permits, 2, 2, now_ms=190) == Granted(2)


def test_a_shorter_lease_among_longer_ones_ends_in_its_own_time() -> None:
    permits = table(2)
    ask(permits, 1, 1, now_ms=0, lease_ms=500)
    ask(permits, 1, 2, now_ms=1, lease_ms=10)
    assert ask(permits, 1, 3, now_ms=10) == Queued()
    assert ask(permits, 1, 3, now_ms=11) == Granted(3)


def test_the_first_ask_decides_the_place_in_the_queue() -> None:
    """E6"""
    permits = table()
    ask(permits, 1, 1)
    ask(permits, 1, 2)
    ask(permits, 1, 3, priority=Priority(level=-1))
    ask(permits, 1, 3, priority=Priority(level=9))
    permits.release("db", 1, 1)
    assert ask(permits, 1, 3) == Granted(2)


def test_default_priority_keeps_the_order_of_arrival() -> None:
    """E9"""
    permits = table()
    assert ask(permits, 1, 1) == Granted(1)
    assert ask(permits, 1, 2) == Queued()
    assert ask(permits, 1, 3) == Queued()
    permits.release("db", 1, 1)
    assert ask(permits, 1, 3) == Granted(2)
    permits.release("db", 1, 2)
    assert ask(permits, 1, 3) == Granted(3)


def test_a_permit_goes_only_to_the_session_and_client_that_is_next() -> None:
    """E7"""
    permits = table()
    first, other = (5 << CLIENT_SHIFT) + 1, (6 << CLIENT_SHIFT) + 1
    ask(permits, 9, 1)
    ask(permits, 1, first)
    ask(permits, 1, other)
    ask(permits, 2, 2)
    permits.release("db", 9, 1)
    assert ask(permits, 2, 2) == Queued()
    assert ask(permits, 1, other) == Queued()
    assert ask(permits, 1, first) == Granted(first)


def test_zero_concurrent_bounds_nothing_but_counts() -> None:
    """E8"""
    permits = table(0)
    assert all(ask(permits, 1, ticket) == Granted(ticket) for ticket in range(100))
    assert permits.in_use("db", 0) == permits.max_in_use("db") == 100


def test_levels_go_first_then_fairness_keys_take_turns_across_sessions() -> None:
    """E10, D27"""
    permits = table()
    ask(permits, 1, 100)
    for ticket in range(101, 121):
        ask(permits, 1, ticket, priority=Priority(0, "big"))
    for ticket, key in ((201, "a"), (202, "b"), (203, "a")):
        ask(permits, 2, ticket, priority=Priority(0, key))
    ask(permits, 2, 299, priority=Priority(5))
    assert permits.waiting("db") == 24
    held, served = (1, 100), []
    for _ in range(6):
        permits.release("db", *held)
        answers = ((session, ask(permits, session, ring)) for session, ring in ((1, 120), (2, 203)))
        held = next((session, answer.ticket) for session, answer in answers if isinstance(answer, Granted))
        served.append(held[1])
    assert served == [299, 101, 201, 202, 102, 203]
    assert permits.max_in_use("db") == 1


def test_a_session_that_left_keeps_its_permits_but_not_its_places() -> None:
    """E11, E12"""
    permits = table()
    ask(permits, 1, 1, lease_ms=100)
    ask(permits, 1, 2)
    permits.disconnected(1)
    assert permits.waiting("db") == 0
    assert ask(permits, 2, 3, now_ms=50) == Queued()
    assert ask(permits, 2, 3, now_ms=99) == Queued()
    assert ask(permits, 2, 3, now_ms=101) == Granted(3)


def test_renewing_extends_what_the_session_still_holds() -> None:
    """E13"""
    permits = table()
    ask(permits, 1, 1, now_ms=100, lease_ms=100)
    permits.renew(1, now_ms=150, lease_ms=100)
    assert ask(permits, 2, 2, now_ms=240) == Queued()
    permits.release("db", 1, 1)
    assert ask(permits, 2, 2, now_ms=241) == Granted(2)


def test_renewing_is_for_every_permit_of_the_session_and_for_no_other() -> None:
    """E13: under whatever limit."""
    permits = table(3)
    permits.define("other", LimitSpec(1))
    for session, ticket in ((1, 1), (1, 2), (2, 3)):
        ask(permits, session, ticket, lease_ms=100)
    permits.acquire("other", 1, 4, now_ms=0, lease_ms=100)
    permits.renew(1, now_ms=50, lease_ms=100)
    assert [permits.in_use(name, 149) for name in ("db", "other")] == [2, 1]
    assert [permits.in_use(name, 150) for name in ("db", "other")] == [0, 0]


def test_an_ended_permit_cannot_be_revived() -> None:
    """E14, E5"""
    permits = table()
    ask(permits, 1, 1, now_ms=0, lease_ms=10)
    permits.renew(1, now_ms=10, lease_ms=10)
    assert permits.in_use("db", 10) == 0
    assert ask(permits, 2, 2, now_ms=10) == Granted(2)


def test_a_session_that_says_what_it_holds_renews_that_alone() -> None:
    """E14: a grant of which the session did not hear ends; what has ended is not revived by saying that it is held."""
    permits = table(2)
    ask(permits, 1, 1, now_ms=0, lease_ms=10)
    ask(permits, 1, 2, now_ms=0, lease_ms=10)
    permits.confirm("db", 1, [1, 7], now_ms=5, lease_ms=10)
    assert permits.in_use("db", 14) == 1
    permits.confirm("db", 1, [1], now_ms=15, lease_ms=10)
    permits.confirm("unheard", 1, [1], now_ms=15)
    assert permits.in_use("db", 15) == 0


def test_what_is_still_held_after_a_restart_is_taken_over_within_the_grace() -> None:
    permits = table()
    permits.confirm("db", 1, [7], now_ms=0, uptime_ms=PERMIT_LEASE_MS)
    assert permits.acquire("db", 2, 8, now_ms=1, uptime_ms=PERMIT_LEASE_MS + 1) == Queued()
    permits.confirm("db", 3, [9], now_ms=1, uptime_ms=PERMIT_LEASE_MS + 1)
    assert permits.in_use("db", 1) == 1
    assert permits.acquire("db", 1, 7, now_ms=2) == Granted(7)
    permits.release("db", 1, 7)
    assert permits.acquire("db", 2, 8, now_ms=3) == Granted(8)


def test_another_session_cannot_release_a_permit() -> None:
    """E15"""
    permits = table()
    ask(permits, 11, 1)
    permits.release("db", 12, 1)
    assert ask(permits, 12, 1) == Queued()


def test_after_a_restart_nothing_is_granted_until_old_permits_have_ended() -> None:
    """E18"""
    permits = table()
    for uptime in (0, 1, PERMIT_LEASE_MS):
        answer = permits.acquire("db", 1, 1, now_ms=50, uptime_ms=uptime)
        assert answer == RetryAt(50 + PERMIT_LEASE_MS - uptime + 1)
    assert permits.waiting("db") == 0
    assert permits.acquire("db", 1, 1, now_ms=50, uptime_ms=PERMIT_LEASE_MS + 1) == Granted(1)
    assert permits.acquire("db", 1, 1, now_ms=51, uptime_ms=0) == RetryAt(51 + PERMIT_LEASE_MS + 1)


def test_the_grace_of_a_slow_rate_is_the_time_of_one_token() -> None:
    """E18"""
    assert grace_ms(LimitSpec(1, 0.1)) == 10_000
    assert grace_ms(LimitSpec(1, 3.0)) == PERMIT_LEASE_MS
    assert grace_ms(LimitSpec(1, 0.3)) == 3_334


def test_a_rate_grants_its_burst_and_then_one_token_at_a_time() -> None:
    permits = table(0, 2.0)
    assert [ask(permits, 1, ticket) for ticket in (1, 2)] == [Granted(1), Granted(2)]
    assert ask(permits, 1, 3) == RetryAt(500)
    assert ask(permits, 1, 3, now_ms=250) == RetryAt(500)
    assert ask(permits, 1, 3, now_ms=500) == Granted(3)
    assert ask(permits, 1, 4, now_ms=100) == RetryAt(600)  # A clock that steps back adds nothing.
    assert ask(permits, 1, 4, now_ms=1000) == Granted(4)
    assert ask(permits, 1, 5, now_ms=1000) == RetryAt(1500)


def test_a_rate_below_one_still_holds_one_token() -> None:
    permits = table(0, 0.5)
    assert ask(permits, 1, 1) == Granted(1)
    assert ask(permits, 1, 2, now_ms=1_000) == RetryAt(2_000)
    assert ask(permits, 1, 2, now_ms=900_000) == Granted(2)
    assert ask(permits, 1, 3, now_ms=900_000) == RetryAt(902_000)


def test_a_full_limit_does_not_spend_a_token() -> None:
    permits = table(1, 1.0)
    ask(permits, 1, 1, lease_ms=10_000)
    assert ask(permits, 1, 2, now_ms=5_000) == Queued()
    permits.release("db", 1, 1)
    assert ask(permits, 1, 2, now_ms=5_000) == Granted(2)


@pytest.mark.parametrize("spec", [
    LimitSpec(-1), LimitSpec(1 << 32), LimitSpec(True), LimitSpec(1.5), LimitSpec(0, -1.0),  # type: ignore[arg-type]
    LimitSpec(0, math.nan), LimitSpec(0, math.inf), LimitSpec(0, 5e-324), LimitSpec(0, "2"),  # type: ignore[arg-type]
])
def test_a_spec_that_cannot_be_is_never_applied_and_reported(spec: LimitSpec) -> None:
    """E24"""
    permits = table(3)
    assert permits.define("db", spec) is False
    assert permits.spec("db") == LimitSpec(3)
    assert permits.failure is not None and '"db"' in permits.failure and "expected" in permits.failure
    with pytest.raises(Rejected, match="expected"):
        spec.check()


@pytest.mark.parametrize("spec", [LimitSpec(), LimitSpec(0, 0), LimitSpec(1, 1e9), LimitSpec((1 << 32) - 1, 1e-6)])
def test_a_spec_that_can_be_is_taken(spec: LimitSpec) -> None:
    permits = Permits()
    assert permits.define("x", spec.check())
    assert permits.failure is None


def test_defining_the_same_again_is_no_news_and_keeps_what_is_held() -> None:
    """E25"""
    permits = table(1)
    ask(permits, 1, 1)
    assert permits.define("db", LimitSpec(1)) is False
    assert permits.define("db", LimitSpec(2)) is True
    assert permits.in_use("db", 0) == 1
    assert ask(permits, 1, 2) == Granted(2)
    assert ask(permits, 1, 3) == Queued()


@pytest.mark.parametrize("priority", [Priority(1 << 31), Priority(weight=0), Priority(weight=1 << 32), Priority(fairness=1)])  # type: ignore[arg-type]
def test_a_priority_that_cannot_be_is_refused_and_nothing_waits(priority: Priority) -> None:
    permits = table()
    with pytest.raises(Rejected, match="expected"):
        ask(permits, 1, 1, priority=priority)
    assert permits.waiting("db") == 0


def busy() -> Permits:
    permits = table(2, 3.7)
    permits.define("other", LimitSpec(0, 1 / 3))
    for ticket in range(1, 9):
        ask(permits, ticket % 3, ticket, now_ms=ticket * 17, priority=Priority(ticket % 2, "ab"[ticket % 2], ticket))
    permits.acquire("other", 1, 50, now_ms=100)
    return permits


def test_a_saved_table_is_the_same_table_bit_for_bit() -> None:
    """E23"""
    state = busy().state()
    for there_and_back in (msgspec.json, msgspec.msgpack):
        again = Permits.load(there_and_back.decode(there_and_back.encode(state)))
        assert again.state() == state
    assert [limit["name"] for limit in state] == ["db", "other"]
    assert state[0]["per_second"] == int.from_bytes(struct.pack(">d", 3.7)) and isinstance(state[0]["balance"], int)


def test_held_permits_are_saved_in_order_whatever_the_order_they_were_granted_in() -> None:
    """E23"""
    permits = table(0)
    for session, ticket in ((2, 1), (1, 9), (1, 3), (0, 7)):
        ask(permits, session, ticket, lease_ms=session + 1)
    assert permits.state()[0]["held"] == [[0, 7, 1], [1, 3, 2], [1, 9, 2], [2, 1, 3]]


def test_a_saved_table_serves_on_in_the_same_order() -> None:
    """E23"""
    left, right = busy(), Permits.load(busy().state())
    for now in range(200, 20_000, 50):
        for session in range(3):
            answer = ask(left, session, 1000 + session, now_ms=now, lease_ms=40)
            assert answer == ask(right, session, 1000 + session, now_ms=now, lease_ms=40)
    assert left.state() == right.state()


@pytest.mark.parametrize(("field", "value", "complaint"), [
    ("concurrent", -1, "concurrent"), ("per_second", 0x7FF8 << 48, "per_second"), ("per_second", 1 << 64, "64 bits"),
    ("balance", 0xBFF0 << 48, "balance"), ("balance", 0x7FF0 << 48, "balance"), ("balance", -1, "64 bits"),
    ("held", [[1, 1, 5], [1, 1, 6]], "two permits"), ("max_seen", 0, "never more"), ("name", 3, "str"),
    ("waiting", [[[1, 9], 0, "", 1], [[1, 9], 0, "", 1]], "twice"), ("waiting", [[[1, 9], 0, "", 0]], "weight"),
    ("waiting", [[[1, 2], 0, "", 1]], "both waits and holds"),
    ("ahead", [[0, "a", -1]], "behind"), ("ahead", [[77, "a", 1]], "nobody waits"), ("extra", 1, "extra"),
])
def test_a_state_that_no_table_wrote_is_refused(field: str, value: object, complaint: str) -> None:
    """E23"""
    state = busy().state()
    state[0]["held"], state[0]["max_seen"] = [[1, 2, 5]], 2
    Permits.load(state)
    state[0][field] = value
    with pytest.raises(StorageError, match=complaint):
        Permits.load(state)


def test_two_limits_of_one_name_are_refused() -> None:
    """E23"""
    state = busy().state()
    with pytest.raises(StorageError, match="twice"):
        Permits.load(state + state[:1])


class Table(RuleBasedStateMachine):
    """Random asks of three sessions against what is right: never too many, leases that end exactly, an order that is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.permits = table(2)
        self.now = 0
        self.held: dict[tuple[int, int], int] = {}
        self.waiting: set[tuple[int, int]] = set()

    def live(self) -> set[tuple[int, int]]:
        return {holder for holder, ends in self.held.items() if ends > self.now}

    @rule(session=st.integers(0, 2), ticket=st.integers(1, 6), lease=st.integers(1, 50), key=st.sampled_from("abc"),
          level=st.integers(0, 1))
    def ask(self, session: int, ticket: int, lease: int, key: str, level: int) -> None:
        before = self.live()
        answer = ask(self.permits, session, ticket, self.now, lease, Priority(level, key))
        if (session, ticket) in before:
            assert answer == Granted(ticket)
        else:
            self.waiting.add((session, ticket))
        if isinstance(answer, Granted):
            self.waiting.discard((session, answer.ticket))
            self.held[session, answer.ticket] = self.now + lease

    @rule(session=st.integers(0, 2), ticket=st.integers(1, 6))
    def release(self, session: int, ticket: int) -> None:
        self.permits.release("db", session, ticket)
        self.held.pop((session, ticket), None)
        self.waiting.discard((session, ticket))

    @rule(session=st.integers(0, 2), lease=st.integers(1, 50))
    def renew(self, session: int, lease: int) -> None:
        self.permits.renew(session, now_ms=self.now, lease_ms=lease)
        self.held.update({holder: self.now + lease for holder in self.live() if holder[0] == session})

    @rule(session=st.integers(0, 2))
    def disconnect(self, session: int) -> None:
        self.permits.disconnected(session)
        self.waiting = {holder for holder in self.waiting if holder[0] != session}

    @rule(ms=st.integers(1, 60))
    def pass_time(self, ms: int) -> None:
        self.now += ms

    @rule()
    def save_and_load(self) -> None:
        self.permits = Permits.load(self.permits.state())

    @precondition(lambda self: self.waiting)
    @rule()
    def everyone_who_waits_is_served_within_a_round(self) -> None:
        asking = {session for session, _ in self.waiting}
        for _ in range(len(self.waiting)):
            self.now += 60  # All leases end.
            answers = [(s, ask(self.permits, s, next(t for w, t in self.waiting if w == s), self.now, 50))
                       for s in asking if any(w == s for w, _ in self.waiting)]
            granted = [(s, answer.ticket) for s, answer in answers if isinstance(answer, Granted)]
            assert granted or not self.waiting
            self.waiting -= set(granted)
            self.held.update(dict.fromkeys(granted, self.now + 50))
        assert not self.waiting and self.permits.waiting("db") == 0

    @invariant()
    def never_too_many_and_leases_end_exactly(self) -> None:
        assert len(self.live()) <= 2
        assert self.permits.in_use("db", self.now) == len(self.live())
        assert self.permits.waiting("db") == len(self.waiting)


TestTable = Table.TestCase
TestTable.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(1, 5)), max_size=60), st.floats(0.1, 50))
@settings(deadline=None, max_examples=100)
def test_a_rate_is_never_exceeded_over_any_stretch_of_time(asks: list[tuple[int, int]], rate: float) -> None:
    permits, now, times = table(0, rate), 0, []
    for ticket, (wait, count) in enumerate(asks):
        now += wait
        for extra in range(count):
            if isinstance(ask(permits, 1, ticket * 10 + extra, now), Granted):
                times.append(now)
    for first in range(len(times)):
        for last in range(first, len(times)):
            assert last - first + 1 <= max(rate, 1) + (times[last] - times[first]) * rate / 1000 + 1e-6
