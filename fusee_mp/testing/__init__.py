"""Tests of workflows in the test's own process, with time that does not have to be waited for."""
from __future__ import annotations

from fusee_mp.testing.crashes import crash_everywhere as crash_everywhere
from fusee_mp.testing.engine import VirtualEngine as VirtualEngine
from fusee_mp.testing.engine import engine as engine

__all__ = ["VirtualEngine", "crash_everywhere", "engine"]
