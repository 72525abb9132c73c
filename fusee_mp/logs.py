"""Where a process of ours sends its log: lines of text, or of JSON."""
from __future__ import annotations

import json
import logging
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import asyncio

LEVEL: Final = "FUSEE_LOG_LEVEL"
FORMAT: Final = "FUSEE_LOG_FORMAT"
QUIET_S: Final = 5.0
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def configure(who: str) -> None:
    """Send this process's log to stderr, as the environment says: FUSEE_LOG_LEVEL (INFO unless set) and FUSEE_LOG_FORMAT (text or json)."""
    level = logging.getLevelNamesMapping().get(os.environ.get(LEVEL, ""), logging.INFO)
    is_json = os.environ.get(FORMAT) == "json"
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines(who) if is_json else logging.Formatter(f"%(asctime)s {who} %(levelname)s %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])


class JsonLines(logging.Formatter):
    """One JSON object a line: `time` (RFC 3339, UTC), `level`, `process`, `logger`, `message`; `template` and `args`, of which the message
    was made, so that like lines can be found; what was given as `extra`; the traceback as `exception`."""

    def __init__(self, who: str) -> None:
        super().__init__()
        self._who = who

    def format(self, record: logging.LogRecord) -> str:
        facts: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(), "process": self._who, "logger": record.name, "message": record.getMessage(),
        }
        if record.args:
            facts["template"], facts["args"] = record.msg, record.args
        facts |= {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info:
            facts["exception"] = self.formatException(record.exc_info)
        return json.dumps(facts, default=str, ensure_ascii=False)


class Seldom:
    """Says the first of many like things at once, and what follows within QUIET_S in one line, with its number and the last of it.

    first: template of a line at INFO, for what is noted. more: of one at `level`, for a number, QUIET_S and what was noted last."""

    def __init__(self, loop: asyncio.AbstractEventLoop, log: logging.Logger, first: str, more: str, level: int) -> None:
        self._loop, self._log = loop, log
        self._first, self._more, self._level = first, more, level
        self._untold = 0
        self._last = ""
        self._timer: asyncio.TimerHandle | None = None

    def note(self, what: str) -> None:
        self._last = what
        if self._timer is None:
            self._log.info(self._first, what)
            self._timer = self._loop.call_later(QUIET_S, self._tell)
        else:
            self._untold += 1

    def _tell(self) -> None:
        self._timer = None
        if self._untold:
            self._log.log(self._level, self._more, self._untold, QUIET_S, self._last)
            self._untold = 0
            self._timer = self._loop.call_later(QUIET_S, self._tell)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
