# Permits from the tables of a server, for the steps of one shard.
#
# What a step waits for is asked once and then left to the table, which calls on this session when its next ticket can have a permit.
# A slow look on top of that covers what a broken table or link lost, and the permits of dead workers, whose expiry calls nobody.
from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from fusee_mp.core.permit_asks import Ask, PermitAsks, Release, Say
from fusee_mp.core.placement import shard_of
from fusee_mp.core.waitqueue import Priority
from fusee_mp.wire import messages as m

LOOK_S: Final = 0.25

_Waiter = tuple[Callable[[], object], Callable[[], object]]


class RemoteLimits:
    """A lease's session with the tables. Its tickets name `shard`; `say` sends a message to the table in the shard given with it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, shard: int, shards: int, say: Callable[[m.PermitSay, int], None]) -> None:
        self._loop = loop
        self._shards = shards
        self._send = say
        self._asks = PermitAsks(shard)
        self._waiters: dict[int, _Waiter] = {}
        self._open = 0
        self._timer: asyncio.TimerHandle | None = None

    def ask(self, name: str, priority: Priority, granted: Callable[[], object], undefined: Callable[[], object]) -> int:
        ticket = self._asks.ticket()
        self._waiters[ticket] = (granted, undefined)
        self._open += 1
        self._say(self._asks.acquire(name, ticket, priority))
        self._watch()
        return ticket

    def release(self, ticket: int) -> None:
        says = self._asks.release(ticket)
        if says:
            self._open -= 1
            self._waiters.pop(ticket, None)
            self._say(says)

    def answered(self, answer: m.PermitAnswer) -> None:
        """A table speaks."""
        if answer.what == "granted":
            if self._asks.granted(answer.ticket):
                self._loop.call_soon(self._waiters.pop(answer.ticket)[0])
                self._say(self._asks.ask_next(answer.name, self._now_ms()))
        elif answer.what == "retry":
            self._asks.retry_at(answer.ticket, self._now_ms() + answer.wait_ms)
            self._loop.call_later(answer.wait_ms / 1000, self._pass)
        elif answer.what == "ask":
            self._pass()
        elif (waiter := self._waiters.pop(answer.ticket, None)) is not None:
            self._open -= 1
            self._asks.release(answer.ticket)
            self._loop.call_soon(waiter[1])

    def close(self) -> None:
        self._open = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _watch(self) -> None:
        if self._timer is None and self._open:
            self._timer = self._loop.call_later(LOOK_S, self._look)

    def _look(self) -> None:
        self._timer = None
        self._pass()
        self._watch()

    def _pass(self) -> None:
        if self._open:
            self._say(self._asks.pass_time(self._now_ms()))

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def _say(self, says: list[Say]) -> None:
        for say in says:
            if isinstance(say, Ask):
                p = say.priority
                message = m.PermitSay("ask", say.name, say.ticket, p.level, p.fairness, p.weight)
                self._send(message, shard_of(say.name, self._shards))
            elif isinstance(say, Release):
                self._send(m.PermitSay("release", say.name, say.ticket), shard_of(say.name, self._shards))
            else:
                self._send(m.PermitSay("renew", say.name, tickets=say.tickets), shard_of(say.name, self._shards))
