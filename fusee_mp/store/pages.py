"""Pages of answers: bounded in number and, by and large, in bytes."""
from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from fusee_mp.errors import Rejected

LIMIT_MAX: Final = 100_000
PAGE_BYTES: Final = 4 << 20
T = TypeVar("T")


def limited(limit: int) -> int:
    """The limit, if it may be one; else Rejected."""
    if not 0 < limit <= LIMIT_MAX:
        raise Rejected(f"a page has 1 to {LIMIT_MAX} entries, not {limit}: ask for several pages")
    return limit


def page(rows: Iterable[T], size: Callable[[T], int]) -> list[T]:
    """The first rows, until they have grown to PAGE_BYTES."""
    found: list[T] = []
    total = 0
    for row in rows:
        found.append(row)
        total += size(row)
        if total >= PAGE_BYTES:
            break
    return found
