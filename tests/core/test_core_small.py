"""Deadlines, waits between attempts, and which shard an ID lives in."""
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusee_mp.core.placement import check_id, id_hash, shard_of
from fusee_mp.core.retry import ONCE, RetrySchedule
from fusee_mp.core.timers import Timers
from fusee_mp.errors import Rejected


@given(st.lists(st.tuples(st.integers(0, 50), st.booleans())), st.integers(0, 60))
def test_timers_come_earliest_first_and_ties_as_they_were_added(added: list[tuple[int, bool]], now: int) -> None:
    timers: Timers[tuple[int, int, bool]] = Timers()
    for number, (due, is_wanted) in enumerate(added):
        timers.add(due, (due, number, is_wanted))
    assert len(timers) == len(added) and timers.next_due == min((due for due, _ in added), default=None)
    timers.keep(lambda key: key[2])
    wanted = sorted((due, number, True) for number, (due, is_wanted) in enumerate(added) if is_wanted)
    assert list(timers.pop_due(now)) == [key for key in wanted if key[0] <= now]
    assert len(timers) == sum(key[0] > now for key in wanted)


def test_a_timer_that_is_added_while_the_due_ones_are_taken_comes_too() -> None:
    timers: Timers[str] = Timers()
    timers.add(5, "a")
    taken = []
    for key in timers.pop_due(10):
        taken.append(key)
        if key == "a":
            timers.add(7, "b")
            timers.add(11, "c")
    assert taken == ["a", "b"] and timers.next_due == 11


def test_the_waits_grow_by_the_factor_up_to_the_maximum() -> None:
    schedule = RetrySchedule(attempts=6, initial_ms=100, maximum_ms=1_000, factor=3.0, jitter=0.0)
    assert [schedule.delay_ms(attempt, 0.5) for attempt in range(1, 8)] == [100, 300, 900, 1_000, 1_000, None, None]


def test_without_a_policy_there_is_one_attempt() -> None:
    assert ONCE.delay_ms(1, 0.5) is None


@given(st.integers(1, (1 << 31) - 1), st.integers(0, 10**9), st.floats(1, 1e300), st.floats(0, 1), st.floats(0, 1, exclude_max=True))
def test_a_wait_is_never_negative_and_within_the_jitter_of_the_maximum(
    attempt: int, initial: int, factor: float, jitter: float, draw: float
) -> None:
    maximum = initial + 1_000
    wait = RetrySchedule(None, initial, maximum, factor, jitter).delay_ms(attempt, draw)
    assert wait is not None and 0 <= wait <= maximum * (1 + jitter) + 1
    assert initial or not wait


@pytest.mark.parametrize(("draw", "wait"), [(0.0, 500), (0.5, 1_000), (0.75, 1_250)])
def test_the_jitter_takes_away_or_adds_its_share(draw: float, wait: int) -> None:
    assert RetrySchedule(3, 1_000, 60_000, 2.0, 0.5).delay_ms(1, draw) == wait


PLACES = {
    "a": (3405396810240292928, [0, 0, 2, 0, 0, 64]),
    "order-1": (4396106474611317029, [0, 1, 2, 1, 5, 293]),
    "ein Auftrag für 日本": (11098795694444728361, [0, 1, 2, 1, 1, 41]),
    "a b/c": (9329719284427991899, [0, 1, 1, 3, 3, 859]),
}


@pytest.mark.parametrize("id", PLACES)
def test_an_id_is_placed_where_it_always_was(id: str) -> None:
    """A2. The rule is part of the data format."""
    hashed, places = PLACES[id]
    assert id_hash(id) == hashed
    assert [shard_of(id, shards) for shards in (1, 2, 3, 4, 8, 1024)] == places


@given(st.text(min_size=1, max_size=60), st.integers(1, 1024))
def test_every_id_has_one_place_among_the_shards(id: str, shards: int) -> None:
    assert 0 <= shard_of(id, shards) < shards and shard_of(id, shards) == id_hash(id) % shards


def test_ids_are_spread_evenly() -> None:
    counts = [0] * 8
    for i in range(8_000):
        counts[shard_of(f"order-{i}", 8)] += 1
    assert min(counts) > 850 and max(counts) < 1_150


@pytest.mark.parametrize(("id", "words"), [
    ("", "1 to 1024"), ("x" * 1025, "1025"), ("é" * 513, "1026"), ("a\0b", "NUL at 1"), ("a\ud800", "lone surrogate at 1"), (7, "not int"),
    (None, "NoneType"), (b"a", "bytes"),
])
def test_what_cannot_be_an_id_is_refused(id: object, words: str) -> None:
    with pytest.raises(Rejected, match=words):
        check_id(id)


def test_ids_may_be_any_other_text() -> None:
    for id in ("x", "x" * 1024, "a b/c\n日本", "é" * 512):
        assert check_id(id) == id


def test_there_is_no_shard_among_none() -> None:
    with pytest.raises(Rejected, match="at least 1"):
        shard_of("a", 0)
