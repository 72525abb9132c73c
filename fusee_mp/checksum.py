"""CRC-32C, without what its package loads besides.

`import crc32c` looks up its own version, and for that loads parsers of mails and archives: a fifth of what a process of the server needs
to start. What computes is an extension module of the package, which is loaded here by itself; where a release keeps it elsewhere, all is.
"""
from __future__ import annotations

import importlib.util
from collections.abc import Callable
from importlib.machinery import PathFinder
from types import ModuleType
from typing import Any


def _extension() -> ModuleType | None:
    package = importlib.util.find_spec("crc32c")
    spec = PathFinder.find_spec("_crc32c", package.submodule_search_locations if package else None)
    if spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _load() -> Callable[..., int]:
    module: Any = _extension()
    if hasattr(module, "crc32c"):
        return module.crc32c  # type: ignore[no-any-return]
    import crc32c

    return crc32c.crc32c


crc32c: Callable[..., int] = _load()
