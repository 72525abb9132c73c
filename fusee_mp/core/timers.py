"""Deadlines of one shard: the earliest first, ties in the order they were added. Removal is lazy: the owner checks what it pops."""
from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K")


class Timers(Generic[K]):
    __slots__ = ("_heap", "_added")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, K]] = []
        self._added = 0

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, due_ms: int, key: K) -> None:
        self._added += 1
        heapq.heappush(self._heap, (due_ms, self._added, key))

    def keep(self, wanted: Callable[[K], bool]) -> None:
        """Forget every deadline that is not wanted."""
        self._heap = [entry for entry in self._heap if wanted(entry[2])]
        heapq.heapify(self._heap)

    @property
    def next_due(self) -> int | None:
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now_ms: int) -> Iterator[K]:
        """Everything due by `now_ms`, removed as it is yielded. What is added meanwhile and already due comes too."""
        while self._heap and self._heap[0][0] <= now_ms:
            yield heapq.heappop(self._heap)[2]
