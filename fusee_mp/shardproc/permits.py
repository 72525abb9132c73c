# Permits between the holders of shards and the tables of limits, through the shard processes.
#
# A limit's table is in the process of the shard of its name. A session is a lease: (shard, epoch). What it says goes through its own
# shard's process, which vouches for the epoch, and over a ring to the table.
# Rule 1: a permit stands as long as its session, and PERMIT_LEASE_MS longer. While the lease of the shard stands, nobody else can say that
#         the holder's steps do not run: its worker, this process or one on the way may only have been frozen, and what it said lies unread.
#         After that the permit outlives the session, for a worker that was cut off. Renewals are for a table that has begun anew.
# Rule 2: so what ends a permit or begins one is not dropped on the way, however much is queued there.
# Rule 3: a session that ends leaves every queue at once, so that nobody waits behind it.
# Rule 4: when a permit comes free, the session whose ticket is next is called on; it need not ask again and again.
from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fusee_mp.bounds import PERMIT_LEASE_MS
from fusee_mp.core.calls import LimitCall, LimitRow, LimitState
from fusee_mp.core.permits import FOR_EVER_MS, Granted, RetryAt
from fusee_mp.core.placement import shard_of
from fusee_mp.core.waitqueue import Priority
from fusee_mp.wire import messages as m
from fusee_mp.wire.frames import Frame

if TYPE_CHECKING:
    from fusee_mp.shardproc.process import ShardProcess

EPOCH_BITS: Final = 40


class PermitDesk:
    """The tables of this shard process, and the way to those of the others."""

    def __init__(self, process: ShardProcess) -> None:
        self._process = process
        self._sessions: dict[int, int] = {}  # the session of each shard, as far as it has spoken

    # From this shard's holder.

    def from_holder(self, frame: Frame) -> None:
        """The holder speaks: hand it on to where it belongs."""
        say = m.decode(frame)
        assert isinstance(say, m.PermitSay)
        Priority(say.level, say.fairness, say.weight).check()  # here, where who said it can be told
        shards = self._process.shards
        homes = [shard_of(say.name, shards)] if say.name else range(shards)
        for home in homes:
            if home == self._process.shard:
                self.take(self._process.shard, frame.epoch, say)
            else:
                self._say(home, frame.epoch, say)

    def left(self, epoch: int) -> None:
        """This shard's lease has ended: its session leaves every table."""
        say = m.PermitSay("leave")
        self.take(self._process.shard, epoch, say)
        for home in range(self._process.shards):
            if home != self._process.shard:
                self._say(home, epoch, say)

    def _say(self, home: int, epoch: int, say: m.PermitSay) -> None:
        self._process.relay.to_peer(home, m.encode(say, 0, home, epoch), surely=say.what in ("release", "leave"))

    # At the table.

    def take(self, source: int, epoch: int, say: m.PermitSay) -> None:
        """A session of shard `source` speaks to the tables here."""
        permits = self._process.host.limits.permits
        session = self._session(source, epoch)
        now_ms = self._now_ms()
        if say.what == "renew":
            self._renew(session, say, now_ms)
        elif say.what == "leave":
            self._end(source)
        elif say.what == "release":
            permits.release(say.name, session, say.ticket)
            self.call_next(say.name)
        elif permits.spec(say.name) is None:
            self._answer(session, m.PermitAnswer("undefined", say.name, say.ticket))
        else:
            self._ask(session, say, now_ms)

    def _renew(self, session: int, say: m.PermitSay, now_ms: int) -> None:
        limits = self._process.host.limits
        if say.name:
            limits.permits.confirm(
                say.name, session, say.tickets, now_ms=now_ms, lease_ms=FOR_EVER_MS, uptime_ms=limits.uptime_ms)
        else:  # a worker that does not say what it holds
            limits.permits.renew(session, now_ms=now_ms, lease_ms=FOR_EVER_MS)

    def _ask(self, session: int, say: m.PermitSay, now_ms: int) -> None:
        limits = self._process.host.limits
        answer = limits.permits.acquire(
            say.name, session, say.ticket, Priority(say.level, say.fairness, say.weight), now_ms=now_ms, lease_ms=FOR_EVER_MS,
            uptime_ms=limits.uptime_ms,
        )
        if isinstance(answer, Granted):
            self._answer(session, m.PermitAnswer("granted", say.name, answer.ticket))
            self.call_next(say.name)
        elif isinstance(answer, RetryAt):
            self._answer(session, m.PermitAnswer("retry", say.name, say.ticket, max(1, answer.at_ms - now_ms)))

    async def call(self, call: LimitCall) -> LimitState:
        """A client defines a limit, or looks at one."""
        return await self._process.host.limits.call(call, self._now_ms)

    def page(self, after: str) -> list[LimitRow]:
        """The limits whose home is here, behind a name."""
        return self._process.host.limits.page(after, self._now_ms())

    def call_next(self, name: str) -> None:
        """Call on the session whose ticket is next under this limit, if it could have a permit."""
        holder = self._process.host.limits.permits.next_served(name)
        if holder is not None:
            self._answer(holder[0], m.PermitAnswer("ask", name, holder[1]))

    def peer_lost(self, shard: int) -> None:
        """The process of another shard is gone, and its holder's lease with it."""
        self._end(shard)

    def _session(self, source: int, epoch: int) -> int:
        session = source << EPOCH_BITS | epoch
        if self._sessions.get(source) != session:
            self._end(source)
            self._sessions[source] = session
        return session

    def _end(self, source: int) -> None:
        session = self._sessions.pop(source, None)
        if session is None:
            return
        permits = self._process.host.limits.permits
        permits.renew(session, now_ms=self._now_ms(), lease_ms=PERMIT_LEASE_MS)
        permits.disconnected(session)
        for name in permits.names():
            self.call_next(name)

    # Answers.

    def _answer(self, session: int, answer: m.PermitAnswer) -> None:
        shard, epoch = session >> EPOCH_BITS, session & (1 << EPOCH_BITS) - 1
        frame = m.encode(answer, 0, shard, epoch)
        if shard == self._process.shard:
            self.deliver(epoch, frame)
        else:
            self._process.relay.to_peer(shard, frame, surely=answer.what == "granted")

    def deliver(self, epoch: int, frame: bytes) -> None:
        """An answer for this shard's holder, if the session still is."""
        lease = self._process.lease
        if lease is not None and lease.epoch == epoch:
            lease.connection.send_bytes(frame)

    def _now_ms(self) -> int:
        return self._process.running.ms()
