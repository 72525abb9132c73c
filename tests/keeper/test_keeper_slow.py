"""Long questions take turns by who asks."""
from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from fusee_mp.errors import FuseeError, StorageError
from fusee_mp.keeper import slow
from fusee_mp.keeper.slow import Question, SlowReads
from fusee_mp.store import Store

GREEDY, OTHER = 1, 2


@pytest.fixture
def path(tmp_path: Path) -> str:
    Store.open(tmp_path / "store.db").close()
    return str(tmp_path / "store.db")


class Asked:
    """What was answered, in order; `wait` for so many."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, Any]] = []
        self._came = threading.Semaphore(0)

    def __call__(self, question: Question, value: Any) -> None:
        self.answers.append((question.id, value))
        self._came.release()

    def wait(self, count: int) -> list[int]:
        for _ in range(count):
            assert self._came.acquire(timeout=30)
        return [id for id, _ in self.answers]


def test_who_has_taken_less_time_goes_before_who_asks_much(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    go, all_there = threading.Semaphore(0), threading.Event()

    def answered(*args: Any) -> None:
        all_there.wait(30)
        assert go.acquire(timeout=30)

    monkeypatch.setattr(slow, "answer_by", answered)
    asked = Asked()
    lane = SlowReads("many", path, asked)
    for id in range(10):
        lane.ask(Question(id, "list", [], 0.0, GREEDY))
    lane.ask(Question(10, "list", [], 0.0, OTHER))
    all_there.set()
    go.release(3)
    assert asked.wait(3) == [0, 10, 1], "the first was at hand; then the one who had taken nothing; then, by turns, whoever took less"
    lane.close()
    go.release()
    assert asked.wait(1)


def test_whatever_goes_wrong_with_one_question_is_its_answer_and_the_next_has_its_turn(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked()
    lane = SlowReads("one", path, asked)
    monkeypatch.setattr(slow, "answer_by", lambda *args: {}["unforeseen"])
    lane.ask(Question(1, "tally", [], 0.0))
    asked.wait(1)
    monkeypatch.setattr(slow, "answer_by", lambda *args: "fine")
    lane.ask(Question(2, "tally", [], 0.0))
    asked.wait(1)
    lane.close()
    (_, error), (_, answer) = asked.answers
    assert isinstance(error, FuseeError) and isinstance(error, StorageError) and "KeyError('unforeseen')" in error.message
    assert answer == "fine"
