"""What a shard's runtime needs of the place where its log is: embedded in the same process, or in a shard process far away."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from msgspec import Struct

from fusee_mp.core.records import Parent
from fusee_mp.runtime.limits import Limits


class Home(Protocol):
    @property
    def limits(self) -> Limits:
        """Where steps get their permits."""

    def append(self, records: bytes, count: int) -> object:
        """Append framed records to the log. Their LSNs follow on; the runtime hears of them through `ShardRuntime.durable`."""

    @property
    def refusal(self) -> str:
        """Why new work cannot be taken now (the disk is nearly full, the keeper lags), or empty."""

    def relay(self, to: int, messages: Sequence[tuple[int, bytes]]) -> None:
        """Send (number, message) on to the holder of another shard (or of this one). It may be lost; the sender sends again."""

    def relay_ack(self, sender: int, through: int) -> None:
        """Tell the sending shard that its messages up to this number are durable here."""

    def give_up(self, reason: str) -> None:
        """The runtime met a fault of its own: let go of the shard, so that whoever is next begins from the log."""

    def lacks(self, workflow: str) -> None:
        """A run of this type has something to do, and its code is not here: let whoever has it have the shard."""

    def may_act(self) -> bool:
        """The lease is certainly still ours: bodies may start and answers may leave. When it becomes true again, the home calls
        `ShardRuntime.work`."""

    async def read(self, method: str, args: tuple[Any, ...], min_lsn: int = 0) -> Any:
        """Ask the keeper, once it has applied `min_lsn`. Raises Unavailable when that takes too long."""


class Metrics:
    """Counters of one shard's runtime; they only rise."""

    __slots__ = ("starts", "attempts", "finished", "loads", "parked", "records", "calls")

    def __init__(self) -> None:
        self.starts = self.attempts = self.finished = self.loads = self.parked = self.records = self.calls = 0


class Found(Struct, array_like=True, gc=False):
    """The newest run of an ID, as the store has it."""

    run: int
    id: str
    type: str
    status: str
    payload: bytes
    reason: str
    parent: Parent | None = None

    @property
    def is_open(self) -> bool:
        return self.status in OPEN_STATUSES


OPEN_STATUSES = frozenset(("running", "suspended", "parked", "paused", "quarantined"))
