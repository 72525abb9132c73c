"""Doorbells: an eventfd that wakes a peer asleep in its event loop."""
from __future__ import annotations

import contextlib
import os


class Doorbell:
    """Owns its descriptor from the constructor to `close`. One side rings, the other watches `descriptor` and clears."""

    __slots__ = ("descriptor",)

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def ring(self) -> None:
        """Make the descriptor readable. Never blocks."""
        with contextlib.suppress(BlockingIOError):  # the counter is at its maximum: rung already
            os.eventfd_write(self.descriptor, 1)

    def clear(self) -> None:
        """Make the descriptor unreadable until the next ring. Never blocks."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.descriptor)

    def close(self) -> None:
        """Close the descriptor. A second call does nothing."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def create() -> int:
    """A new doorbell's descriptor, closed by whoever holds it."""
    return os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
