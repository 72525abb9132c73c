"""Questions that may take long, on a thread and a read-only connection of their own, so that they hold up nothing else.

Each has a deadline that SQLite itself watches; what waits in the queue past its deadline is not begun.
"""
from __future__ import annotations

import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Any, Final, NamedTuple

from fusee_mp.errors import FuseeError, StorageError, Unavailable
from fusee_mp.store.reads import read
from fusee_mp.store.schema import open_reader

# Steps of SQLite's machine between two looks at the clock: about a tenth of a millisecond.
STEPS_PER_LOOK: Final = 10_000


class Question(NamedTuple):
    """A read with the instant (of the monotonic clock) by which it must be answered."""

    id: int
    method: str
    args: list[Any]
    deadline: float


class SlowReads:
    """One thread that answers questions in turn; it begins with the first one. `answer` is called on it."""

    def __init__(self, path: str, answer: Callable[[Question, Any], None]) -> None:
        self._path = path
        self._answer = answer
        self._waiting: deque[Question | None] = deque()
        self._arrived = threading.Semaphore(0)
        self._thread: threading.Thread | None = None

    def ask(self, question: Question) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="slow reads", daemon=True)
            self._thread.start()
        self._put(question)

    def close(self) -> None:
        """End after the question at hand; a question that still waits is not answered."""
        self._waiting.clear()
        self._put(None)

    def _put(self, question: Question | None) -> None:
        self._waiting.append(question)
        self._arrived.release()

    def _run(self) -> None:
        db: sqlite3.Connection | None = None
        while True:
            self._arrived.acquire()
            question = self._waiting.popleft() if self._waiting else None
            if question is None:
                break
            try:
                db = db or open_reader(self._path)
                value: Any = answer_by(question.deadline, db, question.method, question.args)
                db.execute("pragma shrink_memory")
            except (FuseeError, sqlite3.Error) as e:
                value = e if isinstance(e, FuseeError) else StorageError(f"the store cannot be read: {e}", path=self._path)
            self._answer(question, value)
        if db is not None:
            db.close()


def answer_by(deadline: float, db: sqlite3.Connection, method: str, args: list[Any]) -> Any:
    """The answer to a read, or Unavailable that names the deadline when it takes longer."""
    begun = monotonic()
    db.set_progress_handler(lambda: monotonic() > deadline, STEPS_PER_LOOK)
    try:
        if begun > deadline:
            raise late(method, 0.0)
        return read(db, method, args)
    except sqlite3.OperationalError as e:
        if e.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT:
            raise late(method, deadline - begun) from None
        raise
    finally:
        db.set_progress_handler(None, 0)


def late(method: str, seconds: float) -> Unavailable:
    ran = f"was ended at its deadline after {seconds:.3g} s" if seconds else "waited for others past its deadline"
    return Unavailable(f'read "{method}" {ran}: narrow its filter (type, status, id), or give it more time', method=method)
