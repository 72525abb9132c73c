"""What a reset keeps of a journal, and what it feeds again: a beginning of it, and what came from outside."""
from __future__ import annotations

from typing import Any

import pytest
from core_records import AT, SOURCE
from hypothesis import given
from hypothesis import strategies as st

from fusee_mp.core import records as r
from fusee_mp.core.journal import Journal
from fusee_mp.core.reset import moved, plan
from fusee_mp.errors import Rejected

START = r.Start(1, AT, "r", "order", b"null")


def step(op: str, name: str) -> r.StepDone:
    return r.StepDone(1, AT, op, name, 1, "ok", b"1")


def signal(name: str) -> r.Signal:
    return r.Signal(1, AT, name, b"1", "q", SOURCE)


def test_the_journal_is_cut_before_the_first_record_of_the_step() -> None:
    records: list[Any] = [
        START, step("1", "a"), signal("x"), r.Attempt(1, AT, "2", "b", 1, b"{}", AT), step("3", "c"), signal("y"), step("2", "b"),
    ]
    planned = plan(records, "b")
    assert planned.kept == records[:3] and planned.again == [signal("y")]


def test_a_step_that_runs_for_the_first_time_keeps_everything() -> None:
    records: list[Any] = [START, step("1", "a"), r.Paused(1, AT, "why"), signal("x")]
    assert plan(records, "b", running=[("1", "a"), ("2", "b")]).kept == [START, step("1", "a"), signal("x")]


def test_outcomes_of_children_and_completions_that_were_kept_are_fed_again() -> None:
    kept: list[Any] = [START, r.Inherited(1, AT, "k", "t", "cancel", 7, "4"), r.Child(1, AT, "1", 0, 1, "c", "t", b""),
                       r.Awaiting(1, AT, "2", "wait", 1)]
    later: list[Any] = [
        r.ChildDone(1, AT, "1", "ok", b"", SOURCE), r.ChildDone(1, AT, "7:4", "ok", b"", SOURCE), r.Child(1, AT, "9", 0, 2, "d", "t", b""),
        r.ChildDone(1, AT, "9", "ok", b""), r.Completed(1, AT, "2", "wait", 1, "ok", b"1"), r.CancelRequested(1, AT, "no"),
        r.Done(1, AT, "cancelled", b""),
    ]
    planned = plan([*kept, step("3", "s"), *later], "s")
    assert planned.kept == kept and planned.again == [later[0], later[1], later[4]]
    assert planned.children == {(7, "4"), (1, "1")} and planned.unanswered == set()
    assert plan([*kept, step("3", "s")], "s").unanswered == {"1"}


@pytest.mark.parametrize(("name", "occurrence", "said"), [
    ("z", 1, 'came to no step "z": it cannot be reset there. Its steps are "a", "b"'), ("a", 3, 'came to step "a" 2 times, not 3'),
])
def test_a_step_that_is_not_there_is_refused_by_name(name: str, occurrence: int, said: str) -> None:
    with pytest.raises(Rejected, match=said) as refused:
        plan([START, step("1", "a"), step("2", "b"), step("3", "a")], name, occurrence)
    assert refused.value.fields["steps"] == ["a", "b"]


def test_a_message_shows_no_more_than_some_of_many_steps() -> None:
    with pytest.raises(Rejected, match=r'"s19" and 30 more$'):
        plan([START, *(step(str(n), f"s{n}") for n in range(50))], "none")


def test_nothing_of_a_moved_record_is_sent_or_taken_again() -> None:
    child = moved(r.Child(1, AT, "1", 3, 4, "c", "t", b"", "cancel"), 9)
    assert isinstance(child, r.Child) and (child.run, child.no, child.started_by, child.started_op) == (9, 0, 1, "1")
    again = moved(child, 12)
    assert isinstance(again, r.Child) and (again.run, again.started_by, again.started_op) == (12, 1, "1")
    send, taken = moved(r.Send(1, AT, "1", 3, 4, "signal", "c"), 9), moved(signal("x"), 9)
    assert isinstance(send, r.Send) and send.no == 0 and isinstance(taken, r.Signal) and taken.source is None and taken.request == "q"
    awaiting = moved(r.Awaiting(1, AT, "1", "w", 2, True), 9)
    assert isinstance(awaiting, r.Awaiting) and not awaiting.sent


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=12), st.data())
def test_the_kept_part_replays_as_the_whole_did_up_to_the_step(names: list[str], data: st.DataObject) -> None:
    records: list[Any] = [START]
    for n, name in enumerate(names, 1):
        records += [step(str(n), name), *([signal(f"s{n}")] if data.draw(st.booleans()) else [])]
    name = data.draw(st.sampled_from(names))
    occurrence = data.draw(st.integers(1, names.count(name)))
    planned = plan(records, name, occurrence)
    at = [n for n, each in enumerate(names, 1) if each == name][occurrence - 1]
    journal: Journal[str] = Journal.recover([moved(record, 2) for record in (*planned.kept, *planned.again)])
    for n, each in enumerate(names[: at - 1], 1):
        journal.ask(str(n), "step", each)
        assert journal.knows(str(n))
    assert journal.ask(str(at), "step", name) is None and not journal.knows(str(at))
    assert [record for record in journal.unfed if isinstance(record, r.Signal)] == [
        moved(record, 2) for record in records if isinstance(record, r.Signal)]
