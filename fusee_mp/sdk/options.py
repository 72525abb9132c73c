"""The options of a step, checked and in whole milliseconds. The same for `@step(..)`, `.with_(..)` and `ctx.step(.., ..)`."""
from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from typing import Any

from typing_extensions import TypedDict, Unpack

from fusee_mp.duration import Duration, to_ms_or_none
from fusee_mp.errors import Rejected
from fusee_mp.names import checked_name
from fusee_mp.sdk.retry import Retry


class CallOptions(TypedDict, total=False):
    """What may be given where a step is called, by keyword."""

    retry: Retry | None
    timeout: Duration | None
    total_timeout: Duration | None
    heartbeat_timeout: Duration | None
    limit: str | None
    priority: int
    fairness: str
    weight: int
    pool: Executor | None


class StepChanges(CallOptions, total=False):
    """What may be given where a step is defined, by keyword."""

    name: str | None


@dataclass(frozen=True, slots=True)
class StepOptions:
    """name: in place of the function's. retry: None is one attempt. timeout: of one attempt. total_timeout: of all of them together.

    heartbeat_timeout: an attempt fails when it has not called `heartbeat` for this long. limit: the system-wide limit it counts
    against. priority: higher goes first at the limit; within one priority the fairness keys take turns by weight. pool: runs a `def` body
    in place of the engine's threads.
    """

    name: str | None = None
    retry: Retry | None = None
    timeout: Duration | None = None
    total_timeout: Duration | None = None
    heartbeat_timeout: Duration | None = None
    limit: str | None = None
    priority: int = 0
    fairness: str = ""
    weight: int = 1
    pool: Executor | None = None
    timeout_ms: int | None = field(init=False, repr=False, compare=False)
    total_timeout_ms: int | None = field(init=False, repr=False, compare=False)
    heartbeat_timeout_ms: int | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.name is not None:
            checked_name("step", self.name)
        if self.limit is not None:
            checked_name("limit", self.limit)
        _require(self.retry is None or isinstance(self.retry, Retry), "retry", "Retry(..) or None", self.retry)
        _require(_is_whole(self.priority), "priority", "a whole number", self.priority)
        _require(_is_whole(self.weight) and self.weight >= 1, "weight", "a whole number from 1", self.weight)
        _require(isinstance(self.fairness, str), "fairness", "text", self.fairness)
        _require(self.pool is None or isinstance(self.pool, Executor), "pool", "a concurrent.futures.Executor or None", self.pool)
        for option in ("timeout", "total_timeout", "heartbeat_timeout"):
            object.__setattr__(self, f"{option}_ms", _positive_ms(option, getattr(self, option)))

    def changed(self, **changes: Unpack[StepChanges]) -> StepOptions:
        """A copy with these options in place of its own. An option that does not exist raises TypeError."""
        return replace(self, **changes)


def _positive_ms(option: str, duration: Duration | None) -> int | None:
    ms = to_ms_or_none(duration, f"step {option}")
    _require(ms is None or ms > 0, option, "more than zero, or None for no limit", duration)
    return ms


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _require(holds: bool, option: str, expected: str, found: Any) -> None:
    if not holds:
        raise Rejected(f"step {option}: expected {expected}, found {found!r:.120}. Give {option}= a value in that range.", option=option)
