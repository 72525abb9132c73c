# Classes by name, on any machine: "module:qualified.name".
#
# A program's main module has two names: `__main__` where it was started as a script, its own where it is imported, as a worker does. A
# name that was written under one is found under the other, so that `except MyError` means the same in both.
from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

C = TypeVar("C", bound=type)

_registered: dict[str, type] = {}


def register_exception(cls: C) -> C:
    """Let this class be found by its name though no import leads to it, as for one defined inside a function. Usable as a decorator.

    It must be called in every process that is to catch the class.
    """
    _registered[name_of(cls)] = cls
    return cls


def name_of(cls: type) -> str:
    """The class's name, with the main module under its own name where it has one."""
    module = cls.__module__ if isinstance(cls.__module__, str) else "?"
    return f"{_main_name() or module if module == '__main__' else module}:{cls.__qualname__}"


def find(name: str) -> Any:
    """The class of this name, or None if no registration and no import leads to it."""
    known = _registered.get(name)
    if known is not None:
        return known
    module_name, _, path = name.partition(":")
    found: Any = _module(module_name)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) else None


def _module(name: str) -> ModuleType | None:
    main = sys.modules.get("__main__")
    if name == "__main__" or (name == _main_name() and name not in sys.modules):
        return main
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit):  # Whatever the module's own code raises, it cannot be imported here.
        return None


def _main_name() -> str:
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return str(spec.name)
    file = getattr(main, "__file__", None)
    return Path(file).stem if isinstance(file, str) else ""
