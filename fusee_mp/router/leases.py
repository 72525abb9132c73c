# The lease table: which worker should have which shard.
#
# Leases themselves are granted by the shard processes, durably, each with its epoch. This table only decides whom to send to which
# shard, and hears from the shard processes what came of it. So being wrong here costs time and never safety.
#
# A seat is what the table knows of one shard: who holds it (as its shard process says), and which session it is assigned to. An assignment
# is *pending* until the shard process says HELD of that session's worker; then it is *settled*.
#
# Rule 1: a shard is assigned to at most one session. `_seat` and `_unseat` are the only ways to change that.
# Rule 2: HELD and FREE are the truth. An assignment that contradicts them yields.
# Rule 3: a free shard with a session that has room is assigned before `apply` returns, to the first that arrived. The exception:
#         a session that just let go of a shard or did not lease it in time comes last for it, and not before RETRY_MS: it may still
#         be busy with letting go, and whoever refuses must not be asked in a circle. Rule 5 comes before the order.
# Rule 4: a worker's newest instance is the only one. An older one's shards are fenced and given to it, and the older one is kept out
#         as long as another has a session or a shard. Then it may come back, and is the newest. So of two that are alive under one name
#         one works and the other waits, however often they connect, and when the one ends the other takes its place.
# Rule 5: a shard whose holder lacks code that runs there need goes to a worker that has it, if there is one. The holder is asked, and has
#         the shard until it has handed it over. A worker without room for it gives up another shard in exchange, if somebody can have that.
#
# Why rule 5 is fair and comes to rest. A shard *wants* code from the moment its holder lacks it until it is held anew. It moves only if it
# wants something, or is given up for one that does; so when no run needs other code, nothing moves. Of the shards that want one worker
# the one that was held longest by another is first, and of those the worker has it gives up the one it has longest, each after STAY_MS.
# Moving sends a shard to the end of either queue, so all have their turns. And of the workers that have code for a shard the one that had
# it longest ago, or never, is next. A shard on its way takes a place at its target at once (`coming`) and none at its holder (`leaving`):
# nobody is asked for a shard in vain, and neither of two that are exchanged waits for the other. So a worker may have one more than its
# bound while it lets bodies end in a shard in which it begins nothing.
#
# No clock, no I/O: events in, effects out, time as an argument.
"""`LeaseTable`: a pure machine that assigns shards to workers."""
from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any, Final

from fusee_mp.bounds import LACKED_MAX
from fusee_mp.router.lease_events import (
    Assign,
    Closed,
    Dismiss,
    Draining,
    Effect,
    Event,
    Fence,
    Freed,
    Held,
    Joined,
    Lacks,
    Left,
    Released,
    Revoke,
    ShardDown,
    ShardUp,
    TimePassed,
)
from fusee_mp.router.seats import Member, Seat, holder_name, worker_of

ASSIGN_MS: Final = 10_000
RETRY_MS: Final = 1_000
# A holder keeps a shard at least so long before it goes to one with other code: where two lack each other's, they take turns.
STAY_MS: Final = 1_000
# Instances that were replaced, and are remembered. An older one would have to be alive after so many restarts of workers.
REPLACED_MAX: Final = 1024

REPLACED: Final = ("a newer instance of this worker took over, and this one waits until that is gone;"
                   " if both should work, give each worker a name of its own")
RECONNECTED: Final = "this worker connected again"
LATE: Final = f"it was not leased within {ASSIGN_MS // 1000} s of being assigned"


class LeaseTable:
    """Who has, and who should have, each of `shards` shards. Sessions are in the order in which they arrived."""

    def __init__(self, shards: int) -> None:
        self.seats = [Seat(shard) for shard in range(shards)]
        self.members: dict[int, Member] = {}
        self._replaced: dict[str, None] = {}
        self._effects: list[Effect] = []
        self._now_ms = 0
        self._is_closed = False

    @property
    def held(self) -> int:
        """How many shards somebody holds."""
        return sum(1 for seat in self.seats if seat.holder)

    def apply(self, event: Event, now_ms: int) -> list[Effect]:
        """Take an event at a time that never decreases, and return what is to be done, in order."""
        self._now_ms = now_ms
        _HANDLERS[type(event)](self, event)
        self._place()
        effects, self._effects = self._effects, []
        return effects

    # Sessions.

    def _joined(self, event: Joined) -> None:
        name = holder_name(event.worker, event.instance)
        if name in self._replaced and self._has_other(event.worker, name):
            self._effects.append(Dismiss(event.session, REPLACED))
            return
        self._replaced.pop(name, None)
        member = Member(event.session, event.worker, event.instance, tuple(dict.fromkeys(event.workflows)), event.max_shards)
        self.members[event.session] = member
        self._reclaim(member)
        taken = self._take_over_sessions(member) + self._take_over_holders(member)
        if taken:
            self._effects.append(Assign(member.session, tuple(taken)))

    def _has_other(self, worker: str, name: str) -> bool:
        """Whether an instance of the worker that was not replaced, and has not this name, has a session or a shard."""
        names = {m.name for m in self.members.values() if m.worker == worker}.union(seat.holder for seat in self.seats)
        return any(worker_of(other) == worker and other != name and other not in self._replaced for other in names)

    def _reclaim(self, member: Member) -> None:
        """Leases of this very instance that outlived its session. First of all, so that they count against its bound."""
        for seat in self.seats:
            if seat.holder == member.name and seat.session is None:
                self._seat(seat, member, is_settled=True)

    def _take_over_sessions(self, member: Member) -> list[int]:
        taken: list[int] = []
        for other in [m for m in self.members.values() if m.worker == member.worker and m is not member]:
            self._forget_coming(other)
            is_same = other.instance == member.instance
            for seat in [self.seats[shard] for shard in sorted(other.shards)]:
                if is_same:
                    self._hand_on(seat, member)
                else:
                    taken += self._take_over(seat, member, other)
            if not is_same:
                self._replace(other.name)
            del self.members[other.session]
            self._effects.append(Dismiss(other.session, RECONNECTED if is_same else REPLACED))
        return taken

    def _hand_on(self, seat: Seat, member: Member) -> None:
        """From a session to the next of the same instance. What was pending may not have been heard, and is assigned anew."""
        is_settled = seat.is_settled
        self._unseat(seat)
        if is_settled:
            self._seat(seat, member, is_settled=True)

    def _take_over(self, seat: Seat, member: Member, other: Member) -> list[int]:
        """From an older instance. Also a pending one is fenced: its HELD may be on the way."""
        self._effects += [Fence(seat.shard, REPLACED), Revoke(other.session, seat.shard, REPLACED)]
        self._unseat(seat)
        return self._reserve(seat, member)

    def _take_over_holders(self, member: Member) -> list[int]:
        """From older instances whose session is gone already."""
        taken: list[int] = []
        for seat in self.seats:
            if seat.holder and seat.session is None and worker_of(seat.holder) == member.worker:
                self._replace(seat.holder)
                self._effects.append(Fence(seat.shard, REPLACED))
                taken += self._reserve(seat, member)
        return taken

    def _reserve(self, seat: Seat, member: Member) -> list[int]:
        """Assign a shard whose lease is being ended, so that the worker asks for it at once."""
        if self._is_closed or member.places <= 0:
            return []
        self._seat(seat, member)
        return [seat.shard]

    def _replace(self, name: str) -> None:
        self._replaced[name] = None
        if len(self._replaced) > REPLACED_MAX:
            del self._replaced[next(iter(self._replaced))]

    def _left(self, event: Left) -> None:
        member = self.members.get(event.session)
        if member is None:
            return
        self._forget_coming(member)
        for shard in sorted(member.shards):
            self._unseat(self.seats[shard])
        del self.members[event.session]

    def _draining(self, event: Draining) -> None:
        member = self.members.get(event.session)
        if member is None:
            return
        member.is_draining = True
        self._forget_coming(member)
        for seat in [self.seats[shard] for shard in sorted(member.shards)]:
            if not seat.is_settled:
                self._unseat(seat)

    def _released(self, event: Released) -> None:
        seat = self.seats[event.shard]
        if seat.session != event.session:
            return
        seat.shunned, seat.shunned_until_ms = event.session, self._now_ms + RETRY_MS
        if not seat.is_settled:
            self._unseat(seat)

    def _lacks(self, event: Lacks) -> None:
        seat = self.seats[event.shard]
        if seat.session == event.session and seat.is_settled:
            new = (name for name in event.workflows if name not in seat.wanted)
            seat.wanted = seat.wanted.union(islice(new, LACKED_MAX - len(seat.wanted)))

    # Shards.

    def _held(self, event: Held) -> None:
        seat = self.seats[event.shard]
        if not seat.is_up:
            return
        seat.holder, seat.epoch, seat.held_ms = event.holder, event.epoch, self._now_ms
        seat.wanted = frozenset()
        self._settle(seat)
        member = next((m for m in self.members.values() if m.worker == worker_of(event.holder)), None)
        if member is not None and member.name != event.holder:
            self._replace(event.holder)
        if event.holder in self._replaced:
            self._effects.append(Fence(seat.shard, REPLACED))
            return
        if seat.session is not None and (member is None or seat.session != member.session):
            self._effects.append(Revoke(seat.session, seat.shard, f'worker "{event.holder}" has leased it'))
        self._unseat(seat)
        seat.shunned = None
        if member is not None:
            self._seat(seat, member, is_settled=True)
            member.had[seat.shard] = self._now_ms

    def _freed(self, event: Freed) -> None:
        seat = self.seats[event.shard]
        seat.holder = ""
        if seat.is_moving:
            seat.shunned, seat.shunned_until_ms = seat.session, self._now_ms + RETRY_MS
        if seat.is_settled:
            self._unseat(seat)

    def _up(self, event: ShardUp) -> None:
        self.seats[event.shard].is_up = True

    def _down(self, event: ShardDown) -> None:
        seat = self.seats[event.shard]
        seat.is_up, seat.holder = False, ""
        self._settle(seat)
        self._unseat(seat)

    def _time_passed(self, event: TimePassed) -> None:
        for seat in self.seats:
            if seat.session is None or seat.is_settled or self._now_ms - seat.assigned_ms < ASSIGN_MS:
                continue
            self._effects.append(Revoke(seat.session, seat.shard, LATE))
            if seat.holder:
                self._effects.append(Fence(seat.shard, REPLACED))
            seat.shunned, seat.shunned_until_ms = seat.session, self._now_ms + RETRY_MS
            self._unseat(seat)

    def _close(self, event: Closed) -> None:
        self._is_closed = True

    # Assigning.

    def _place(self) -> None:
        if self._is_closed:
            return
        for seat in sorted((seat for seat in self.seats if seat.wanted), key=_held_since):
            if self._may_move(seat):
                self._hand_to_code(seat)
        assigned: dict[int, list[int]] = {}
        for seat in self.seats:
            member = self._choose(seat) if seat.is_free else None
            if member is not None:
                self._seat(seat, member)
                assigned.setdefault(member.session, []).append(seat.shard)
        self._effects += [Assign(session, tuple(shards)) for session, shards in assigned.items()]

    def _may_move(self, seat: Seat) -> bool:
        return seat.is_settled and not seat.is_moving and self._now_ms - seat.held_ms >= STAY_MS

    def _hand_to_code(self, seat: Seat) -> None:
        """Ask the holder for the shard, if another worker has code that it lacks, and room for it or a shard to exchange."""
        able = [m for m in self.members.values() if m.session != seat.session and not seat.wanted.isdisjoint(m.types)]
        for member in sorted(able, key=lambda m: (m.had.get(seat.shard, -1), m.room <= 0)):
            if member.room > 0:
                self._move(seat, member, _wants(seat, member))
                return
            if (given := self._given_up(member)) and (taker := self._taker(given, seat)):
                self._move(given, taker, f"this worker has no room, and {_wants(seat, member)}")
                self._move(seat, member, _wants(seat, member))
                return

    def _given_up(self, member: Member) -> Seat | None:
        """What a worker without room lets go for another shard: one that wants other code, or else the one it has longest."""
        if member.room < 0:
            return None
        movable = (seat for shard in sorted(member.shards) if self._may_move(seat := self.seats[shard]))
        return min(movable, key=lambda seat: (not seat.wanted, seat.held_ms), default=None)

    def _taker(self, given: Seat, seat: Seat) -> Member | None:
        """Who can have what is given up, once the other shard has left its holder: best one with code that is wanted there."""
        others = (m for m in self.members.values() if m.session != given.session)
        able = [m for m in others if m.room + (m.session == seat.session) > 0]
        return next((m for m in able if not given.wanted.isdisjoint(m.types)), able[0] if able else None)

    def _move(self, seat: Seat, to: Member, reason: str) -> None:
        assert seat.session is not None
        seat.is_moving, seat.target = True, to.session
        self.members[seat.session].leaving.add(seat.shard)
        to.coming.add(seat.shard)
        self._effects.append(Revoke(seat.session, seat.shard, reason, gently=True))

    def _settle(self, seat: Seat) -> None:
        """It is no longer on its way."""
        if seat.session is not None:
            self.members[seat.session].leaving.discard(seat.shard)
        if seat.target is not None:
            self.members[seat.target].coming.discard(seat.shard)
        seat.is_moving, seat.target = False, None

    def _forget_coming(self, member: Member) -> None:
        for shard in member.coming:
            self.seats[shard].target = None
        member.coming.clear()

    def _choose(self, seat: Seat) -> Member | None:
        able = [m for m in self.members.values() if m.places > 0 and (m.session != seat.shunned or self._now_ms >= seat.shunned_until_ms)]
        return min(able, key=lambda m: (m.session != seat.target, m.session == seat.shunned, seat.wanted.isdisjoint(m.types)), default=None)

    def _seat(self, seat: Seat, member: Member, is_settled: bool = False) -> None:
        assert seat.session is None, f"shard {seat.shard} is assigned to session {seat.session}"
        self._settle(seat)
        seat.session, seat.is_settled, seat.assigned_ms = member.session, is_settled, self._now_ms
        member.shards.add(seat.shard)

    def _unseat(self, seat: Seat) -> None:
        if seat.session is not None:
            member = self.members[seat.session]
            member.shards.remove(seat.shard)
            member.leaving.discard(seat.shard)
        seat.session, seat.is_settled, seat.is_moving = None, False, False


def _held_since(seat: Seat) -> tuple[int, int]:
    return seat.held_ms, seat.shard


def _wants(seat: Seat, member: Member) -> str:
    return f'shard {seat.shard} wants workflow "{min(seat.wanted & member.types)}", which worker "{member.worker}" has'


_HANDLERS: Final[dict[type, Callable[[LeaseTable, Any], None]]] = {
    Joined: LeaseTable._joined,
    Left: LeaseTable._left,
    Draining: LeaseTable._draining,
    Released: LeaseTable._released,
    Lacks: LeaseTable._lacks,
    Held: LeaseTable._held,
    Freed: LeaseTable._freed,
    ShardUp: LeaseTable._up,
    ShardDown: LeaseTable._down,
    TimePassed: LeaseTable._time_passed,
    Closed: LeaseTable._close,
}
