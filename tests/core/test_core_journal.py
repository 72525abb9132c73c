"""One run's journal: what was asked live is found in replay; changed code is told from a journal that a crash cut off."""
from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusee_mp.core import records as r
from fusee_mp.core.journal import Journal
from fusee_mp.errors import NonDeterminismError

START = r.Start(1, 1_000, "order-1", "checkout", b"null")
Ask = tuple[str, str, str]  # op, kind, name


class Code:
    """A workflow as a table: what it asks for in each turn, and which of these it gives up in which turn."""

    def __init__(self, turns: list[list[Ask]], given_up: dict[int, list[str]]) -> None:
        self.turns, self.given_up = turns, given_up


class Host:
    """Runs code over a journal, as Run does, and keeps the log."""

    def __init__(self, code: Code, log: list[Any]) -> None:
        self.code, self.log, self.fed, self.turn = code, log, [], 0
        self.journal: Journal[str] = Journal.recover(log) if len(log) > 1 else Journal(START)
        self.fresh: deque[Any] = deque()

    def take_turn(self) -> None:
        turn, self.turn = self.turn, self.turn + 1
        for op, kind, name in self.code.turns[turn] if turn < len(self.code.turns) else []:
            if self.journal.ask(op, kind, name) is None and kind != "step":
                self.log.append(asked(op, kind, name))
            if kind in ("step", "timer", "child"):
                self.journal.open[op] = name
        for op in self.code.given_up.get(turn, []):
            known = self.journal.knows(op)
            is_step = op in self.journal.open and not known and any(ask[:2] == (op, "step") for asks in self.code.turns for ask in asks)
            self.journal.close(op)
            if is_step:
                self.log.append(r.StepDone(1, 1_000, op, self.name_of(op), 1, "cancelled", b""))

    def name_of(self, op: str) -> str:
        return next(name for asks in self.code.turns for asked_op, _, name in asks if asked_op == op)

    def kind_of(self, op: str) -> str:
        return next(kind for asks in self.code.turns for asked_op, kind, _ in asks if asked_op == op)

    def arrive(self, outcome: Any) -> None:
        self.log.append(outcome)
        self.fresh.append(outcome)

    def settle(self) -> None:
        """Feed everything, recorded outcomes first."""
        if self.turn == 0:
            self.take_turn()
        while True:
            outcome = self.journal.next()
            if outcome is None:
                self.journal.live()
                if not self.fresh:
                    return
                outcome = self.fresh.popleft()
            if isinstance(outcome, (r.Signal, r.CancelRequested)):
                self.journal.pass_time(outcome)
                self.fed.append((type(outcome).__name__, True))
            else:
                waiter = self.journal.take(outcome)
                self.fed.append((outcome.op, waiter is not None))
            self.take_turn()


def asked(op: str, kind: str, name: str) -> Any:
    return {
        "timer": lambda: r.Timer(1, 1_000, op, name, 5_000), "child": lambda: r.Child(1, 1_000, op, 0, 1, "c", name, b"null"),
        "send": lambda: r.Send(1, 1_000, op, 0, 1, "signal", "b", name.removeprefix("signal ")),
        "attributes": lambda: r.Attributes(1, 1_000, op, b"{}"),
    }[kind]()


def outcome_of(kind: str, op: str, name: str, at: int) -> Any:
    return {
        "step": lambda: r.StepDone(1, at, op, name, 1, "ok", b"1"), "timer": lambda: r.Fired(1, at, op),
        "child": lambda: r.ChildDone(1, at, op, "ok", b"1"),
    }[kind]()


@st.composite
def codes(draw: st.DrawFn) -> Code:
    """Some turns, each asking for a few operations of a few tasks."""
    counts: dict[str, int] = {}
    turns: list[list[Ask]] = []
    for _ in range(draw(st.integers(1, 7))):
        turn: list[Ask] = []
        for _ in range(draw(st.integers(0, 3))):
            path = draw(st.sampled_from(["", "1/", "2/", "1/1/", "c/"]))
            counts[path] = counts.get(path, 0) + 1
            kind = draw(st.sampled_from(["step", "step", "timer", "child", "send", "attributes"]))
            name = draw(st.sampled_from("ab")) if kind in ("step", "timer", "child") else "signal s" if kind == "send" else ""
            turn.append((f"{path}{counts[path]}", kind, name))
        turns.append(turn)
    ops = [(turn, op) for turn, asks in enumerate(turns) for op, kind, _ in asks if kind in ("step", "timer")]
    given_up: dict[int, list[str]] = {}
    for turn, op in draw(st.lists(st.sampled_from(ops), max_size=3, unique=True)) if ops else []:
        given_up.setdefault(draw(st.integers(turn, len(turns))), []).append(op)
    return Code(turns, given_up)


def live(code: Code, data: st.DataObject) -> Host:
    """One life without a crash, in which outcomes arrive in any order, some of them before the code had its turn with the last."""
    host = Host(code, [START])
    host.settle()
    arrived: set[str] = set()
    for at in range(2_000, 2_000 + 2 * len(code.turns)):
        waiting = [op for op in host.journal.open if op not in arrived]
        choice = data.draw(st.sampled_from([*waiting, "signal"]), label="arrives")
        if choice == "signal":
            host.arrive(r.Signal(1, at, "s", b"1"))
        else:
            arrived.add(choice)
            host.arrive(outcome_of(host.kind_of(choice), choice, host.name_of(choice), at))
        if data.draw(st.booleans(), label="the code has its turn"):
            host.settle()
    host.settle()
    return host


@settings(max_examples=300, deadline=None)
@given(codes(), st.data())
def test_any_interleaving_replays_to_the_same_after_any_cut(code: Code, data: st.DataObject) -> None:
    first = live(code, data)
    whole = list(first.log)
    for cut in range(1, len(whole) + 1):
        again = Host(code, whole[:cut])
        again.settle()
        assert again.fed == first.fed[: len(again.fed)], "the same outcomes, in the same order, to the same waiters"
        assert not again.journal.replaying
        assert {repr(record) for record in again.log} >= {repr(record) for record in whole[:cut]}
        third = Host(code, list(again.log))
        third.settle()
        assert third.log == again.log, "a journal that was completed after a crash needs nothing more"
        assert third.fed == again.fed
    assert again.fed == first.fed and again.journal.open == first.journal.open
    assert again.log == whole


@settings(max_examples=200, deadline=None)
@given(codes(), st.data())
def test_the_time_never_goes_back(code: Code, data: st.DataObject) -> None:
    host = live(code, data)
    journal: Journal[str] = Journal.recover(host.log)
    assert journal.latest == max(record.at for record in host.log)
    assert journal.now == START.at and host.journal.now <= journal.latest


STEP_A = r.StepDone(1, 2_000, "1", "charge", 1, "ok", b"1")
STEP_B = r.StepDone(1, 3_000, "2", "notify", 1, "ok", b"1")
TIMER = r.Timer(1, 1_000, "1", "nap", 9_000)


@pytest.mark.parametrize(("what", "log", "turns", "has", "wants", "position"), [
    ("renamed step", [STEP_A], [[("1", "step", "refund")]], 'step "charge"', 'step "refund"', 1),
    ("step for timer", [TIMER], [[("1", "step", "refund")]], 'timer "nap"', 'step "refund"', 1),
    ("timer for step", [STEP_A], [[("1", "timer", "nap")]], 'step "charge"', 'timer "nap"', 1),
    ("renamed timer", [TIMER], [[("1", "timer", "doze")]], 'timer "nap"', 'timer "doze"', 1),
    ("other child", [r.Child(1, 1_000, "1", 0, 1, "c", "ship", b"")], [[("1", "child", "bill")]], 'child "ship"', 'child "bill"', 1),
    ("other signal", [r.Send(1, 1_000, "1", 0, 1, "signal", "b", "go")], [[("1", "send", "signal stop")]],
     'send "signal go"', 'send "signal stop"', 1),
    ("cancel for signal", [r.Send(1, 1_000, "1", 0, 1, "signal", "b", "go")], [[("1", "send", "cancel")]],
     'send "signal go"', 'send "cancel"', 1),
    ("attributes for a timer", [TIMER], [[("1", "attributes", "")]], 'timer "nap"', "attributes", 1),
    ("swapped steps", [STEP_A, STEP_B], [[("1", "step", "notify")]], 'step "charge"', 'step "notify"', 1),
    ("removed timer", [TIMER], [[]], 'timer "nap"', "nothing of the kind", 1),
    ("removed attributes", [r.Attributes(1, 1_000, "1", b"{}")], [[]], "attributes", "nothing of the kind", 1),
    ("removed step", [STEP_A, STEP_B], [[("1", "step", "charge")], []], 'the outcome of step "notify"', "nothing of the kind", 2),
    ("removed step that had failed once", [r.Attempt(1, 1_000, "1", "charge", 1, b"{}", 2_000)], [[]], 'step "charge"',
     "nothing of the kind", 1),
    ("removed step that was cancelled", [r.StepDone(1, 1_000, "1", "charge", 1, "cancelled", b"")], [[]], 'step "charge"',
     "nothing of the kind", 1),
    ("renumbered step", [STEP_A], [[("1/1", "step", "new")]], 'the outcome of step "charge"',
     'step "new" as operation 1/1, and for nothing of the kind', 1),
    ("fired without a timer", [r.Fired(1, 2_000, "1")], [[]], "the outcome of a timer", "nothing of the kind", 1),
    ("child's end without a child", [r.ChildDone(1, 2_000, "1", "ok", b"")], [[]], "the outcome of a child", "nothing of the kind", 1),
    ("added timer before a known step", [STEP_A], [[("1/1", "timer", "nap"), ("1", "step", "charge")]],
     'nothing, and then step "charge" as operation 1', 'timer "nap"', 1),
], ids=lambda value: value.replace(" ", "-") if isinstance(value, str) and value.islower() and len(value) < 40 else "")
def test_changed_code_is_told_both_sides(what: str, log: list[Any], turns: list[list[Ask]], has: str, wants: str, position: int) -> None:
    with pytest.raises(NonDeterminismError) as caught:
        Host(Code(turns, {}), [START, *log]).settle()
    fields = caught.value.fields
    assert (fields["journal"], fields["code"], fields["position"]) == (has, wants, position)
    assert (fields["workflow"], fields["id"], fields["run"]) == ("checkout", "order-1", 1)
    placed = Journal[str](START).placed(caught.value, "shop.py:41")
    for part in (has, wants, "(shop.py:41)", f"position {position}", "ctx.patched", "reset"):
        assert part in placed.message, what
    assert placed.fields["where"] == "shop.py:41"


def test_code_that_ends_before_what_its_journal_knows_is_told_so() -> None:
    journal: Journal[str] = Journal.recover([START, STEP_A, STEP_B])
    journal.ask("1", "step", "charge")
    with pytest.raises(NonDeterminismError, match='step "notify"'):
        journal.end()


@pytest.mark.parametrize("ask", [("2", "timer", "nap"), ("2", "send", "signal go"), ("2", "child", "ship"), ("2", "attributes", "")])
def test_a_record_that_the_crash_cut_off_is_made_again_although_arrivals_follow(ask: Ask) -> None:
    """Two arrivals were recorded together; the crash took what the code asked for in the turn of the first."""
    log = [START, r.Signal(1, 2_000, "s", b"1"), r.Signal(1, 2_000, "s", b"2")]
    host = Host(Code([[], [ask], []], {}), log)
    host.settle()
    assert host.log[-1] == asked(*ask)
    assert [what for what, _ in host.fed] == ["Signal", "Signal"]


def test_a_step_may_be_added_beside_others_while_its_place_is_free() -> None:
    host = Host(Code([[("1", "step", "charge"), ("1/1", "step", "new")]], {}), [START, STEP_A])
    host.settle()
    assert host.journal.open == {"1/1": "new"}


def test_the_last_attempt_is_known_after_a_crash() -> None:
    attempts = [r.Attempt(1, 1_000 + n, "1", "charge", n, b"{}", 5_000) for n in (1, 2, 3)]
    journal: Journal[str] = Journal.recover([START, *attempts])
    journal.ask("1", "step", "charge")
    assert journal.attempt("1") == attempts[-1]
    assert journal.attempt("1") is None


@pytest.mark.parametrize("log", [[], [STEP_A]])
def test_a_journal_without_its_start_is_refused(log: list[Any]) -> None:
    with pytest.raises(NonDeterminismError, match="begins with a start record"):
        Journal.recover(log)


def test_an_update_that_came_with_the_start_is_the_first_outcome() -> None:
    first = r.Start(1, 1_000, "order-1", "checkout", b"null", update=r.Update(1, 1_000, "add", "u-1", b"5"))
    later = r.Update(1, 1_002, "add", "u-2", b"6")
    journal: Journal[str] = Journal.recover([first, r.Signal(1, 1_001, "go", b"1"), later])
    assert journal.unfed_updates == 2 and Journal(first).unfed_updates == 1
    fed = []
    while (outcome := journal.next()) is not None:
        journal.pass_time(outcome)
        fed.append(outcome)
    assert fed == [first.update, r.Signal(1, 1_001, "go", b"1"), later]
    assert journal.unfed_updates == 0


def test_the_answer_to_an_update_is_asked_for_and_may_not_be_left_out() -> None:
    log = [START, r.Update(1, 1_001, "add", "u-1", b"5"), r.UpdateDone(1, 1_002, "u1/1", "add", "u-1", "ok", b"5")]
    journal: Journal[str] = Journal.recover(log)
    assert journal.ask("u1/1", "answer", "add") == log[2]
    journal.live()
    journal = Journal.recover(log)
    with pytest.raises(NonDeterminismError, match='answer "add"'):
        journal.ask("u1/1", "step", "charge")
    with pytest.raises(NonDeterminismError, match='answer "add"'):
        journal.live()


def test_a_patch_is_new_at_the_end_of_a_journal_and_old_before() -> None:
    start = r.Start(1, 0, "id", "t", b"")
    live: Journal[str] = Journal(start)
    assert live.patched("p") is None and live.patched("p") is True
    at_the_end: Journal[str] = Journal.recover([start])
    assert at_the_end.patched("p") is None
    behind: Journal[str] = Journal.recover([start, r.Timer(1, 0, "1", "", 5), r.Fired(1, 5, "1")])
    assert behind.patched("p") is False
    behind.ask("1", "timer", "")
    assert behind.next() is not None and behind.patched("q") is None and behind.patched("p") is False
    told: Journal[str] = Journal.recover([start, r.Patched(1, 0, "p"), r.Timer(1, 0, "1", "", 5)])
    assert told.patched("p") is True and told.patched("q") is False
