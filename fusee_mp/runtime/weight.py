# How much memory loaded runs take, and which of them leave when that is too much.
#
# What a run holds is its code's: the locals of its coroutines and what they refer to. That is estimated by a walk over them when the
# run becomes quiet, bounded in objects; large containers are judged by a sample. Objects that several runs share count for each.
# Rule 1: only quiet runs leave, the one that has been quiet longest first, whichever shard of the process it is in.
# Rule 2: the walk has no effect: it reads no property, calls no code of the user's, and keeps nothing.
from __future__ import annotations

import gc
import sys
from collections import deque
from types import CoroutineType, GeneratorType, MethodType
from typing import TYPE_CHECKING, Any, Final

from fusee_mp.heap import give_back

if TYPE_CHECKING:
    from fusee_mp.runtime.residence import Residence
    from fusee_mp.runtime.run import Run

# A run that waits for a signal: its task, loop, journal and coroutine (measured: 5 to 7 KiB).
RUN_BYTES: Final = 6_144
CODE_BYTES: Final = 500  # a coroutine with its frame, but for what its locals refer to
RECORD_BYTES: Final = 120  # what is kept of a record once it has been fed
OBJECTS_MAX: Final = 2_000
SAMPLE: Final = 64
# After so much was freed the system gets it back.
GIVE_BACK_BYTES: Final = 32 << 20
_SEQUENCES: Final = (list, tuple, set, frozenset, deque)
_LEAVES: Final = (int, float, bool, complex, type(None), str, bytes, bytearray)
_CODE: Final = (CoroutineType, GeneratorType, MethodType)


def weight(run: Run) -> int:
    """Roughly the bytes that its leaving would free."""
    tasks = [task for task in (run.main, *run.tasks) if task is not None]
    coroutines = [coroutine for task in tasks if (coroutine := task.get_coro()) is not None]
    return RUN_BYTES + RECORD_BYTES * run.journal.size + _held_by(coroutines)


def _held_by(roots: list[Any]) -> int:
    seen: set[int] = set()
    stack: list[tuple[Any, float]] = [(root, 1.0) for root in roots]
    total = 0.0
    while stack and len(seen) < OBJECTS_MAX:
        found, share = stack.pop()
        if id(found) in seen or not _belongs_to_run(found):
            continue
        seen.add(id(found))
        total += _size(found) * share
        if not isinstance(found, _LEAVES):
            stack += _inside(found, share)
    return int(total)


def _size(found: Any) -> int:
    if isinstance(found, _CODE):  # of which CPython 3.11 says anything: it takes what stands in the place of a length for one
        return CODE_BYTES
    return sys.getsizeof(found) if isinstance(found, _LEAVES) else object.__sizeof__(found)


def _inside(found: Any, share: float) -> list[tuple[Any, float]]:
    """What it refers to; of many, some that stand for all."""
    if isinstance(found, (*_SEQUENCES, dict)):
        inside = gc.get_referents(found) if gc.is_tracked(found) or not isinstance(found, dict) else []
    else:
        inside = gc.get_referents(found)
    if len(inside) > SAMPLE:
        share *= len(inside) / SAMPLE
        inside = inside[:: len(inside) // SAMPLE][:SAMPLE]
    return [(each, share) for each in inside]


def _belongs_to_run(found: Any) -> bool:
    kind = type(found)
    if kind in _LEAVES or kind in _SEQUENCES or kind is dict or kind in _CODE:
        return True
    # Modules, classes and functions are the process's; tasks, futures and what the runtime has of the run are in RUN_BYTES.
    return kind.__module__.partition(".")[0] not in ("builtins", "fusee_mp", "asyncio", "_asyncio", "logging", "contextvars", "types")


class Budget:
    """The memory that the loaded runs of one process may take. bytes_max: None is no limit."""

    def __init__(self, bytes_max: int | None = None) -> None:
        self.bytes_max = bytes_max
        self._residences: list[Residence] = []
        self._freed_bytes = 0

    def add(self, residence: Residence) -> None:
        self._residences.append(residence)

    def remove(self, residence: Residence) -> None:
        if residence in self._residences:
            self._residences.remove(residence)

    @property
    def bytes(self) -> int:
        """Of all loaded runs, estimated."""
        return sum(residence.loaded_bytes for residence in self._residences)

    def freed(self, weight: int) -> None:
        """A run of this weight has left memory."""
        self._freed_bytes += weight

    def enforce(self) -> None:
        """Park quiet runs until the rest fits, and give the system back what those took that have left."""
        if self.bytes_max is None:
            return
        if self._freed_bytes >= GIVE_BACK_BYTES:
            self._freed_bytes = 0
            give_back()
        excess = self.bytes - self.bytes_max
        while excess > 0:
            longest = min((each for each in self._residences if each.quiet_since is not None), key=_since, default=None)
            if longest is None:
                return
            excess -= longest.park_longest()
            longest.hurry()


def _since(residence: Residence) -> int:
    return residence.quiet_since or 0
