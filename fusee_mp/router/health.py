# Health is progress.
#
# A process that is there is not yet one that works: it must answer, and what its log has must get into its store. Only time in
# which this process itself looked counts as a peer's silence (`Ticks`): after a pause of ours the peers' answers lie unread.
"""`Ticks`, `Health`: how much time counts, and what it says about a shard process. Pure."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

# Until a process is ready it answers nothing; recovering a large log takes time, but not this long.
STARTING_MS: Final = 600_000
STARTING_WARN_MS: Final = 30_000


class Ticks:
    """Turns times of a clock into the time that counts: of a gap no more than one and a half intervals."""

    def __init__(self, interval_ms: int, now_ms: int) -> None:
        self._most_ms = interval_ms * 3 // 2
        self._last_ms = now_ms

    def passed(self, now_ms: int) -> int:
        """The time since the last call that counts as silence."""
        passed_ms, self._last_ms = now_ms - self._last_ms, now_ms
        return min(passed_ms, self._most_ms)


class Health:
    """What one life of a shard process has shown. `facts` is its last answer, `age_ms` how old that is."""

    def __init__(self, silence_ms: int) -> None:
        self._silence_ms = silence_ms
        self.facts: dict[str, Any] = {}
        self.is_ready = False
        self.age_ms = 0
        self._stuck_ms = 0
        self._applied_lsn = 0

    @property
    def is_stalled(self) -> bool:
        """What its log has does not get into its store, for as long as its silence would be borne."""
        return self._stuck_ms >= self._silence_ms

    def ready(self) -> None:
        self.is_ready, self.age_ms = True, 0

    def answered(self, facts: Mapping[str, Any]) -> None:
        self.facts, self.age_ms = dict(facts), 0
        applied = _lsn(facts, "applied_lsn")
        if applied != self._applied_lsn or applied >= _lsn(facts, "durable_lsn"):
            self._applied_lsn, self._stuck_ms = applied, 0

    def tick(self, passed_ms: int) -> str:
        """Count time. Returns why the process must be ended; empty if it need not."""
        self.age_ms += passed_ms
        if self._applied_lsn < _lsn(self.facts, "durable_lsn"):
            self._stuck_ms += passed_ms
        if self.is_ready and self.age_ms >= self._silence_ms:
            return f"it has not answered for {self.age_ms / 1000:.1f} s"
        if not self.is_ready and self.age_ms >= STARTING_MS:
            return f"it has not become ready within {self.age_ms // 1000} s"
        return ""


def _lsn(facts: Mapping[str, Any], name: str) -> int:
    value = facts.get(name, 0)
    return value if isinstance(value, int) else 0
