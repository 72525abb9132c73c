# Questions that may take long, each lane's on a thread and a read-only connection of its own, so that they hold up nothing else.
#
# Each has a deadline that SQLite itself watches; what waits in the queue past its deadline is not begun. While several wait, the one goes
# first whose asker has taken the least time since anybody waited: whoever asks much, or for what takes long, waits for himself.
"""`SlowReads`: one lane."""
from __future__ import annotations

import sqlite3
import threading
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
    asker: int = 0


class SlowReads:
    """One thread that answers questions; it begins with the first one. `answer` is called on it."""

    def __init__(self, name: str, path: str, answer: Callable[[Question, Any], None]) -> None:
        self._name, self._path, self._answer = name, path, answer
        self._waiting: list[Question] = []
        self._taken_s: dict[int, float] = {}
        self._is_closed = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def ask(self, question: Question) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"slow reads of {self._name}", daemon=True)
            self._thread.start()
        with self._changed:
            self._waiting.append(question)
            self._changed.notify()

    def close(self) -> None:
        """End after the question at hand; a question that still waits is not answered."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def _next(self) -> Question | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closed)
            if self._is_closed:
                return None
            found = min(self._waiting, key=lambda question: self._taken_s.get(question.asker, 0.0))
            self._waiting.remove(found)
            return found

    def _took(self, asker: int, seconds: float) -> None:
        with self._changed:
            if self._waiting:
                self._taken_s[asker] = self._taken_s.get(asker, 0.0) + seconds
            else:
                self._taken_s.clear()

    def _run(self) -> None:
        db: sqlite3.Connection | None = None
        while (question := self._next()) is not None:
            began = monotonic()
            try:
                db = db or open_reader(self._path)
                value: Any = answer_by(question.deadline, db, question.method, question.args)
                db.execute("pragma shrink_memory")
            except Exception as e:
                value = fault_of(e, question.method, self._path)
            self._took(question.asker, monotonic() - began)
            self._answer(question, value)
        if db is not None:
            db.close()


def fault_of(error: Exception, method: str, path: str) -> FuseeError:
    """What a question is answered with when this came of it: whatever it is, it ends no thread and no process."""
    if isinstance(error, FuseeError):
        return error
    return StorageError(f'read "{method}" failed in the store: {error!r}', path=path)


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
