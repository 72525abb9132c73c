"""The order in which waiting tickets are served: levels, fair turns by weight, arrival; and a queue that comes back as it was."""
from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusee_mp.core.waitqueue import Priority, WaitQueue
from fusee_mp.errors import StorageError


def served(queue: WaitQueue[str]) -> list[str]:
    return list(iter(queue.pop_next, None))


def fill(*entries: tuple[str, int, str, int]) -> WaitQueue[str]:
    queue: WaitQueue[str] = WaitQueue()
    for ticket, level, key, weight in entries:
        queue.push(ticket, Priority(level, key, weight))
    return queue


def test_the_order_of_one_permit_is_priority_then_turns() -> None:
    queue = fill(*((f"big{n}", 0, "big", 1) for n in range(6)), ("a0", 0, "a", 1), ("b0", 0, "b", 1), ("a1", 0, "a", 1),
                 ("b1", 0, "b", 1), ("urgent", 5, "", 1))
    assert served(queue) == ["urgent", "big0", "a0", "b0", "big1", "a1", "b1", "big2", "big3", "big4", "big5"]


def test_a_heavier_key_gets_more_turns_evenly_spread() -> None:
    queue = fill(*((f"h{n}", 0, "h", 3) for n in range(30)), *((f"l{n}", 0, "l", 1) for n in range(10)))
    order = "".join(ticket[0] for ticket in served(queue))
    assert order[:40].count("h") == 30
    assert all(order[at:at + 4].count("l") <= 2 and "l" in order[at:at + 5] for at in range(0, 35))


def test_a_withdrawal_does_not_move_the_turn_on() -> None:
    queue = fill(("a0", 0, "a", 1), ("a1", 0, "a", 1), ("b0", 0, "b", 1), ("b1", 0, "b", 1))
    queue.remove("a0")
    queue.remove("never there")
    assert served(queue) == ["a1", "b0", "b1"]


def test_a_key_that_comes_back_every_time_does_not_starve_the_others() -> None:
    queue = fill(("big0", 0, "big", 1), ("big1", 0, "big", 1), ("big2", 0, "big", 1), ("one", 0, "one", 1))
    order = []
    for n in range(6):
        ticket = queue.pop_next()
        assert ticket is not None
        order.append(ticket[:3])
        if ticket.startswith("one"):
            queue.push(f"one{n}", Priority(0, "one"))
    assert order == ["big", "one", "big", "one", "big", "one"]


def test_a_key_that_waited_nowhere_earns_no_credit() -> None:
    queue = fill(*((f"a{n}", 0, "a", 1) for n in range(20)))
    for _ in range(10):
        queue.pop_next()
    for n in range(10):
        queue.push(f"b{n}", Priority(0, "b"))
    assert [ticket[0] for ticket in served(queue)[:6]] in (list("bababa"), list("ababab"))


class Model:
    """The rules once more, as slowly and plainly as can be."""

    def __init__(self) -> None:
        self.waiting: list[tuple[int, int, str, int]] = []  # (ticket, level, key, weight) in order of arrival
        self.turns: dict[tuple[int, str], int] = {}
        self.last: dict[int, int] = {}

    def push(self, ticket: int, level: int, key: str, weight: int) -> None:
        if any(entry[0] == ticket for entry in self.waiting):
            return
        if not any(entry[1:3] == (level, key) for entry in self.waiting):
            last = self.last.get(level, 0)
            self.turns[level, key] = max(self.turns.get((level, key), last), last)
        self.waiting.append((ticket, level, key, weight))

    def next(self) -> tuple[int, int, str, int] | None:
        order = [(-level, self.turns[level, key], at) for at, (_, level, key, _) in enumerate(self.waiting)]
        return self.waiting[min(order)[2]] if order else None

    def pop_next(self) -> int | None:
        entry = self.next()
        if entry is None:
            return None
        ticket, level, key, weight = entry
        self.last[level] = self.turns[level, key]
        self.turns[level, key] += (1 << 32) // weight
        self.remove(ticket)
        return ticket

    def remove(self, ticket: int) -> None:
        self.waiting = [entry for entry in self.waiting if entry[0] != ticket]
        for level in {level for level, _ in self.turns} | set(self.last):
            if not any(entry[1] == level for entry in self.waiting):
                self.last.pop(level, None)
                self.turns = {place: turn for place, turn in self.turns.items() if place[0] != level}


OPERATIONS = st.lists(st.one_of(
    st.tuples(st.just("push"), st.integers(0, 15), st.integers(0, 1), st.sampled_from("abc"), st.integers(1, 4)),
    st.tuples(st.just("pop")), st.tuples(st.just("pop")), st.tuples(st.just("remove"), st.integers(0, 15)), st.tuples(st.just("save")),
), max_size=150)


@given(OPERATIONS)
@settings(deadline=None, max_examples=200)
def test_the_queue_serves_as_the_plain_rules_say(operations: list[tuple[object, ...]]) -> None:
    queue: WaitQueue[int] = WaitQueue()
    model = Model()
    for name, *rest in operations:
        if name == "push":
            ticket, level, key, weight = rest
            queue.push(ticket, Priority(level, key, weight))  # type: ignore[arg-type]
            model.push(ticket, level, key, weight)  # type: ignore[arg-type]
        elif name == "pop":
            assert queue.pop_next() == model.pop_next()
        elif name == "remove":
            queue.remove(rest[0])  # type: ignore[arg-type]
            model.remove(rest[0])  # type: ignore[arg-type]
        else:
            state = queue.state(int)
            queue = WaitQueue.load(((ticket, Priority(*place)) for ticket, *place in state["waiting"]), map(tuple, state["ahead"]))
            assert queue.state(int) == state
        assert len(queue) == len(model.waiting)
        expected = model.next()
        assert queue.next() == (None if expected is None else expected[0])


@given(st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 50), min_size=2), st.integers(1, 300))
@settings(deadline=None, max_examples=60)
def test_keys_that_keep_waiting_get_turns_in_proportion_to_their_weights(weights: dict[str, int], turns: int) -> None:
    queue: WaitQueue[str] = WaitQueue()
    for key, weight in weights.items():
        for n in range(turns):
            queue.push(f"{key}{n}", Priority(0, key, weight))
    counts = dict.fromkeys(weights, 0)
    for _ in range(turns):
        ticket = queue.pop_next()
        assert ticket is not None
        counts[ticket[0]] += 1
    shares = [(count / weights[key], 1 / weights[key]) for key, count in counts.items()]
    for share, own in shares:
        for other, others in shares:
            assert abs(share - other) <= max(own, others) + 1e-6


def test_a_long_life_leaves_no_trace_of_keys_that_went() -> None:
    queue = fill(*((f"stay{n}", 0, "stay", 1) for n in range(3)))
    for n in range(5_000):
        queue.push(f"t{n}", Priority(0, f"key{n}"))
        queue.push(f"stay-{n}", Priority(0, "stay"))
        queue.pop_next()
        queue.pop_next()
        queue.push(f"w{n}", Priority(n % 3 - 1, "fickle"))
        queue.remove(f"w{n}")
    state = queue.state(str)
    assert len(state["waiting"]) == len(queue) == 3
    assert len(state["ahead"]) < 10
    assert len(queue._heap) < 200 and sum(len(level.idle) + len(level.lanes) for level in queue._levels.values()) < 200


@pytest.mark.parametrize(("waiting", "ahead"), [
    ([(1, Priority()), (1, Priority())], []), ([(1, Priority())], [(0, "", -1)]),
    ([(1, Priority())], [(0, "", 1), (0, "", 2)]), ([], [(0, "a", 1)]),
])
def test_a_state_that_no_queue_wrote_is_refused(waiting: list[tuple[int, Priority]], ahead: list[tuple[int, str, int]]) -> None:
    with pytest.raises(StorageError, match="saved wait queue"):
        WaitQueue.load(waiting, ahead)
