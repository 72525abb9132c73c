"""What workers are told of one another's workflows, and what the status says of them."""
from __future__ import annotations

import asyncio
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusee_mp.bounds import ELSEWHERE_BYTES_MAX, ELSEWHERE_NAMES_MAX, ROUTER_SESSIONS_MAX, WORKER_NAME_BYTES_MAX, WORKER_WORKFLOWS_MAX
from fusee_mp.router.elsewhere import Elsewhere, Telling
from fusee_mp.router.lease_events import Joined, Left
from fusee_mp.router.seats import Member
from fusee_mp.router.status import server_status
from fusee_mp.wire import messages as m
from tests.router.test_router_leases import table


def test_each_worker_hears_once_what_the_others_have() -> None:
    made = table(1, Joined(1, "a", "i", ("red",)), Joined(2, "b", "i", ("blue", "red")))
    elsewhere = Elsewhere()
    assert list(elsewhere.news(made.members)) == [(1, ["blue"])]
    assert list(elsewhere.news(made.members)) == []
    made.apply(Joined(3, "c", "i", ("green",)), 5)
    assert list(elsewhere.news(made.members)) == [(1, ["blue", "green"]), (2, ["green"]), (3, ["red", "blue"])]
    made.apply(Left(2), 6)
    assert list(elsewhere.news(made.members)) == [(1, ["green"]), (3, ["red"])]


@pytest.mark.parametrize(("size", "told"), [(5, ELSEWHERE_NAMES_MAX), (1000, ELSEWHERE_BYTES_MAX // 1005)])
def test_more_types_than_a_worker_is_told_are_cut_short(size: int, told: int) -> None:
    many = [f"{number:05d}".ljust(size, "x") for number in range(6_000)]
    made = table(1, Joined(1, "a", "i"), *(Joined(2 + at, f"b{at}", "i", tuple(many[at * 1000:(at + 1) * 1000])) for at in range(6)))
    news = dict(Elsewhere().news(made.members))
    assert news[1] == many[:told] and all(len(names) == told for names in news.values())


def test_who_comes_and_goes_with_types_that_others_have_is_no_news_to_them() -> None:
    made, elsewhere = table(1, *(Joined(at, f"w{at}", "i", ("red", "blue")) for at in range(1, 4))), Elsewhere()
    assert list(elsewhere.news(made.members)) == []
    looked: list[str] = []
    for member in made.members.values():
        member.types = Counted(looked, member.types)
    made.apply(Joined(9, "w9", "i", ("blue",)), 1)
    assert list(elsewhere.news(made.members)) == [(9, ["red"])]
    made.apply(Left(1), 1)
    assert list(elsewhere.news(made.members)) == [] and looked == []


class Counted(frozenset[str]):
    """Types that note when they are looked at."""

    def __new__(cls, looked: list[str], names: frozenset[str]) -> Counted:
        made = super().__new__(cls, names)
        made.looked = looked
        return made

    looked: list[str]

    def __contains__(self, name: object) -> bool:
        self.looked.append(str(name))
        return super().__contains__(name)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 5), st.sets(st.sampled_from("abcd"))), max_size=25), st.integers(1, 4))
def test_counted_news_are_those_of_looking_at_all(changes: list[tuple[int, set[str]]], each: int) -> None:
    members: dict[int, Member] = {}
    elsewhere, told = Elsewhere(), dict[int, set[str]]()
    for number, (worker, types) in enumerate(changes):
        if gone := next((session for session, member in members.items() if member.worker == str(worker)), None):
            del members[gone]
        else:
            members[number + 1] = Member(number + 1, str(worker), "i", tuple(types), 0)
        if number % each == 0:
            told = {session: said for session, said in told.items() if session in members}
            told |= {session: set(names) for session, names in elsewhere.news(members)}
            for session, member in members.items():
                others = {name for other in members.values() for name in other.workflows}
                assert told.get(session, set()) == others - member.types


def test_news_are_told_once_for_all_of_a_turn_and_then_not_at_once_again() -> None:
    async def main() -> None:
        told: list[float] = []

        def tell() -> None:
            told.append(loop.time())
            time.sleep(0.01)

        loop = asyncio.get_running_loop()
        telling = Telling(loop, tell)
        for _ in range(100):
            telling.soon()
        await asyncio.sleep(0)
        while len(told) < 2:
            telling.soon()
            await asyncio.sleep(0.001)
        assert told[1] - told[0] >= 0.1
        telling.soon()
        telling.close()

    asyncio.run(main())


@pytest.mark.parametrize(("workers", "shown"), [(9, 113), (ROUTER_SESSIONS_MAX, 0)])
def test_status_says_how_many_workflows_it_left_out_where_they_fit_no_frame(workers: int, shown: int) -> None:
    many = tuple(str(at).ljust(1024, "x") for at in range(WORKER_WORKFLOWS_MAX))
    made = table(1, *(Joined(at, str(at).ljust(WORKER_NAME_BYTES_MAX - 1, "x"), "i", many) for at in range(workers)))
    facts = server_status("s", [], made, "serving", 0)
    assert m.encode(m.Status(facts))
    assert [len(worker["workflows"]) for worker in facts["workers"]] == [shown] * workers
    assert all(worker["workflows_left_out"] == len(many) - shown for worker in facts["workers"])
