"""Calls that wait, each under its own number, within the bounds of all and of each who asks."""
from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusee_mp.errors import ProtocolError
from fusee_mp.shardproc.waiting import Bounds, Waiting


class Call(NamedTuple):
    owner: str
    request: int
    method: str = "start"
    size: int = 10


OF_ALL, OF_ONE = Bounds(5, 60, 3), Bounds(3, 40, 2)
OWNERS, REQUESTS = st.sampled_from("abc"), st.integers(1, 4)
CALLS = st.builds(Call, OWNERS, REQUESTS, st.sampled_from(("start", "count", "result")), st.integers(0, 30))


def test_a_request_whose_number_still_waits_is_no_second_one() -> None:
    waiting: Waiting[Call] = Waiting(OF_ALL, OF_ONE, lambda id, call: None)
    id = waiting.add(Call("a", 1))
    with pytest.raises(ProtocolError, match="request 1 still waits for its answer: give each request a number of its own"):
        waiting.add(Call("a", 1, "count"))
    waiting.add(Call("b", 1))
    assert waiting.take(id) == Call("a", 1) and waiting.take(id) is None
    assert waiting.add(Call("a", 1)) != id


@given(st.lists(st.one_of(CALLS, st.integers(1, 12), OWNERS, st.tuples(OWNERS, REQUESTS)), max_size=60))
def test_what_is_counted_is_what_waits(moves: list[Call | int | str | tuple[str, int]]) -> None:
    dropped: list[tuple[int, Call]] = []
    waiting, kept = Waiting[Call](OF_ALL, OF_ONE, lambda id, call: dropped.append((id, call))), dict[int, Call]()
    for move in moves:
        if isinstance(move, Call):
            _offer(waiting, kept, dropped, move)
        elif isinstance(move, int):
            assert waiting.take(move) == kept.pop(move, None)
        elif isinstance(move, tuple):
            waiting.cancel(*move)
            assert all(kept.pop(id)[:2] == move for id, _ in dropped) and all(call[:2] != move for call in kept.values())
        else:
            waiting.forget(move)
            assert all(kept.pop(id) == call for id, call in dropped)
            assert not any(call.owner == move for call in kept.values())
        dropped.clear()
        assert dict(waiting.items()) == kept and len(waiting) == len(kept)
        assert all(waiting.get(id) == call for id, call in kept.items())


def _offer(waiting: Waiting[Call], kept: dict[int, Call], dropped: list[tuple[int, Call]], call: Call) -> None:
    own = [each for each in kept.values() if each.owner == call.owner]
    assert bool(waiting.lacks_own_room(call)) is _is_full(own, call, OF_ONE)
    if waiting.lacks_own_room(call) or any(each.request == call.request for each in own):
        return
    gone: list[Call] = []
    full = waiting.make_room(call, gone.append)
    for (id, out), told in zip(dropped, gone, strict=True):
        of_it = sum(each.owner == out.owner for each in kept.values())
        assert kept.pop(id) == out == told and out.method != "start" and out.owner != call.owner and of_it > len(own)
    assert bool(full) is _is_full(list(kept.values()), call, OF_ALL)
    if not full:
        kept[waiting.add(call)] = call
        assert waiting.number_of(call.owner) not in {waiting.number_of(each.owner) for each in kept.values() if each.owner != call.owner}


def _is_full(calls: list[Call], call: Call, most: Bounds) -> bool:
    reads = sum(each.method == "count" for each in calls)
    return len(calls) >= most.calls or sum(each.size for each in calls) + call.size > most.bytes or (
        call.method == "count" and reads >= most.reads)
