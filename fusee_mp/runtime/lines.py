"""File and line of workflow code, for messages."""
from __future__ import annotations

import sys
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fusee_mp.runtime.loop import RunTask

_OURS = ("fusee_mp.", "asyncio.")


def is_ours(frame: FrameType) -> bool:
    """The frame is of this package or of asyncio: what it does is not what a user would look at."""
    return str(frame.f_globals.get("__name__", "")).startswith(_OURS)


def is_library(frame: FrameType) -> bool:
    """The frame is of Python's library or of an installed one: what a user's own code called."""
    name = frame.f_code.co_filename
    return "site-packages" in name or name.startswith((sys.base_prefix + "/lib", "<"))


def code_line(frame: FrameType | None) -> str:
    """"file:line" of the innermost frame of workflow code in a stack, of a library's where there is no other, or "".

    Below `RunLoop.drain` the program's own code begins.
    """
    found = ""
    while frame is not None and not (frame.f_code.co_name == "drain" and is_ours(frame)):
        if not is_ours(frame):
            line = f"{frame.f_code.co_filename}:{frame.f_lineno}"
            if not is_library(frame):
                return line
            found = found or line
        frame = frame.f_back
    return found


def waiting_line(task: RunTask | None) -> str:
    """"file:line" of the workflow code in which the task waits; once it has ended, of the function that it ran."""
    body: Any = None if task is None else task.get_coro()
    line = ""
    code = getattr(body, "cr_code", None)
    if code is not None:
        line = f"{code.co_filename}:{code.co_firstlineno}"
    while body is not None:
        frame = getattr(body, "cr_frame", None) or getattr(body, "ag_frame", None)
        if frame is not None and not is_ours(frame):
            line = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        body = getattr(body, "cr_await", None) or getattr(body, "ag_await", None)
    return line
