"""When a failed step is tried again, and after how long."""
from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from fusee_mp.bounds import ATTEMPTS_MAX
from fusee_mp.core.retry import Fatal as Fatal
from fusee_mp.core.retry import RetrySchedule
from fusee_mp.duration import Duration, to_ms
from fusee_mp.errors import Rejected


@dataclass(frozen=True, slots=True)
class Retry:
    """A retry policy. The n-th failure is followed by a delay of `initial` times `factor` to the power n-1, at most `maximum`.

    attempts: tries in all; None is until one succeeds. jitter: a share of the delay, 0 to 1, that is drawn at random and added or taken
    away. only: failures that are tried again, all if empty. never: failures that are not, whatever `only` says.
    Raises Rejected when it is made with a value that cannot work.
    """

    attempts: int | None = None
    initial: Duration = "100ms"
    maximum: Duration = "1m"
    factor: float = 2.0
    jitter: float = 0.1
    only: tuple[type[Exception], ...] = ()
    never: tuple[type[Exception], ...] = ()
    initial_ms: int = field(init=False, repr=False, compare=False)
    maximum_ms: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.attempts is not None:
            in_range = _is_whole(self.attempts) and 1 <= self.attempts <= ATTEMPTS_MAX
            _require(in_range, "attempts", "a whole number from 1, or None", self.attempts)
        _require(_is_number(self.factor) and 1.0 <= self.factor < math.inf, "factor", "a number from 1.0", self.factor)
        _require(_is_number(self.jitter) and 0.0 <= self.jitter <= 1.0, "jitter", "a number from 0.0 to 1.0", self.jitter)
        object.__setattr__(self, "only", _exception_types("only", self.only))
        object.__setattr__(self, "never", _exception_types("never", self.never))
        object.__setattr__(self, "initial_ms", to_ms(self.initial, "Retry initial"))
        object.__setattr__(self, "maximum_ms", to_ms(self.maximum, "Retry maximum"))
        _require(self.initial_ms <= self.maximum_ms, "maximum", f"at least initial ({self.initial!r})", self.maximum)

    def allows(self, error: BaseException) -> bool:
        """True if a step that failed with `error` may be tried again while attempts are left."""
        if not isinstance(error, Exception) or isinstance(error, (Fatal, *self.never)):
            return False
        return not self.only or isinstance(error, self.only)

    @property
    def schedule(self) -> RetrySchedule:
        """The numbers of this policy, as the core counts with them."""
        return RetrySchedule(self.attempts, self.initial_ms, self.maximum_ms, self.factor, self.jitter)


def _exception_types(option: str, types: Any) -> tuple[type[Exception], ...]:
    found = types if isinstance(types, tuple) else (types,)
    for kind in found:
        is_one = isinstance(kind, type) and issubclass(kind, Exception)
        _require(is_one, option, "an exception class or a tuple of them, as in (ValueError, OSError)", types)
    return found


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _require(holds: bool, option: str, expected: str, found: object) -> None:
    if not holds:
        raise Rejected(f"Retry {option}: expected {expected}, found {found!r:.120}. Give {option}= such a value.", option=option)
