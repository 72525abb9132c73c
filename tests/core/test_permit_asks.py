"""The worker's side of step limits, alone and against the table."""
from __future__ import annotations

import random

import pytest

from fusee_mp.core.permit_asks import Ask, PermitAsks, Release, Renew, Say
from fusee_mp.core.permits import CLIENT_SHIFT, Granted, LimitSpec, Permits, RetryAt
from fusee_mp.core.waitqueue import DEFAULT, Priority
from fusee_mp.errors import Rejected


def test_tickets_count_up_from_the_workers_number() -> None:
    """E2"""
    asks = PermitAsks(worker=7)
    assert [asks.ticket() for _ in range(2)] == [(7 << CLIENT_SHIFT) + 1, (7 << CLIENT_SHIFT) + 2]


def test_only_the_best_ticket_of_each_limit_is_asked_for_again() -> None:
    """E19, E21"""
    asks = PermitAsks(0)
    for name, ticket in (("a", 9), ("b", 5), ("a", 1), ("a", 3)):
        assert asks.acquire(name, ticket) == [Ask(name, ticket, DEFAULT)]
    assert asks.acquire("a", 9) == []
    assert asks.pass_time(5) == [Ask("a", 9, DEFAULT), Ask("b", 5, DEFAULT)]
    asks.retry_at(9, 20)
    assert asks.pass_time(19) == [Ask("b", 5, DEFAULT)]
    assert asks.pass_time(20) == [Ask("a", 9, DEFAULT), Ask("b", 5, DEFAULT)]
    assert asks.granted(9) and not asks.granted(9)
    assert asks.release(3) == [Release("a", 3)]
    assert asks.pass_time(20) == [Ask("a", 1, DEFAULT), Ask("b", 5, DEFAULT)]
    urgent = Priority(4)
    asks.acquire("b", 7, urgent)
    assert asks.pass_time(20) == [Ask("a", 1, DEFAULT), Ask("b", 7, urgent)]


def test_when_one_is_granted_the_next_is_there_to_be_asked_for() -> None:
    """E19: its time must have come."""
    asks = PermitAsks(0)
    for ticket in (1, 2, 3):
        asks.acquire("a", ticket)
    asks.granted(1)
    assert asks.ask_next("a", 5) == [Ask("a", 2, DEFAULT)]
    asks.retry_at(2, 20)
    assert asks.ask_next("a", 19) == [] and asks.ask_next("a", 20) == [Ask("a", 2, DEFAULT)]
    asks.granted(3)
    asks.granted(2)
    assert asks.ask_next("a", 20) == asks.ask_next("never", 20) == []


def test_what_is_held_is_renewed_every_second() -> None:
    asks = PermitAsks(0)
    asks.acquire("a", 1)
    asks.granted(1)
    asks.acquire("a", 2)
    asks.granted(2)
    asks.acquire("b", 3)
    asks.granted(3)
    says = [Renew("a", [1, 2]), Renew("b", [3])]
    assert asks.pass_time(0) == says
    assert asks.pass_time(999) == []
    assert asks.pass_time(1_000) == says
    assert asks.pass_time(500) == says  # A clock that stepped back must not end the renewals.
    asks.release(1)
    asks.release(3)
    assert asks.pass_time(5_000) == [Renew("a", [2])]
    asks.release(2)
    assert asks.pass_time(10_000) == []


def test_an_answer_that_comes_after_the_release_changes_nothing() -> None:
    asks = PermitAsks(0)
    asks.acquire("a", 1)
    asks.release(1)
    assert not asks.granted(1)
    asks.retry_at(1, 50)
    assert asks.release(1) == [] and asks.in_use("a") == asks.waiting("a") == 0


def test_a_priority_that_cannot_be_leaves_nothing_behind() -> None:
    asks = PermitAsks(0)
    with pytest.raises(Rejected):
        asks.acquire("a", 1, Priority(weight=0))
    assert asks.waiting("a") == 0 and asks.pass_time(0) == []


def test_a_granted_ticket_moves_the_turn() -> None:
    """E20: else the key that came first would be served until it is empty."""
    asks = PermitAsks(0)
    for ticket, key in ((1, "x"), (2, "x"), (3, "y")):
        asks.acquire("a", ticket, Priority(0, key))
    asks.granted(1)
    assert asks.ask_next("a", 0) == [Ask("a", 3, Priority(0, "y"))]


def test_a_withdrawn_ticket_does_not_move_the_turn() -> None:
    """E20"""
    asks = PermitAsks(0)
    for ticket, key in ((1, "x"), (2, "x"), (3, "y")):
        asks.acquire("a", ticket, Priority(0, key))
    asks.release(1)
    assert asks.pass_time(0) == [Ask("a", 2, Priority(0, "x"))]
    asks.acquire("a", 4, Priority(0, "x"))
    asks.granted(2)
    assert [say for say in asks.pass_time(1) if isinstance(say, Ask)] == [Ask("a", 3, Priority(0, "y"))]


@pytest.mark.parametrize("seed", range(20))
def test_workers_and_table_together_serve_everyone_within_the_bound(seed: int) -> None:
    """Three workers over links that lose answers: all steps run, never more than two at once."""
    draw = random.Random(seed)
    permits = Permits()
    permits.define("db", LimitSpec(2, 40.0))
    workers = {session: PermitAsks(session) for session in range(3)}
    running: dict[int, tuple[int, int]] = {}
    left, done, now = 60, 0, 0

    def say(session: int, says: list[Say]) -> None:
        for said in says:
            if isinstance(said, Release):
                permits.release(said.name, session, said.ticket)
            elif isinstance(said, Renew):
                permits.confirm(said.name, session, said.tickets, now_ms=now)
            else:
                answer = permits.acquire(said.name, session, said.ticket, said.priority, now_ms=now)
                if draw.random() < 0.2:
                    continue  # This answer is lost.
                if isinstance(answer, RetryAt):
                    workers[session].retry_at(said.ticket, answer.at_ms)
                elif isinstance(answer, Granted) and workers[session].granted(answer.ticket):
                    running[answer.ticket] = (session, now + draw.randrange(1, 200))

    while done < 60:
        now += 5
        assert now < 120_000, "the steps come to no end"
        for session, asks in workers.items():
            if left and draw.random() < 0.3:
                left -= 1
                say(session, asks.acquire("db", asks.ticket(), Priority(draw.randrange(2), draw.choice("ab"))))
            say(session, asks.pass_time(now))
        assert len(running) <= 2
        for ticket, (session, ends) in list(running.items()):
            if ends <= now:
                del running[ticket]
                done += 1
                say(session, workers[session].release(ticket))
    assert permits.max_in_use("db") <= 2 and all(asks.waiting("db") == asks.in_use("db") == 0 for asks in workers.values())
