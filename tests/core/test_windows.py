"""Debounce and batch windows: D36 and D38 to D44 as far as they need no server, and what holds for any events."""
from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusee_mp.bounds import PAYLOAD_BYTES_MAX, WINDOW_EVENT_IDS_KEEP_MS
from fusee_mp.core.windows import BatchRule, Closed, DebounceRule, Effect, Extended, Opened, Place, Windows
from fusee_mp.errors import Rejected, StorageError

QUIET = DebounceRule(80, 200)
THREE = BatchRule(3, 200)


def inputs(effects: list[Effect] | list[Closed]) -> list[list[bytes]]:
    return [effect.inputs for effect in effects if isinstance(effect, Closed)]


def debounce(windows: Windows, now_ms: int, input: bytes = b"1", key: str = "cart", event_id: str | None = None,
             rule: DebounceRule = QUIET) -> tuple[str, list[Effect]]:
    return windows.add("w", key, rule, input, event_id, now_ms=now_ms)


def batch(windows: Windows, now_ms: int, input: bytes, event_id: str | None = None, rule: BatchRule = THREE) -> tuple[str, list[Effect]]:
    return windows.add("w", "cart", rule, input, event_id, now_ms=now_ms)


def test_starts_within_a_window_share_one_run_that_gets_the_last_input() -> None:
    """D36"""
    windows = Windows()
    run_id, effects = debounce(windows, 1_000, b"1")
    place = Place("debounce", "w", "cart")
    assert run_id == "cart@1000" == windows.run_id("w", "cart", "debounce")
    assert effects == [Opened(place, run_id, 1_080)]
    assert debounce(windows, 1_050, b"2") == (run_id, [Extended(place, run_id, 1_130)])
    assert debounce(windows, 1_060, b"9", key="other")[0] == "other@1060"
    assert windows.pass_time(1_129) == []
    assert windows.pass_time(1_130) == [Closed(place, run_id, [b"2"])]
    assert windows.next_due == 1_140
    assert inputs(windows.pass_time(9_999)) == [[b"9"]] and windows.next_due is None and len(windows) == 0


def test_after_a_window_closed_the_next_start_opens_another() -> None:
    """D38"""
    windows = Windows()
    first, _ = debounce(windows, 0)
    windows.pass_time(80)
    assert debounce(windows, 80)[0] == "cart@80" != first


def test_max_wait_ends_a_window_that_is_extended_for_ever() -> None:
    """D39"""
    windows, closed = Windows(), []
    for now in range(0, 700, 20):
        closed += inputs(windows.pass_time(now))
        closed += inputs(debounce(windows, now, str(now).encode())[1])
    assert closed == [[b"180"], [b"380"], [b"580"]]


def test_a_window_without_max_wait_is_extended_for_as_long_as_events_come() -> None:
    windows = Windows()
    for now in range(0, 5_000, 79):
        assert inputs(debounce(windows, now, rule=DebounceRule(80))[1]) == [] == windows.pass_time(now)


def test_an_event_that_comes_late_belongs_to_the_next_window() -> None:
    windows = Windows()
    first, _ = debounce(windows, 0, b"1")
    second, effects = debounce(windows, 500, b"2")  # Nobody has passed the time meanwhile.
    assert inputs(effects) == [[b"1"]] and second != first
    assert inputs(windows.pass_time(580)) == [[b"2"]]


def test_batches_close_at_their_size_and_the_last_by_its_wait() -> None:
    """D40"""
    windows, closed = Windows(), []
    for n in range(7):
        closed += inputs(batch(windows, n, str(n).encode())[1])
    assert closed == [[b"0", b"1", b"2"], [b"3", b"4", b"5"]]
    assert windows.next_due is not None and windows.next_due <= 206
    assert inputs(windows.pass_time(205)) == [] and inputs(windows.pass_time(206)) == [[b"6"]]


def test_windows_that_open_in_one_millisecond_have_runs_of_their_own() -> None:
    windows = Windows()
    ids = [batch(windows, 5, b"0", rule=BatchRule(1, 10))[0] for _ in range(4)]
    assert ids == ["cart@5", "cart@6", "cart@7", "cart@8"]
    assert debounce(windows, 5)[0] == "cart@9"
    assert windows.add("another", "cart", QUIET, b"", now_ms=5)[0] == "cart@10"


def test_a_batch_of_one_opens_and_closes_at_once() -> None:
    _, effects = batch(Windows(), 5, b"0", rule=BatchRule(1, 10))
    assert [type(effect) for effect in effects] == [Opened, Closed]


def test_a_repeated_event_joins_once() -> None:
    """D41"""
    windows = Windows()
    run_id, _ = batch(windows, 0, b"6", "e1")
    assert batch(windows, 1, b"6", "e1") == (run_id, [])
    assert batch(windows, 1, b"6", "e1", BatchRule(1, 1)) == (run_id, [])
    batch(windows, 2, b"7", "e2")
    assert inputs(windows.pass_time(200)) == [[b"6", b"7"]]


def test_a_repeated_event_does_not_extend_its_window() -> None:
    windows = Windows()
    run_id, _ = debounce(windows, 0, event_id="e")
    assert debounce(windows, 79, event_id="e") == (run_id, [])
    assert inputs(windows.pass_time(80)) == [[b"1"]]


def test_an_event_id_still_answers_with_its_run_after_the_window_closed() -> None:
    """D44"""
    windows = Windows()
    run_id, _ = debounce(windows, 0, event_id="e")
    windows.pass_time(80)
    assert debounce(windows, 5_000, event_id="e") == (run_id, [])
    assert len(windows) == 0
    assert debounce(windows, 80 + WINDOW_EVENT_IDS_KEEP_MS - 1, event_id="e") == (run_id, [])
    again, effects = debounce(windows, 80 + WINDOW_EVENT_IDS_KEEP_MS, event_id="e")
    assert again != run_id and isinstance(effects[0], Opened)


def test_an_event_id_is_kept_from_the_closing_time_however_late_that_was_noticed() -> None:
    windows = Windows()
    debounce(windows, 0, event_id="e")
    windows.pass_time(50_000)
    assert len(windows.state()["closed"]) == 1
    windows.pass_time(80 + WINDOW_EVENT_IDS_KEEP_MS)
    assert windows.state()["closed"] == []


def test_event_ids_are_of_one_key_and_kind() -> None:
    windows = Windows()
    ids = {debounce(windows, 0, event_id="e")[0], debounce(windows, 0, key="b", event_id="e")[0], batch(windows, 0, b"", "e")[0]}
    assert len(ids) == 3 == len(windows)


def test_a_window_survives_a_restart_before_it_closes() -> None:
    """D43"""
    windows = Windows()
    run_id, _ = debounce(windows, 0, b"1", event_id="a")
    again = Windows.load(msgspec.msgpack.decode(msgspec.msgpack.encode(windows.state())))
    assert debounce(again, 10, b"9", event_id="a") == (run_id, [])
    assert debounce(again, 10, b"2", event_id="b")[0] == run_id
    assert inputs(again.pass_time(90)) == [[b"2"]]


def test_a_batch_never_outgrows_what_one_start_can_carry() -> None:
    windows, closed = Windows(), []
    third = b"x" * (PAYLOAD_BYTES_MAX // 3)
    for now in range(4):
        closed += inputs(batch(windows, now, third, rule=BatchRule(100, 1_000))[1])
    closed += inputs(windows.pass_time(5_000))
    assert [len(batch) for batch in closed] == [2, 2]
    with pytest.raises(Rejected, match="batch of it alone"):
        batch(windows, 0, b"x" * (PAYLOAD_BYTES_MAX - 1))
    assert len(windows) == 0
    batch(windows, 0, b"x" * (PAYLOAD_BYTES_MAX - 2))


def test_the_latest_rule_holds_for_the_whole_window() -> None:
    windows = Windows()
    batch(windows, 0, b"0", rule=BatchRule(10, 1_000))
    _, effects = batch(windows, 1, b"1", rule=BatchRule(5, 100))
    assert [effect.closes_ms for effect in effects if isinstance(effect, Extended)] == [100]
    assert inputs(batch(windows, 2, b"2", rule=BatchRule(3, 100))[1]) == [[b"0", b"1", b"2"]]
    batch(windows, 3, b"3", rule=BatchRule(5, 1_000))
    assert inputs(batch(windows, 53, b"4", rule=BatchRule(5, 50))[1]) == [[b"3", b"4"]]


def test_a_clock_that_steps_back_changes_nothing() -> None:
    windows = Windows()
    debounce(windows, 1_000)
    assert debounce(windows, 500)[1] == []
    assert windows.pass_time(600) == [] and len(windows.pass_time(1_080)) == 1


@pytest.mark.parametrize("rule", [
    BatchRule(0, 10), BatchRule(1, 0), BatchRule(-1, 10), BatchRule(True, 10), BatchRule(10_001, 1), DebounceRule(0), DebounceRule(-5),
    DebounceRule(1, 0), DebounceRule(1.5), DebounceRule(1 << 60),  # type: ignore[arg-type]
])
def test_a_rule_that_cannot_be_is_refused_and_opens_nothing(rule: Any) -> None:
    """D42"""
    windows = Windows()
    with pytest.raises(Rejected, match="expected 1 to"):
        windows.add("w", "k", rule, b"", now_ms=0)
    assert windows.state() == Windows().state()


@pytest.mark.parametrize(("key", "event_id"), [
    ("k" * 2_000, None), ("k" * 1_020, None), ("a\0", None), (1, None), ("k", ""), ("k", "\ud800"), ("k", 3),
])
def test_keys_and_event_ids_that_cannot_be_are_refused(key: Any, event_id: Any) -> None:
    windows = Windows()
    with pytest.raises(Rejected):
        windows.add("w", key, QUIET, b"", event_id, now_ms=0)
    assert len(windows) == 0


@pytest.mark.parametrize("change", [
    {"open": 1}, {"number": "x"}, {"extra": 1}, {"open": [{"place": {}}]}, {"closed": [[1]]},
])
def test_a_state_that_no_windows_wrote_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(StorageError, match="saved windows"):
        Windows.load({**Windows().state(), **change})


def test_two_windows_of_one_key_are_refused() -> None:
    windows = Windows()
    debounce(windows, 0, event_id="e")
    state = windows.state()
    with pytest.raises(StorageError, match="two of one"):
        Windows.load({**state, "open": state["open"] * 2})


EVENTS = st.lists(st.tuples(
    st.integers(0, 150), st.sampled_from([QUIET, DebounceRule(50), THREE, BatchRule(2, 60)]), st.sampled_from(["a", "b"]),
    st.sampled_from([None, "e1", "e2", "e3"]), st.booleans(), st.booleans()), max_size=60)


@given(EVENTS)
@settings(deadline=None, max_examples=150)
def test_every_event_ends_in_one_run_however_late_time_is_noticed(events: list[tuple[int, Any, str, str | None, bool, bool]]) -> None:
    """`noticed` runs beside one that is told of every moment: both start the same runs with the same inputs."""
    eager, lazy = Windows(), Windows()
    starts: tuple[list[Closed], list[Closed]] = ([], [])
    now, joined, answers = 0, {}, {}
    for n, (wait, rule, key, event_id, noticed, saved) in enumerate(events):
        for tick in range(now, now + wait):
            starts[0].extend(eager.pass_time(tick))
        now += wait
        starts[0].extend(eager.pass_time(now))
        if noticed:
            starts[1].extend(lazy.pass_time(now))
        if saved:
            lazy = Windows.load(lazy.state())
        kind = "debounce" if isinstance(rule, DebounceRule) else "batch"
        run_id, effects = eager.add("w", key, rule, b"%d" % n, event_id, now_ms=now)
        other, others = lazy.add("w", key, rule, b"%d" % n, event_id, now_ms=now)
        assert run_id == other
        assert answers.setdefault((kind, key, event_id or n), run_id) == run_id
        joined.setdefault((kind, key, event_id or n), (run_id, b"%d" % n))
        starts[0].extend(effect for effect in effects if isinstance(effect, Closed))
        starts[1].extend(effect for effect in others if isinstance(effect, Closed))
    for windows, closed in ((eager, starts[0]), (lazy, starts[1])):
        closed.extend(windows.pass_time(now + 1_000))
    assert {start.run_id: start for start in starts[0]} == {start.run_id: start for start in starts[1]}
    assert len({start.run_id for start in starts[0]}) == len(starts[0]) == len(starts[1])
    expected: dict[str, list[bytes]] = {}
    for run_id, input in joined.values():
        expected.setdefault(run_id, []).append(input)
    for start in starts[0]:
        every = expected.pop(start.run_id)
        assert start.inputs == (every[-1:] if start.place.kind == "debounce" else every)
    assert not expected


def test_extending_a_window_for_ever_leaves_few_deadlines_behind() -> None:
    windows = Windows()
    for now in range(20_000):
        debounce(windows, now, rule=DebounceRule(80))
    assert len(windows._timers) < 200
