# Whether the peer has ended a connection, asked of the kernel.
#
# The loop hears of it too, but only when it comes to wait: a process that was frozen, or is busy with a long row of callbacks, does much
# before. Who must not act for a peer that is gone asks here.
from __future__ import annotations

import asyncio
import select
from typing import Any, Final

# Where the system tells only a broken connection at once, one that was ended in order is heard of by the loop.
_ENDED: Final = getattr(select, "POLLRDHUP", 0)


class Hangup:
    """Asks about one open transport: a socket's, or a link's, which has a life line. Others never seem ended."""

    __slots__ = ("_poll",)

    def __init__(self, transport: asyncio.BaseTransport) -> None:
        watched: Any = transport.get_extra_info("life_line")
        if watched is None:
            watched = transport.get_extra_info("socket")
        self._poll: Any = None
        if watched is not None:
            self._poll = select.poll()
            self._poll.register(watched, _ENDED)

    def has_come(self) -> bool:
        """One system call that does not wait. Also true once the transport has closed its descriptor."""
        return self._poll is not None and bool(self._poll.poll(0))
