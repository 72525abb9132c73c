# What goes to a process of ours and comes back: pickles, between two interpreters of one program and one user over a socket that nobody
# else can reach. Nothing of it is stored, and nothing from elsewhere is read.
#
# Functions go by their name. A function behind a decorator that keeps it (`@step`) is found under its name all the same.
from __future__ import annotations

import inspect
import io
import pickle
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

from fusee_mp.errors import Rejected


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, FunctionType):
            return NotImplemented
        found = _named(value.__module__, value.__qualname__)
        if found is not value and inspect.unwrap(found) is value:
            return undecorated, (value.__module__, value.__qualname__)
        return NotImplemented


def dumps(value: Any) -> bytes:
    """Raises whatever the value's own code does, PicklingError most often."""
    buffer = io.BytesIO()
    _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(value)
    return buffer.getvalue()


loads = pickle.loads


def undecorated(module: str, qualname: str) -> Any:
    """The function of this name, without what stands in its place."""
    __import__(module)
    return inspect.unwrap(_named(module, qualname))


def _named(module: str, qualname: str) -> Any:
    found: Any = sys.modules.get(module)
    for name in qualname.split("."):
        found = getattr(found, name, None)
    return found


def check_by_name(step: str, fn: Callable[..., Any]) -> None:
    """Raises Rejected for a function that another process could not find."""
    try:
        dumps(fn)
    except Exception as e:
        shown = getattr(fn, "__qualname__", repr(fn))
        raise Rejected(f'step "{step}" is to run with pool="process", where functions go by their name, and {shown} cannot be found by one'
                       f" ({e}). Define it at the top level of a module", step=step) from None


def dump_call(step: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """What the process is to run. Raises Rejected for arguments that cannot be sent."""
    try:
        return dumps((fn, args, kwargs))
    except Exception as e:
        raise Rejected(f'the arguments of step "{step}" cannot be sent to a process ({type(e).__name__}: {e}). Send plain data, and open'
                       " files and connections in the step", step=step) from e
