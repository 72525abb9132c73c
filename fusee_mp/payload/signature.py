# The codecs of a function: what its annotations say about its result and its parameters.
#
# Annotations are looked at late, when a value first travels, so that they may name what is defined further down in the module; and one
# at a time, so that a name that exists only for type checkers spoils no other. What has no annotation travels as `Any`.
from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from types import FunctionType
from typing import Any, ForwardRef, get_args, get_origin
from weakref import WeakKeyDictionary

from fusee_mp.payload import hints
from fusee_mp.payload.converter import Codec, codec_of

_ANY = codec_of(Any)
_kept: WeakKeyDictionary[Any, Codec] = WeakKeyDictionary()
_NAMES: Mapping[str, Any] = {}
_AWAITABLES = (Awaitable, Coroutine)


class Signature:
    """The codecs of one function, each made when it is first asked for. scope: names of the function around it, if any."""

    def __init__(self, fn: Callable[..., Any], scope: Mapping[str, Any] | None = None) -> None:
        self._fn = function_of(fn)
        self._scope = {name: value for name, value in (scope or _NAMES).items() if _names_a_type(value)}

    @functools.cached_property
    def result(self) -> Codec:
        """Carries what the function returns, or what awaiting that gives. For a class: its instances."""
        if isinstance(self._fn, type):
            return codec_of(self._fn)
        return self._codec("return", awaited=True)

    @functools.cached_property
    def parameters(self) -> list[Codec]:
        """Carry the positional parameters, in their order."""
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        named = [p.name for p in inspect.signature(self._fn).parameters.values() if p.kind in kinds]
        return [self._codec(name, awaited=False) for name in named]

    def _codec(self, name: str, awaited: bool) -> Codec:
        annotation = getattr(self._fn, "__annotations__", _NAMES).get(name, Any)
        if not self._scope and not isinstance(annotation, (str, ForwardRef)):
            return codec_of(_awaited(annotation) if awaited else annotation)
        scope = {**_closure(self._fn), **self._scope}
        try:
            resolved = hints.resolve(annotation, self._fn, scope)
        except NameError:
            return Codec(ForwardRef(str(annotation)), scope)
        resolved = _awaited(resolved) if awaited else resolved
        return Codec(resolved, scope) if scope else codec_of(resolved)


def result_codec(fn: Callable[..., Any]) -> Codec:
    """Carries what `fn` returns, for a callable that has no definition with a Signature of its own. Kept as long as its function."""
    function = function_of(fn)
    if not isinstance(function, FunctionType):
        return Signature(function).result
    if not function.__annotations__:
        return _ANY
    known = _kept.get(function)
    if known is None:
        known = _kept[function] = Signature(function).result
    return known


def function_of(fn: Any) -> Any:
    """The function or class behind a partial, a bound method, a decorated function or a callable object."""
    while True:
        if isinstance(fn, functools.partial):
            fn = fn.func
        elif inspect.ismethod(fn):
            fn = fn.__func__
        elif hasattr(fn, "__wrapped__") and not isinstance(fn, type):
            fn = inspect.unwrap(fn)
        elif isinstance(fn, type) or inspect.isroutine(fn) or not callable(fn):
            return fn
        else:
            fn = type(fn).__call__


def _awaited(annotation: Any) -> Any:
    """What awaiting a value of this annotation gives: `-> Awaitable[X]` and `-> Coroutine[.., X]` of a plain function mean X."""
    if get_origin(annotation) in _AWAITABLES:
        return get_args(annotation)[-1]
    return annotation


def _closure(fn: Any) -> dict[str, Any]:
    found = {}
    for name, cell in zip(getattr(getattr(fn, "__code__", None), "co_freevars", ()), getattr(fn, "__closure__", None) or ()):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # Not assigned yet.
            continue
    return {name: value for name, value in found.items() if _names_a_type(value)}


def _names_a_type(value: Any) -> bool:
    return isinstance(value, type) or get_origin(value) is not None or type(value).__module__ in ("typing", "typing_extensions")

