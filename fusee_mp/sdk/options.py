"""The options of a step, checked and in whole milliseconds. The same for `@step(..)`, `.with_(..)` and `ctx.step(.., ..)`."""
from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from typing_extensions import TypedDict, Unpack

from fusee_mp.duration import Duration, to_ms_or_none
from fusee_mp.errors import Rejected
from fusee_mp.names import checked_name
from fusee_mp.sdk.retry import Retry

Pool: TypeAlias = Executor | Literal["process"]


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
    pool: Pool | None


class StepChanges(CallOptions, total=False):
    """What may be given where a step is defined, by keyword."""

    name: str | None


@dataclass(frozen=True)
class StepOptions:
    """name: in place of the function's. retry: None is one attempt. timeout: of one attempt. total_timeout: of all of them together.

    heartbeat_timeout: an attempt fails when it has not called `heartbeat` for this long. limit: the system-wide limit it counts
    against. priority: higher goes first at the limit; within one priority the fairness keys take turns by weight. pool: runs the body in
    place of the engine's threads; "process" is a process of the engine's own, which is killed when the attempt is stopped.
    Raises Rejected when it is made with a value that cannot work.
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
    pool: Pool | None = None
    timeout_ms: int | None = field(init=False, repr=False, compare=False)
    total_timeout_ms: int | None = field(init=False, repr=False, compare=False)
    heartbeat_timeout_ms: int | None = field(init=False, repr=False, compare=False)
    is_plain: bool = field(init=False, repr=False, compare=False)  # none of what is looked at before each attempt is set

    def __post_init__(self) -> None:
        for option in _CHECKS:
            self._check(option)
        self.__dict__["is_plain"] = all(self.__dict__[option] is None for option in _SPECIAL)

    def changed(self, **changes: Unpack[StepChanges]) -> StepOptions:
        """A copy with these options in place of its own. An option that does not exist raises TypeError.

        Cheap, because workflow code calls it for every step that is given options: only what changes is checked.
        """
        made = object.__new__(StepOptions)
        made.__dict__.update(self.__dict__, **changes)
        for option in changes:
            if option not in _CHECKS:
                raise TypeError(f'step: expected one of the options {", ".join(_CHECKS)}, found "{option}". Correct its name.')
            made._check(option)
        if not changes.keys().isdisjoint(_SPECIAL):
            made.__dict__["is_plain"] = all(made.__dict__[option] is None for option in _SPECIAL)
        return made

    def _check(self, option: str) -> None:
        found = self.__dict__[option]
        if option in _DURATIONS:
            self.__dict__[f"{option}_ms"] = _positive_ms(option, found)
            return
        expected, holds = _CHECKS[option]
        if not holds(found):
            raise Rejected(f"step {option}: expected {expected}, found {found!r:.120}. Give {option}= such a value.", option=option)


def _positive_ms(option: str, duration: Duration | None) -> int | None:
    ms = to_ms_or_none(duration, f"step {option}")
    if ms == 0:
        raise Rejected(f"step {option}: expected more than zero, found {duration!r:.120}. Give a longer one, or None for no limit.",
                       option=option)
    return ms


def _is_name(kind: str) -> Callable[[Any], bool]:
    return lambda found: found is None or bool(checked_name(kind, found))


_DURATIONS = frozenset({"timeout", "total_timeout", "heartbeat_timeout"})
_SPECIAL: Final = (*_DURATIONS, "pool")
_CHECKS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "name": ("text or None", _is_name("step")),
    "retry": ("Retry(..) or None", lambda found: found is None or isinstance(found, Retry)),
    **{option: ("a duration or None", lambda found: True) for option in sorted(_DURATIONS)},
    "limit": ("text or None", _is_name("limit")),
    "priority": ("a whole number", lambda found: isinstance(found, int) and not isinstance(found, bool)),
    "fairness": ("text", lambda found: isinstance(found, str)),
    "weight": ("a whole number from 1", lambda found: isinstance(found, int) and not isinstance(found, bool) and found >= 1),
    "pool": ('a concurrent.futures.Executor, "process" or None', lambda found: found in (None, "process") or isinstance(found, Executor)),
}
