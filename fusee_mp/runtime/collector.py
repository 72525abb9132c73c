"""The garbage collector of a process that does nothing but run workflows."""
from __future__ import annotations

import gc
from typing import Final

# A run makes a few hundred objects that the collector tracks and that go again by themselves. With Python's own thresholds (700, 10,
# 10) a third of the cost of a short run was the collector looking at those of the other runs.
THRESHOLDS: Final = (20_000, 20, 20)


def settle() -> None:
    """Take everything that was loaded so far out of the collector's sight, and let it look less often. For the whole process."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
