# Workflows and steps as plain values.
#
# A definition is made at import, apart from any engine, and changes no more. What a called step does is decided by the loop it runs
# on: a workflow's own loop offers `fusee_step` and makes it a durable step; on any other loop, or in a thread, the body just runs.
from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import sys
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, NoReturn, cast, overload

from typing_extensions import ParamSpec, TypeVar, Unpack

from fusee_mp.duration import Duration, to_ms_or_none
from fusee_mp.errors import Rejected
from fusee_mp.names import checked_name
from fusee_mp.payload.converter import Codec
from fusee_mp.payload.signature import Signature
from fusee_mp.sdk.options import StepChanges, StepOptions

if TYPE_CHECKING:
    from fusee_mp.sdk.ctx import Ctx

P = ParamSpec("P")
P2 = ParamSpec("P2")
S = TypeVar("S")
I = TypeVar("I")
I_contra = TypeVar("I_contra", contravariant=True)
R = TypeVar("R")
R2 = TypeVar("R2")
R_co = TypeVar("R_co", covariant=True)

DEFAULTS = StepOptions()
OnExhausted = Literal["fail", "pause"]


class Workflow(Generic[I_contra, R_co]):
    """A workflow's definition: its name, its code and the types of its input and its result."""

    def __init__(self, fn: Callable[..., Coroutine[Any, Any, R_co]], name: str | None = None, *, version: int = 0,
                 on_exhausted: OnExhausted | None = None, retention: Duration | None = None, scope: dict[str, Any] | None = None) -> None:
        self._fn: Callable[..., Coroutine[Any, Any, R_co]] = _coroutine_function(fn)
        self.name = checked_name("workflow", fn.__name__ if name is None else name)
        self.version = _version(self.name, version)
        self.on_exhausted = _on_exhausted(self.name, on_exhausted)
        self.retention_ms = to_ms_or_none(retention, f'workflow "{self.name}" retention')
        self.signature = Signature(fn, scope)
        self.takes_input = _takes_input(self.name, fn)
        functools.update_wrapper(cast(Any, self), fn, updated=())

    @property
    def fn(self) -> Callable[..., Coroutine[Any, Any, R_co]]:
        """The undecorated function."""
        return self._fn

    @property
    def input_codec(self) -> Codec:
        """Carries the input; None is the only value of a workflow that takes none."""
        return self.signature.parameters[1] if self.takes_input else Codec.none()

    @property
    def result_codec(self) -> Codec:
        """Carries the result."""
        return self.signature.result

    if not TYPE_CHECKING:  # Unseen by type checkers, which then refuse the call where it is written.
        def __call__(self, *args: object, **kwargs: object) -> NoReturn:
            raise Rejected(
                f'workflow "{self.name}" was called like a function. Use `await engine.start({self.__name__}, id, input)`; inside a '
                f"workflow `await ctx.child({self.__name__}, id, input)`; in a unit test `{self.__name__}.fn(ctx, input)`.",
                workflow=self.name)

    def __repr__(self) -> str:
        return f'<workflow "{self.name}">'


class WorkflowDecorator:
    """What `@workflow(..)` with options gives: it makes the definition of the function below it."""

    def __init__(self, name: str | None, version: int, on_exhausted: OnExhausted | None, retention: Duration | None) -> None:
        if name is not None:
            checked_name("workflow", name)
        self._options: dict[str, Any] = {"name": name, "version": version, "on_exhausted": on_exhausted, "retention": retention}

    @overload
    def __call__(self, fn: Callable[[Ctx], Coroutine[Any, Any, R]], /) -> Workflow[None, R]: ...
    @overload
    def __call__(self, fn: Callable[[Ctx, I], Coroutine[Any, Any, R]], /) -> Workflow[I, R]: ...
    def __call__(self, fn: Callable[..., Coroutine[Any, Any, R]], /) -> Workflow[Any, R]:
        return Workflow(fn, scope=_caller_scope(fn), **self._options)


@overload
def workflow(fn: Callable[[Ctx], Coroutine[Any, Any, R]], /) -> Workflow[None, R]: ...
@overload
def workflow(fn: Callable[[Ctx, I], Coroutine[Any, Any, R]], /) -> Workflow[I, R]: ...
@overload
def workflow(name: str | None = None, *, version: int = 0, on_exhausted: OnExhausted | None = None,
             retention: Duration | None = None) -> WorkflowDecorator: ...
def workflow(name: Any = None, *, version: int = 0, on_exhausted: OnExhausted | None = None, retention: Duration | None = None) -> Any:
    """Define a workflow: `@workflow`, `@workflow()` or `@workflow("name", ..)` over an `async def` of a context and at most one input.

    version: recorded at each start, for `ctx.patched` and for people. on_exhausted: whether a step that runs out of attempts fails, or
    pauses the run; None is as the engine's Config says, "fail" in a worker. retention: how long a finished run is kept. Raises Rejected
    for a function or an option that cannot work.
    """
    if callable(name):
        return Workflow(name, scope=_caller_scope(name))
    return WorkflowDecorator(name, version, on_exhausted, retention)


class Step(Generic[P, R_co]):
    """A step's definition. Calling it gives a coroutine: a durable step inside a workflow, elsewhere a plain call of the function."""

    def __init__(self, fn: Callable[P, Any], options: StepOptions = DEFAULTS, signature: Signature | None = None) -> None:
        self._fn: Callable[P, Any] = _callable(fn)
        self.options = options
        self.name = options.name or checked_name("step", getattr(fn, "__name__", type(fn).__name__))
        self.signature = signature or Signature(fn)
        functools.update_wrapper(cast(Any, self), fn, updated=())

    @property
    def fn(self) -> Callable[P, Any]:
        """The undecorated function."""
        return self._fn

    @property
    def result_codec(self) -> Codec:
        """Carries the result."""
        return self.signature.result

    if TYPE_CHECKING:
        # To mypy, gather over this and an overloaded method would be Any if it were a `def` that gives a Coroutine.
        async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...
    else:
        def __call__(self, *args, **kwargs):
            # Inside a workflow it is asked for here, so that a query, which may not and would never await it, is told.
            run_step = getattr(asyncio._get_running_loop(), "fusee_step", None)
            return self._call(*args, **kwargs) if run_step is None else run_step(self, args, kwargs)

    async def _call(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        run_step = getattr(asyncio._get_running_loop(), "fusee_step", None)
        if run_step is not None:
            return cast(R_co, await run_step(self, args, kwargs))
        result = self._fn(*args, **kwargs)
        return cast(R_co, await result if inspect.isawaitable(result) else result)

    def with_(self, **changes: Unpack[StepChanges]) -> Step[P, R_co]:
        """The same step with these options in place of its own. Raises Rejected for a value that cannot work."""
        return Step(self._fn, self.options.changed(**changes), self.signature)

    @overload
    def __get__(self, obj: None, owner: type[Any], /) -> Step[P, R_co]: ...
    @overload
    def __get__(self: Step[Concatenate[S, P2], R2], obj: S, owner: type[Any] | None = None, /) -> Step[P2, R2]: ...
    def __get__(self, obj: Any, owner: Any = None, /) -> Any:
        if obj is None:
            return self
        bound = copy.copy(self)
        bound._fn = self._fn.__get__(obj, owner)
        return bound

    def __repr__(self) -> str:
        return f'<step "{self.name}">'


class StepDecorator:
    """What `@step(..)` with options gives: it makes the definition of the function below it."""

    def __init__(self, options: StepOptions) -> None:
        self._options = options

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> Step[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Step[P, R]: ...
    def __call__(self, fn: Callable[..., Any], /) -> Step[..., Any]:
        return Step(fn, self._options, Signature(fn, _caller_scope(fn)))


@overload
def step(fn: Callable[P, Coroutine[Any, Any, R]], /) -> Step[P, R]: ...
@overload
def step(fn: Callable[P, R], /) -> Step[P, R]: ...
@overload
def step(**options: Unpack[StepChanges]) -> StepDecorator: ...
def step(fn: Any = None, /, **options: Unpack[StepChanges]) -> Any:
    """Define a step: `@step` or `@step(retry=.., timeout=.., ..)` over a function or method, sync or async.

    Without `retry` it has one attempt. Raises Rejected for something that is not a function, or an option that cannot work.
    """
    if fn is None:
        return StepDecorator(StepOptions(**options))
    return Step(fn, StepOptions(**options), Signature(fn, _caller_scope(_callable(fn))))


def _caller_scope(fn: Any) -> dict[str, Any] | None:
    """The names where a function that was defined inside another one stands: its annotations may mean local classes."""
    if "<locals>" not in getattr(fn, "__qualname__", ""):
        return None
    frame = sys._getframe(2)
    scope = dict(frame.f_locals)
    while "__qualname__" in frame.f_locals and frame.f_back is not None:  # The body of a class, whose code sees past it.
        frame = frame.f_back
        scope = {**frame.f_locals, **scope}
    return scope


def _coroutine_function(fn: Any) -> Any:
    if inspect.iscoroutinefunction(fn):
        return fn
    shown = getattr(fn, "__name__", repr(fn))
    if inspect.isasyncgenfunction(fn):
        raise Rejected(f'workflow "{shown}" is an async generator. Remove its `yield`: a workflow returns one result.', workflow=shown)
    if not callable(fn):
        raise Rejected(f"@workflow expects an `async def`, found {fn!r:.80}. Put it directly over the function.")
    raise Rejected(f'workflow "{shown}" is a plain `def`. Write `async def {shown}(ctx, ..)`: what it awaits is what is recorded.',
                   workflow=shown)


def _callable(fn: Any) -> Any:
    if isinstance(fn, classmethod):
        raise Rejected(f'step "{fn.__name__}": @step stands above @classmethod. Put @classmethod above @step.')
    if isinstance(fn, Workflow):
        raise Rejected(f'workflow "{fn.name}" cannot be a step. Start it with `ctx.child(..)`.')
    if not callable(fn):
        raise Rejected(f"@step expects a function, found {fn!r:.80}. Its options are keywords: @step(name=.., retry=..).")
    if inspect.isasyncgenfunction(fn) or inspect.isgeneratorfunction(fn):
        raise Rejected(f'step "{fn.__name__}" is a generator. Return one result; progress goes through `heartbeat`.')
    return fn


def _takes_input(name: str, fn: Any) -> bool:
    parameters = list(inspect.signature(fn).parameters.values())
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p for p in parameters if p.kind == p.KEYWORD_ONLY and p.default is p.empty]
    if not 1 <= len(positional) <= 2 or required or any(p.kind == p.VAR_POSITIONAL for p in parameters):
        raise Rejected(f'workflow "{name}": expected a context and at most one input, found {inspect.signature(fn)}. '
                       "Put several inputs into one dataclass.", workflow=name)
    return len(positional) == 2


def _version(name: str, version: Any) -> int:
    if not isinstance(version, int) or isinstance(version, bool) or not 0 <= version < 1 << 31:
        raise Rejected(f'workflow "{name}" version: expected a whole number from 0, found {version!r:.80}. Count versions up from 0.')
    return version


def _on_exhausted(name: str, choice: Any) -> OnExhausted | None:
    if choice not in (None, "fail", "pause"):
        raise Rejected(f'workflow "{name}" on_exhausted: expected "fail" or "pause", found {choice!r:.80}. Use one of the two.')
    return cast(OnExhausted | None, choice)
