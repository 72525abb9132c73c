"""Restarts, health and options: the parts that only decide."""
from __future__ import annotations

from typing import Any

import pytest

from fusee_mp.errors import Rejected
from fusee_mp.router.health import STARTING_MS, Health, Ticks
from fusee_mp.router.options import ServeOptions, split_address
from fusee_mp.router.restarts import FORGET_MS, GIVE_UP_WINDOW_MS, PAUSE_MOST_MS, Restarts


def test_a_first_death_is_followed_by_a_start_at_once_and_later_ones_by_growing_pauses() -> None:
    restarts, spread = Restarts(), GIVE_UP_WINDOW_MS // 4
    pauses = [restarts.died(number * spread) for number in range(9)]
    assert pauses == [0, 100, 200, 400, 800, 1600, 3200, PAUSE_MOST_MS, PAUSE_MOST_MS]


def test_the_fifth_death_within_half_a_minute_is_the_last() -> None:
    restarts = Restarts()
    assert None not in [restarts.died(at) for at in (0, 1, 2, 3)]
    assert restarts.died(GIVE_UP_WINDOW_MS - 1) is None
    assert restarts.total == 5


def test_deaths_long_ago_are_forgotten() -> None:
    restarts = Restarts()
    for at in range(4):
        restarts.died(at)
    assert restarts.died(FORGET_MS + 4) == 0


def test_a_gap_in_the_ticks_counts_as_one_tick_and_a_half_only() -> None:
    ticks = Ticks(1000, 0)
    assert [ticks.passed(at) for at in (1000, 1900, 60_000, 61_000)] == [1000, 900, 1500, 1000]


def test_a_process_that_does_not_answer_is_to_be_ended() -> None:
    health = Health(10_000)
    health.ready()
    assert [health.tick(5000), health.tick(4999)] == ["", ""]
    assert health.tick(1) == "it has not answered for 10.0 s"
    health.answered({})
    assert health.tick(9999) == ""


def test_a_process_that_is_starting_gets_much_longer() -> None:
    health = Health(10_000)
    assert health.tick(STARTING_MS - 1) == ""
    assert health.tick(1)


def test_a_store_that_does_not_follow_its_log_is_a_stall_and_one_that_moves_is_none() -> None:
    health = Health(10_000)
    health.ready()
    health.answered({"durable_lsn": 9, "applied_lsn": 4})
    health.tick(10_000)
    assert health.is_stalled
    health.answered({"durable_lsn": 9, "applied_lsn": 5})
    assert not health.is_stalled
    health.tick(5_000)
    health.answered({"durable_lsn": 9, "applied_lsn": 9})
    health.tick(10_000)
    assert not health.is_stalled


@pytest.mark.parametrize(("address", "expected"), [
    ("127.0.0.1:7410", ("127.0.0.1", 7410)), ("[::1]:0", ("::1", 0)), (":80", ("", 80)), ("db.example:65535", ("db.example", 65535)),
])
def test_an_address_is_a_host_and_a_port(address: str, expected: tuple[str, int]) -> None:
    assert split_address(address) == expected


@pytest.mark.parametrize("address", ["7410", "host", "host:", "host:-1", "host:65536", "::1:80", "host:٣", ""])
def test_an_address_that_is_none_is_refused_by_name(address: str) -> None:
    with pytest.raises(Rejected, match="expected HOST:PORT") as refused:
        split_address(address)
    assert repr(address) in refused.value.message


@pytest.mark.parametrize(("options", "name"), [
    ({"dir": ""}, "dir"), ({"listen": ()}, "listen"), ({"shards": 1025}, "shards"), ({"shards": -1}, "shards"),
    ({"unix": "/" + "x" * 107}, "unix"), ({"ping_ms": 0}, "--ping"), ({"grace_ms": -1}, "--grace"), ({"revoke_ms": 1999}, "--revoke"),
    ({"segment_bytes": 4096}, "segment_bytes"), ({"flush": "sometimes"}, "flush"), ({"listen": ("nowhere",)}, "listen"),
    ({"dir": "a\0b"}, "a path in UTF-8"), ({"dir": "log\udcff"}, "a path in UTF-8"), ({"unix": "/a\nb"}, "a path in UTF-8"),
])
def test_options_that_cannot_be_are_refused_by_name(options: dict[str, Any], name: str) -> None:
    with pytest.raises(Rejected, match=name):
        ServeOptions(**{"dir": "data", **options})
