"""What the lease table hears, and what it wants done."""
from __future__ import annotations

from dataclasses import dataclass

# Events.

@dataclass(frozen=True, slots=True)
class Joined:
    session: int
    worker: str
    instance: str
    workflows: tuple[str, ...] = ()
    max_shards: int = 0


@dataclass(frozen=True, slots=True)
class Left:
    session: int


@dataclass(frozen=True, slots=True)
class Draining:
    session: int


@dataclass(frozen=True, slots=True)
class Released:
    session: int
    shard: int


@dataclass(frozen=True, slots=True)
class Lacks:
    """The session's worker has no code for these types, of which runs in the shard have something to do."""

    session: int
    shard: int
    workflows: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Held:
    shard: int
    holder: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Freed:
    shard: int


@dataclass(frozen=True, slots=True)
class ShardUp:
    shard: int


@dataclass(frozen=True, slots=True)
class ShardDown:
    shard: int


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Nothing else happened: assignments may be late."""


@dataclass(frozen=True, slots=True)
class Closed:
    """The server stops: nothing is assigned from now on."""


Event = Joined | Left | Draining | Released | Lacks | Held | Freed | ShardUp | ShardDown | TimePassed | Closed


# Effects.

@dataclass(frozen=True, slots=True)
class Assign:
    """Tell the session to lease these shards."""

    session: int
    shards: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Revoke:
    """Tell the session to hand the shard back, or to forget about leasing it; `gently`: once the bodies that run there have ended."""

    session: int
    shard: int
    reason: str
    gently: bool = False


@dataclass(frozen=True, slots=True)
class Fence:
    """Tell the shard process to end the lease that it granted."""

    shard: int
    reason: str


@dataclass(frozen=True, slots=True)
class Dismiss:
    """Close the session, with the reason."""

    session: int
    reason: str


Effect = Assign | Revoke | Fence | Dismiss
