"""Debounced and batched starts: how long events are gathered."""
from __future__ import annotations

from dataclasses import dataclass, field

from fusee_mp.core.windows import BatchRule, DebounceRule
from fusee_mp.duration import Duration, to_ms, to_ms_or_none


@dataclass(frozen=True, slots=True)
class Debounce:
    """The run starts when no event came for `window`, or `max_wait` after the first one, with the last event as its input.

    Raises Rejected when it is made with a duration that is not positive.
    """

    window: Duration
    max_wait: Duration | None = None
    rule: DebounceRule = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        rule = DebounceRule(to_ms(self.window, "Debounce window"), to_ms_or_none(self.max_wait, "Debounce max_wait"))
        object.__setattr__(self, "rule", rule.check())


@dataclass(frozen=True, slots=True)
class Batch:
    """The run starts with the `size`th event, or `wait` after the first one, with the list of all events as its input.

    Raises Rejected when it is made with a size or a duration that is not positive.
    """

    size: int
    wait: Duration
    rule: BatchRule = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rule", BatchRule(self.size, to_ms(self.wait, "Batch wait")).check())
