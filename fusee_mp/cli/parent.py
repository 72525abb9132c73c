"""A process that is not to outlive the one that started it."""
from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Final

import click

_PR_SET_PDEATHSIG: Final = 1
# Given by those who start commands for their own ends: a supervisor, the demonstration, a test.
option = click.option("--parent", type=int, hidden=True, help="The process that started this one, and whose end ends it.")


def depend_on(parent: int | None) -> None:
    """End when the parent does, however it ends. That is a kill, and so loses nothing: what was not recorded runs again."""
    if parent is None:
        return
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # It ended before this one could ask to be told.
        sys.exit(0)
