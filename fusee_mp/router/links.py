# A ring link for every two shard processes.
#
# Each pair that is up has one, made here, with the two ends sent to the two processes. When one of them is started again all its pairs
# get new links of a new generation, so that neither can mistake what the dead one left in an old ring.
#
# Who closes: `pair` gives six descriptors; sending closes them on every path, and what was not sent is closed here.
"""`Links`: connects shard processes with each other."""
from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Final

from fusee_mp.ring.link import pair
from fusee_mp.wire.messages import Message, Ring

LOG: Final = logging.getLogger("fusee_mp.router")


class Links:
    """`send(shard, message, descriptors)` owns the descriptors from its call on."""

    def __init__(self, send: Callable[[int, Message, Sequence[int]], None]) -> None:
        self._send = send
        self._up: set[int] = set()
        self._linked: set[tuple[int, int]] = set()
        self._generation = 0

    def up(self, shard: int) -> None:
        """The shard's process is ready."""
        self._up.add(shard)
        self.link()

    def down(self, shard: int) -> None:
        """The shard's process is gone, and its links with it: their life lines tell the others."""
        self._up.discard(shard)
        self._linked = {ends for ends in self._linked if shard not in ends}

    def link(self) -> None:
        """Connect every two that are up and not connected. What fails for want of descriptors is tried again at the next call."""
        missing = [(one, other) for one in self._up for other in self._up if one < other and (one, other) not in self._linked]
        for one, other in sorted(missing):
            try:
                self._connect(one, other)
            except OSError as error:
                LOG.error("shards %d and %d cannot be linked now, trying again: %s (see `ulimit -n`)", one, other, error)
                return

    def _connect(self, one: int, other: int) -> None:
        self._generation += 1
        first, second = pair(self._generation)
        with ExitStack() as undo:
            undo.callback(second.close)
            self._send(one, Ring(other, self._generation), first.descriptors())
            undo.pop_all()
        self._send(other, Ring(one, self._generation), second.descriptors())
        self._linked.add((one, other))
