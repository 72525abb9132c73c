"""The context while a query or a validator runs: every operation is refused where it is called, and not where it would be awaited."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any, Final, NoReturn

from fusee_mp.runtime.loop import Refused
from fusee_mp.sdk.context import RunCtx

# What looks and does not act.
_ALLOWED: Final = frozenset(("forget", "now"))


class LookingCtx(RunCtx):
    """What a context is for that time; `what` is looking."""

    what: str


def _refused(name: str) -> Callable[..., NoReturn]:
    called = "a step" if name == "call_step" else f"ctx.{name}"

    def refused(self: LookingCtx, *_: Any, **__: Any) -> NoReturn:
        raise Refused(f"{called} was called by {self.what}, which only looks: call it in the workflow or in an update's handler")

    return refused


for _name, _member in list(vars(RunCtx).items()):
    if type(_member) is FunctionType and not _name.startswith("_") and _name not in _ALLOWED:
        setattr(LookingCtx, _name, _refused(_name))


@contextmanager
def looking(context: RunCtx, what: str) -> Iterator[None]:
    """The context only looks. What was drawn from its random numbers meanwhile is put back."""
    drawn = None if context._random is None else context._random.getstate()
    context.__class__ = LookingCtx
    context.what = what  # type: ignore[attr-defined]  # it is a LookingCtx now
    try:
        yield
    finally:
        context.__class__ = RunCtx
        if drawn is not None and context._random is not None:
            context._random.setstate(drawn)
