"""What a limit bounds."""
from __future__ import annotations

from dataclasses import dataclass

from fusee_mp.core.permits import LimitSpec


@dataclass(frozen=True, slots=True)
class LimitStatus:
    """A limit and its use. in_use: permits held now; waiting: steps that wait for one; most: permits held at once at most since the
    shard that the limit's name belongs to was last opened."""

    name: str
    concurrent: int
    per_second: float
    in_use: int
    waiting: int
    most: int


@dataclass(frozen=True, slots=True)
class Limit:
    """Bounds the steps that name it, over all runs.

    concurrent: how many run at once, 0 for no bound. per_second: how many begin in a second, 0 for no rate; up to a second's worth may
    begin together. Raises Rejected when it is made with a value that cannot work.
    """

    concurrent: int = 0
    per_second: float = 0.0

    def __post_init__(self) -> None:
        LimitSpec(self.concurrent, self.per_second).check()
