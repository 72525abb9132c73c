"""`give_back`: memory that was freed, to the system. `Tidy`: does so when many things have gone."""
from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:  # processes that have no loop have give_back alone
    import asyncio

# A connection with TLS leaves 20 KiB of freed memory to the C library, which finds no use for most of it: 10,000 that came and went left
# 180 MiB. So when so many things of that kind have gone the system gets it back, at most once in this time.
GONE_MANY: Final = 100
GIVE_BACK_S: Final = 5.0


def give_back() -> None:
    """Give the system back what the C library keeps of freed memory, in pieces that others may not fit. Takes milliseconds."""
    import ctypes  # a MiB that many a process never needs

    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc alone has it, and needs it
    if malloc_trim is not None:
        malloc_trim(0)


class Tidy:
    """Told of each thing that has `gone`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._gone = 0
        self._timer: asyncio.TimerHandle | None = None

    def gone(self) -> None:
        self._gone += 1
        if self._timer is None and self._gone >= GONE_MANY:
            self._timer = self._loop.call_later(GIVE_BACK_S, self._now)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _now(self) -> None:
        self._gone, self._timer = 0, None
        give_back()
