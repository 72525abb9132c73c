"""Queries and updates at their two ends: how code registers for them, and what their callers make of the answer."""
from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final

from fusee_mp.core.calls import Outcome
from fusee_mp.errors import Cancelled, FuseeError, Rejected, WorkflowFailed
from fusee_mp.names import checked_name
from fusee_mp.payload.converter import Codec
from fusee_mp.payload.failure import rebuild_failure
from fusee_mp.payload.signature import Signature
from fusee_mp.runtime.children import cause_of
from fusee_mp.runtime.handlers import Handler
from fusee_mp.runtime.run import Run
from fusee_mp.sdk.handles import Query, Update

_POSITIONAL: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)

# Registering.


def register_query(run: Run, query: Any, fn: Callable[..., Any]) -> None:
    """Raises Rejected for what cannot be a query's function."""
    name = _name(query, Query, "query")
    _only_looks(fn, f'the function of query "{name}"')
    run.check_open()
    run.with_handlers().queries[name] = _handler(query, fn, None)


def register_update(run: Run, update: Any, handler: Callable[..., Any], validator: Callable[..., Any] | None) -> None:
    """Raises Rejected for what cannot be an update's handler or validator."""
    name = _name(update, Update, "update")
    _callable(handler, f'the handler of update "{name}"')
    if validator is not None:
        _only_looks(validator, f'the validator of update "{name}"')
    run.check_open()
    run.with_handlers().updates[name] = _handler(update, handler, validator)


def _name(handle: Any, kind: type[Query[Any, Any]] | type[Update[Any, Any]], word: str) -> str:
    if isinstance(handle, str):
        return checked_name(word, handle)
    if not isinstance(handle, kind):
        raise Rejected(f"ctx.on_{word} expects a {word} made by {word}(..), or its name, found {handle!r:.120}")
    return handle.name


def _callable(fn: Any, what: str) -> None:
    if not callable(fn):
        raise Rejected(f"{what} should be a function, and is {fn!r:.80}")


def _only_looks(fn: Any, what: str) -> None:
    _callable(fn, what)
    if inspect.iscoroutinefunction(fn):
        raise Rejected(f"{what} is an `async def`, and it may not wait: make it a plain `def` that only looks")


def _handler(handle: Any, fn: Callable[..., Any], validator: Callable[..., Any] | None) -> Handler:
    """With a handle its types count, with a name those of the function."""
    if not isinstance(handle, str):
        return Handler(fn, None if handle.type is None else handle.codec, handle.returns_codec, validator)
    signature = Signature(fn)
    free = [p for p in inspect.signature(fn).parameters.values() if p.kind in _POSITIONAL]  # a method's object is none of them
    return Handler(fn, signature.parameters[-len(free)] if free else None, signature.result, validator)


# Asking.


def update_id_of(given: str | None, request: str) -> str:
    """The ID that was given, checked, or that of the request. Raises Rejected."""
    return request if given is None else checked_name("update ID", given)


def updated(outcome: Outcome, id: str, name: str, returns: Codec) -> Any:
    """An update's result, or the exception that stands for another end of its handler or of its run."""
    if outcome.type:  # the run ended before its handler did
        raise cause_of(outcome.status, outcome.payload, id, outcome.reason)
    if outcome.status == "refused":
        raise Rejected(outcome.reason, id=id, update=name)
    if outcome.status == "cancelled":
        because = f": {outcome.reason}" if outcome.reason else ""
        raise Cancelled(f'update "{name}" of workflow "{id}" was cancelled{because}', id=id, update=name, reason=outcome.reason)
    return answered(outcome, id, name, returns, "update")


def answered(outcome: Outcome, id: str, name: str, returns: Codec, word: str = "query") -> Any:
    """What a handler or a query's function returned; what it raised is the cause of WorkflowFailed."""
    if outcome.status == "ok":
        return returns.decode(outcome.payload)
    cause = rebuild_failure(outcome.payload)
    error: FuseeError = WorkflowFailed(f'{word} "{name}" of workflow "{id}" failed with {type(cause).__name__}: {cause}', id=id, name=name)
    raise error from cause
