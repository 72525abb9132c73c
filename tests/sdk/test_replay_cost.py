"""What a replay costs grows with its journal, and no faster."""
from __future__ import annotations

import sys
import time
from typing import Any

import pytest

from benches.replay import LENGTHS, chain, fan, journal
from fusee_mp import Replayer

SHORT, LONG = 250, 4_000
# Processor time of a busy machine varies; a cost that grew with the square would be 16 times as high.
SLACK = 5


def replay(name: str, length: int) -> None:
    found = Replayer(workflows=[chain, fan]).replay(journal(name, length))
    assert found.ok and found.finished, found.error


def calls_per_record(name: str, length: int) -> float:
    """Calls of functions, Python's own included."""
    count = 0

    def called(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(called)
    try:
        replay(name, length)
    finally:
        sys.setprofile(None)
    return count / length


def time_per_record(name: str, length: int) -> float:
    times = []
    for _ in range(3):
        began = time.thread_time()
        replay(name, length)
        times.append((time.thread_time() - began) / length)
    return min(times)


@pytest.mark.parametrize("name", LENGTHS)
def test_a_replay_makes_as_many_calls_a_record_whatever_the_length_of_its_journal(name: str) -> None:
    """G15: of steps one after the other, and of steps at once."""
    replay(name, SHORT)
    assert calls_per_record(name, LONG) <= 1.2 * calls_per_record(name, SHORT)


@pytest.mark.parametrize("name", LENGTHS)
def test_a_long_replay_takes_as_long_a_record_as_a_short_one(name: str) -> None:
    """G15"""
    replay(name, SHORT)
    assert time_per_record(name, LONG) <= SLACK * time_per_record(name, SHORT)
