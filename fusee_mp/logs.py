"""Where a process of ours sends its log: lines of text, or of JSON."""
from __future__ import annotations

import json
import logging
import os
from datetime import UTC, datetime
from typing import Any, Final

LEVEL: Final = "FUSEE_LOG_LEVEL"
FORMAT: Final = "FUSEE_LOG_FORMAT"
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
