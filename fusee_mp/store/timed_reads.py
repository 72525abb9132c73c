"""Questions about schedules and windows: what a new holder of the shard begins with, and answers to requests that came before."""
from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any, Final

from fusee_mp.core.idfilter import key as hash_key
from fusee_mp.store.pages import limited, page
from fusee_mp.store.results import StoredEvent, StoredSchedule, StoredWindow, WindowsState

DB = sqlite3.Connection


def schedules(db: DB, after: str = "", limit: int = 1000) -> list[StoredSchedule]:
    """The schedules, by ID."""
    rows = db.execute("select id, type, input, zone, state from schedule where id > ? order by id limit ?", (after, limited(limit)))
    return page((StoredSchedule(*row) for row in rows), lambda row: len(row.input) + len(row.state))


def windows_state(db: DB) -> WindowsState:
    """What all windows have in common."""
    return WindowsState(*db.execute("select now, number from windows").fetchone())


def windows(db: DB, after: str = "", limit: int = 1000) -> list[StoredWindow]:
    """The windows that are open or kept, by ID."""
    rows = db.execute(
        "select id, kind, workflow, key, opened, closes, taken, closed from window where id > ? order by id limit ?",
        (after, limited(limit)))
    return [StoredWindow(*row) for row in rows]


def events(db: DB, after: int = 0, limit: int = 1000) -> list[StoredEvent]:
    """Their events, in the order in which they came."""
    rows = db.execute("select lsn, window, id, input from event where lsn > ? order by lsn limit ?", (after, limited(limit)))
    return page((StoredEvent(*row) for row in rows), lambda row: len(row.input or b""))


def answer(db: DB, key: str) -> bytes | None:
    """How a request about a schedule or a window was answered last, while that is kept."""
    row = db.execute("select value from answer where hash = ? and key = ? order by lsn desc limit 1", (hash_key(key), key)).fetchone()
    return row[0] if row else None


ALL: Final[tuple[Callable[..., Any], ...]] = (schedules, windows_state, windows, events, answer)
