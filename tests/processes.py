"""Whether processes have ended, without a race between two looks at one."""
from __future__ import annotations

import psutil


def is_alive(process: psutil.Process | int) -> bool:
    """Whether it runs, of an object or of a number. A zombie has ended; it waits for its parent, maybe an adoptive one, to notice."""
    try:
        process = psutil.Process(process) if isinstance(process, int) else process
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
