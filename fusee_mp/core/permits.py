# Step limits: how many steps of a name may run at once, and how many may begin in a second.
#
# A permit is a lease of the table's clock. The worker that holds it renews it while its step runs; the permit of a worker that died or
# was cut off returns when the lease ends, and not before: its step may still be running.
# Rule 1: permits and waiting tickets belong to (session, ticket). What another session says about them changes nothing.
# Rule 2: a free permit goes to the ticket that the queue serves next, and only when that ticket's own client asks. The answer names it.
# Rule 3: nothing is granted for as long as a permit of an earlier life of the table may still be held (the restart grace). Whoever still
#         holds one says so within that time, and goes on holding it.
# Rule 4: a definition that cannot be is never applied. The table goes on with what it had, and says so in `failure`.
#
# The rate is a bucket of `max(per_second, 1)` tokens, full at first use. A clock that steps back adds no tokens and takes none.
from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import Struct

from fusee_mp.bounds import DURATION_MS_MAX, LIMIT_CONCURRENT_MAX, PERMIT_LEASE_MS
from fusee_mp.core.waitqueue import DEFAULT, Priority, WaitQueue
from fusee_mp.errors import Rejected, StorageError

Holder: TypeAlias = tuple[int, int]

# A worker's tickets count up from its number shifted by so much: the bits above name the client that asked.
CLIENT_SHIFT: Final = 40
# The lease of a permit that is to end when it is given back, or renewed for a shorter time.
FOR_EVER_MS: Final = 1 << 52


class LimitSpec(Struct, frozen=True):
    """concurrent: permits at once, 0 for no bound. per_second: permits granted in a second, 0 for no rate.

    Both 0 is a limit that bounds nothing but still counts: it lifts a limit while steps go on naming it.
    """

    concurrent: int = 0
    per_second: float = 0.0

    def fault(self) -> str | None:
        """What is wrong with it, in a sentence; None when nothing is."""
        if not isinstance(self.concurrent, int) or isinstance(self.concurrent, bool) or not 0 <= self.concurrent <= LIMIT_CONCURRENT_MAX:
            return (f"Limit concurrent: expected a whole number from 0 to {LIMIT_CONCURRENT_MAX:,}, found {self.concurrent!r:.80}."
                    " 0 is no bound.")
        rate = self.per_second
        if not isinstance(rate, (int, float)) or isinstance(rate, bool) or not (rate == 0 or 1_000 / DURATION_MS_MAX <= rate < math.inf):
            return f"Limit per_second: expected 0 or a rate between one in a hundred years and infinity, found {rate!r:.80}. 0 is no rate."
        return None

    def check(self) -> LimitSpec:
        """This spec, if it may be one; else Rejected."""
        fault = self.fault()
        if fault is not None:
            raise Rejected(fault)
        return self


class Granted(Struct, frozen=True):
    """This ticket of the asking session holds a permit now. It may be another than the one that was asked for."""

    ticket: int


class Queued(Struct, frozen=True):
    """Nothing for this session now; ask again, or wait for a release."""


class RetryAt(Struct, frozen=True):
    """Nothing for anybody before this time."""

    at_ms: int


Answer: TypeAlias = Granted | Queued | RetryAt
_QUEUED: Final = Queued()


class _Limit:
    __slots__ = ("spec", "balance", "refilled_ms", "held", "queue", "max_seen", "_expires_ms")

    def __init__(self, spec: LimitSpec) -> None:
        self.spec = spec
        self.balance = 0.0
        self.refilled_ms: int | None = None
        self.held: dict[Holder, int] = {}
        self.queue: WaitQueue[Holder] = WaitQueue()
        self.max_seen = 0
        self._expires_ms = 0  # No permit ends before this. Renewals only make it later, so it need not be exact.

    def expire(self, now_ms: int) -> None:
        if now_ms >= self._expires_ms:
            self.held = {holder: ends for holder, ends in self.held.items() if ends > now_ms}
            self._expires_ms = min(self.held.values(), default=now_ms)

    def hold(self, holder: Holder, ends_ms: int) -> None:
        self._expires_ms = min(self._expires_ms, ends_ms)
        self.held[holder] = ends_ms
        self.max_seen = max(self.max_seen, len(self.held))

    def refill(self, now_ms: int) -> None:
        rate = float(self.spec.per_second)
        if self.refilled_ms is None:
            self.balance, self.refilled_ms = max(rate, 1.0), now_ms
            return
        gained = max(0, now_ms - self.refilled_ms) * rate / 1_000
        self.balance = min(self.balance + gained, max(rate, 1.0))
        self.refilled_ms = max(self.refilled_ms, now_ms)

    def serve(self, session: int, ticket: int, now_ms: int, lease_ms: int) -> Answer:
        served = self.queue.next()
        if served is None or served[0] != session or served[1] >> CLIENT_SHIFT != ticket >> CLIENT_SHIFT:
            return _QUEUED
        if self.spec.concurrent and len(self.held) >= self.spec.concurrent:
            return _QUEUED
        if self.spec.per_second > 0:
            if self.balance < 1:
                return RetryAt(now_ms + max(1, math.ceil((1 - self.balance) * 1_000 / self.spec.per_second)))
            self.balance -= 1
        self.queue.pop_next()
        self.hold(served, now_ms + lease_ms)
        return Granted(served[1])


class Permits:
    """The table of all limits. Times are ms; every `now_ms` of one table is of one clock."""

    __slots__ = ("_limits", "failure")

    def __init__(self) -> None:
        self._limits: dict[str, _Limit] = {}
        self.failure: str | None = None  # Why a definition was not applied, and so must not be believed to hold.

    def define(self, name: str, spec: LimitSpec) -> bool:
        """Set a limit. True when that is news, which is to be saved. What waits and what is held stays."""
        fault = spec.fault()
        if fault is not None:
            self.failure = f'limit "{name}" was not defined: {fault}'
            return False
        limit = self._limits.get(name)
        if limit is None:
            self._limits[name] = _Limit(spec)
        elif limit.spec == spec:
            return False
        else:
            limit.spec = spec
        return True

    def spec(self, name: str) -> LimitSpec | None:
        limit = self._limits.get(name)
        return None if limit is None else limit.spec

    def names(self) -> list[str]:
        return sorted(self._limits)

    def acquire(self, name: str, session: int, ticket: int, priority: Priority = DEFAULT, *, now_ms: int,
                lease_ms: int = PERMIT_LEASE_MS, uptime_ms: int | None = None) -> Answer:
        """Ask for a permit. Asking again is harmless: it renews what is held, and keeps the place in the queue.

        A limit that is not defined grants at once. `uptime_ms`: the time since this table took over from one that may have granted
        permits, on a clock that never steps; None when there was none. Raises Rejected for a priority that cannot be.
        """
        limit = self._limits.get(name)
        if limit is None:
            return Granted(ticket)
        if uptime_ms is not None and uptime_ms <= grace_ms(limit.spec):
            return RetryAt(now_ms + grace_ms(limit.spec) - uptime_ms + 1)
        limit.expire(now_ms)
        if (session, ticket) in limit.held:
            limit.hold((session, ticket), now_ms + lease_ms)
            return Granted(ticket)
        limit.queue.push((session, ticket), priority)
        if limit.spec.per_second > 0:
            limit.refill(now_ms)
        return limit.serve(session, ticket, now_ms, lease_ms)

    def release(self, name: str, session: int, ticket: int) -> None:
        """The step has ended, or no longer wants to begin."""
        limit = self._limits.get(name)
        if limit is not None:
            limit.held.pop((session, ticket), None)
            limit.queue.remove((session, ticket))

    def renew(self, session: int, *, now_ms: int, lease_ms: int = PERMIT_LEASE_MS) -> None:
        """Extend every permit of the session that has not ended yet."""
        for limit in self._limits.values():
            limit.expire(now_ms)
            for holder in limit.held:
                if holder[0] == session:
                    limit.hold(holder, now_ms + lease_ms)

    def confirm(self, name: str, session: int, tickets: Iterable[int], *, now_ms: int, lease_ms: int = PERMIT_LEASE_MS,
                uptime_ms: int | None = None) -> None:
        """The session says which permits of a limit it holds. Those that have not ended are extended, and no others of it: a grant of
        which it did not hear must not stay for ever. In the grace, what an earlier life of the table granted is taken over."""
        limit = self._limits.get(name)
        if limit is None:
            return
        limit.expire(now_ms)
        in_grace = uptime_ms is not None and uptime_ms <= grace_ms(limit.spec)
        for ticket in tickets:
            if in_grace or (session, ticket) in limit.held:
                limit.hold((session, ticket), now_ms + lease_ms)

    def disconnected(self, session: int) -> None:
        """The session will ask no more. Its permits stay until they end: its steps may still run."""
        for limit in self._limits.values():
            limit.queue.remove_if(lambda holder: holder[0] == session)

    def next_served(self, name: str) -> Holder | None:
        """Whom the queue serves next, if that could be now."""
        limit = self._limits.get(name)
        if limit is None or limit.spec.concurrent and len(limit.held) >= limit.spec.concurrent:
            return None
        return limit.queue.next()

    def waiting(self, name: str) -> int:
        limit = self._limits.get(name)
        return 0 if limit is None else len(limit.queue)

    def in_use(self, name: str, now_ms: int) -> int:
        limit = self._limits.get(name)
        return 0 if limit is None else sum(ends > now_ms for ends in limit.held.values())

    def max_in_use(self, name: str) -> int:
        """The most permits that were ever held at once."""
        limit = self._limits.get(name)
        return 0 if limit is None else limit.max_seen

    def state(self) -> list[dict[str, Any]]:
        """Everything as plain values, sorted, so that equal tables are equal values. Floats as their bits: half a unit in the last
        place of a balance can decide a grant, and every replica must decide alike."""
        return [_plain(name, limit) for name, limit in sorted(self._limits.items())]

    @classmethod
    def load(cls, state: object) -> Permits:
        """The table that `state` described. Raises StorageError, with the limit's name, for what no table can have written."""
        self = cls()
        for saved in _converted(state):
            if saved.name in self._limits:
                raise StorageError(f'saved limits: "{saved.name}" stands there twice')
            self._limits[saved.name] = _loaded(saved)
        return self


def grace_ms(spec: LimitSpec) -> int:
    """How long a permit of an earlier life may still be held, or its token be missing from the rate."""
    return max(PERMIT_LEASE_MS, math.ceil(1_000 / spec.per_second) if spec.per_second > 0 else 0)


class _Saved(Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    concurrent: int
    per_second: int
    balance: int
    refilled_ms: int | None
    held: list[tuple[int, int, int]]
    waiting: list[tuple[tuple[int, int], int, str, int]]
    ahead: list[tuple[int, str, int]]
    max_seen: int


def _plain(name: str, limit: _Limit) -> dict[str, Any]:
    return {
        "name": name, "concurrent": limit.spec.concurrent, "per_second": _bits(limit.spec.per_second), "balance": _bits(limit.balance),
        "refilled_ms": limit.refilled_ms, "held": [[*holder, ends] for holder, ends in sorted(limit.held.items())],
        **limit.queue.state(list), "max_seen": limit.max_seen,
    }


def _converted(state: object) -> list[_Saved]:
    try:
        return msgspec.convert(state, list[_Saved])
    except msgspec.ValidationError as e:
        raise StorageError(f"saved limits: {e}") from None


def _loaded(saved: _Saved) -> _Limit:
    limit = _Limit(LimitSpec(saved.concurrent, _float(saved.name, saved.per_second)))
    fault = limit.spec.fault()
    if fault is not None:
        raise StorageError(f'saved limit "{saved.name}": {fault}')
    limit.balance, limit.refilled_ms = _float(saved.name, saved.balance), saved.refilled_ms
    if not 0 <= limit.balance < math.inf:
        raise StorageError(f'saved limit "{saved.name}": expected a finite balance of 0 or more, found {limit.balance!r}')
    for session, ticket, ends_ms in saved.held:
        if (session, ticket) in limit.held:
            raise StorageError(f'saved limit "{saved.name}": ticket {ticket} of session {session} holds two permits')
        limit.hold((session, ticket), ends_ms)
    if saved.max_seen < limit.max_seen:
        raise StorageError(f'saved limit "{saved.name}": {limit.max_seen} permits are held, but never more than {saved.max_seen} were')
    limit.max_seen = saved.max_seen
    limit.queue = _queue(saved, limit.held)
    return limit


def _queue(saved: _Saved, held: dict[Holder, int]) -> WaitQueue[Holder]:
    both = [holder for holder, *_ in saved.waiting if holder in held]
    if both:
        raise StorageError(f'saved limit "{saved.name}": ticket {both[0][1]} of session {both[0][0]} both waits and holds a permit')
    try:
        return WaitQueue.load(((holder, Priority(level, key, weight)) for holder, level, key, weight in saved.waiting), saved.ahead)
    except (Rejected, StorageError) as e:
        raise StorageError(f'saved limit "{saved.name}": {e.message}') from None


def _bits(number: float) -> int:
    return int.from_bytes(struct.pack(">d", number), "big")


def _float(name: str, bits: int) -> float:
    if not 0 <= bits < 1 << 64:
        raise StorageError(f'saved limit "{name}": expected the 64 bits of a float, found {bits}')
    number: float = struct.unpack(">d", bits.to_bytes(8, "big"))[0]
    return number
