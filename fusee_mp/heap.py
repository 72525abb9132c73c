"""`give_back`: memory that was freed, to the system."""
from __future__ import annotations

import ctypes
from typing import Final

_malloc_trim: Final = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc alone has it, and needs it


def give_back() -> None:
    """Give the system back what the C library keeps of freed memory, in pieces that others may not fit. Takes milliseconds."""
    if _malloc_trim is not None:
        _malloc_trim(0)
