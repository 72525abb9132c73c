"""Tests of workflows in the test's own process, with time that does not have to be waited for.

Names are imported when first used: pytest loads the plugin in this package wherever it is installed.
"""
from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fusee_mp.testing.crashes import crash_everywhere as crash_everywhere
    from fusee_mp.testing.virtual import VirtualEngine as VirtualEngine
    from fusee_mp.testing.virtual import engine as engine

__all__ = ["VirtualEngine", "crash_everywhere", "engine"]
_HOMES = {"VirtualEngine": "virtual", "crash_everywhere": "crashes", "engine": "virtual"}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f'module "{__name__}" has no name "{name}". Public are: {", ".join(__all__)}.')
    value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    return value
