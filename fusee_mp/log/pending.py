"""Records that wait for their batch."""
from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class Waiting:
    """What will be one batch: records of one epoch."""

    epoch: int
    count: int = 0
    size: int = 0
    parts: list[bytes] = field(default_factory=list)

    def body(self) -> bytes:
        return self.parts[0] if len(self.parts) == 1 else b"".join(self.parts)


class Pending:
    """A queue of batches to be; appends join the last one while epoch and size allow. An empty one is a seal."""

    def __init__(self, batch_bytes_max: int) -> None:
        self.size = 0
        self._bytes_max = batch_bytes_max
        self._batches: deque[Waiting] = deque()

    def add(self, records: bytes, count: int, epoch: int) -> None:
        last = self._batches[-1] if self._batches else None
        if last is None or last.epoch != epoch or last.size + len(records) > self._bytes_max:
            last = Waiting(epoch)
            self._batches.append(last)
        last.parts.append(records)
        last.count += count
        last.size += len(records)
        self.size += len(records)

    def seal(self, epoch: int) -> None:
        if not self._batches:
            self._batches.append(Waiting(epoch))

    def first(self) -> Waiting | None:
        return self._batches[0] if self._batches else None

    def take(self) -> Waiting:
        first = self._batches.popleft()
        self.size -= first.size
        return first

    def clear(self) -> None:
        self._batches.clear()
        self.size = 0
