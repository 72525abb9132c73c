"""What the lease table knows of a worker and of a shard."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

NO_BOUND: Final = 1 << 32


@dataclass(slots=True)
class Member:
    """A worker's session. `shards` are those assigned to it, settled or not."""

    session: int
    worker: str
    instance: str
    workflows: tuple[str, ...]
    max_shards: int
    is_draining: bool = False
    shards: set[int] = field(default_factory=set)
    leaving: set[int] = field(default_factory=set)  # of these, what it was asked to hand over
    coming: set[int] = field(default_factory=set)  # what others were asked to hand over for it
    had: dict[int, int] = field(default_factory=dict)  # when it came to hold each shard last, in ms
    types: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        self.types = frozenset(self.workflows)

    @property
    def name(self) -> str:
        return holder_name(self.worker, self.instance)

    @property
    def places(self) -> int:
        """For how many more shards; negative when it would have none even if it let one go."""
        if self.is_draining:
            return -1
        return (self.max_shards or NO_BOUND) - len(self.shards) + len(self.leaving)

    @property
    def room(self) -> int:
        """The same, without the places of those that are coming."""
        return self.places - len(self.coming)


@dataclass(slots=True)
class Seat:
    shard: int
    is_up: bool = False
    holder: str = ""
    epoch: int = 0
    session: int | None = None
    is_settled: bool = False
    assigned_ms: int = 0
    shunned: int | None = None
    shunned_until_ms: int = 0
    held_ms: int = 0
    wanted: frozenset[str] = frozenset()  # workflow types that runs there need, and the holder lacks
    is_moving: bool = False  # the holder was asked to hand it over
    target: int | None = None  # the session for which it was

    @property
    def is_free(self) -> bool:
        return self.is_up and not self.holder and self.session is None


def holder_name(worker: str, instance: str) -> str:
    """What HELD calls a worker. An instance has no slash, so the worker's name is what stands before the last one."""
    return f"{worker}/{instance}"


def worker_of(holder: str) -> str:
    return holder.rpartition("/")[0]
