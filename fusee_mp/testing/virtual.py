"""An engine for tests: in memory, on the test's own event loop, with virtual time."""
from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from random import Random
from typing import Any

from fusee_mp.core.calls import Call
from fusee_mp.duration import Duration, to_ms
from fusee_mp.errors import FuseeError, Rejected
from fusee_mp.runtime.crew import Crew
from fusee_mp.runtime.lines import waiting_line
from fusee_mp.runtime.run import Run
from fusee_mp.runtime.steps import StepCall
from fusee_mp.sdk.definitions import Workflow
from fusee_mp.sdk.engine import Engine, clock_ms
from fusee_mp.sdk.journals import Journal
from fusee_mp.testing import crashes
from fusee_mp.testing.clock import Clock, borrowed

SHOWN_RUNS = 5


class VirtualEngine(Engine):
    """An Engine in memory whose time jumps over every wait. Made by `testing.engine`.

    Runs stay in memory, and what is drawn at random (the jitter of retries, `ctx.random()`) is the same in every test.
    """

    def __init__(self, workflows: Sequence[Workflow[Any, Any]], shards: int, clock: Clock, start_ms: int) -> None:
        super().__init__(None, workflows, shards)
        self._clock = clock
        self._zero_ms = start_ms - self._loop_ms()
        self._telling: asyncio.Task[None] | None = None
        self._stuck: asyncio.Future[FuseeError] = asyncio.get_running_loop().create_future()

    def _loop_ms(self) -> int:
        return round(self._clock.time() * 1000)

    def _clock_ms(self) -> int:
        return self._zero_ms + self._loop_ms()

    def _make_crew(self) -> Crew:
        return Crew(watches_loop=False)  # who wakes it would make the clock believe that something is still to come

    def _make_runtimes(self) -> None:
        super()._make_runtimes()
        draw = Random(0).random
        for runtime in self.runtimes:
            runtime.clock, runtime.draw = self._clock_ms, draw
            runtime.residence.park_after_ms = None
            runtime.alarm_ms_max = 1 << 60  # both clocks are one: no need to look in between
        self._clock.works.append(self._may_wait_for_the_world)
        self._clock.stuck.append(self._is_stuck)

    async def _take_over(self, shard: int) -> None:
        await super()._take_over(shard)
        self.runtimes[shard].residence.horizon_ms = 0  # no run is parked, so the store has no timers to look for

    async def close(self) -> None:
        for hear, said in ((self._clock.works, self._may_wait_for_the_world), (self._clock.stuck, self._is_stuck)):
            if said in hear:
                hear.remove(said)  # type: ignore[arg-type]
        await super().close()

    async def _call(self, shard: int, call: Call) -> Any:
        stuck = self._stuck
        answer = asyncio.ensure_future(super()._call(shard, call))
        try:
            await asyncio.wait((answer, stuck), return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise stuck.result()
            return answer.result()
        finally:
            answer.cancel()

    def now(self) -> datetime:
        """The virtual time, aware, in UTC."""
        return datetime.fromtimestamp(self._clock_ms() / 1000, UTC)

    async def skip(self, duration: Duration) -> None:
        """Let so much virtual time pass. On return everything that was due by then has happened."""
        await asyncio.sleep(to_ms(duration, "skip") / 1000)
        await self._clock.quiet()

    async def journals(self) -> list[Journal]:
        """The journals of all runs so far, as `export` gives them: the newest first within a shard, shards ascending."""
        found: list[Journal] = []
        for shard in range(self.shards):
            after: str | None = None
            while rows := await self._read(shard, "list", (None, 1000, after)):
                after = rows[-1].cursor
                for row in rows:
                    described = await self._read(shard, "describe_run", (row.run,))
                    found.append(Journal.of(row.id, shard, described.lsns, described.data))
        return found

    def _may_wait_for_the_world(self) -> bool:
        bodies = (call.body for run in self._runs() for call in run.journal.open.values() if isinstance(call, StepCall))
        return any(body is not None and not self._clock.is_timer(getattr(body, "_fut_waiter", None)) for body in bodies)

    def _runs(self) -> list[Run]:
        return [run for runtime in self.runtimes for run in runtime.by_number.values() if not run.is_over]

    def _is_stuck(self) -> None:
        self._telling = asyncio.get_running_loop().create_task(self._tell_stuck())

    async def _tell_stuck(self) -> None:
        """Nothing will happen any more: those who wait for a result hear why."""
        waits = [f'"{run.id}" ({run.journal.start.type}) at {waiting_line(run.main) or "its start"}' for run in self._runs()]
        aside = [f'"{run.id}", set aside: {(await self._why(run.id))}' for run in await self.list({"status": "quarantined"})]
        shown = [*aside, *waits][:SHOWN_RUNS]
        more = len(aside) + len(waits) - len(shown)
        error = FuseeError(
            "nothing will happen any more in this test: no timer is set, no step runs, and nobody outside answers. Waiting are"
            f" {', '.join(shown) or 'no runs'}{f', and {more} more' if more else ''}. Send the signal they wait for, or let what was to"
            " wake them do so"
        )
        stuck, self._stuck = self._stuck, asyncio.get_running_loop().create_future()
        stuck.set_result(error)

    async def _why(self, id: str) -> str:
        detail = await self.describe(id)
        return "" if detail is None else detail.reason


@asynccontextmanager
async def engine(
    *, workflows: Sequence[Workflow[Any, Any]] = (), shards: int = 1, at: datetime | None = None
) -> AsyncIterator[VirtualEngine]:
    """An engine with virtual time, in this process and on this event loop; it needs no server and no file.

    at: what the clock shows at first, aware; the real time, if not given. Inside, `asyncio.sleep` of the test itself passes at once
    too. Real I/O and threads of step bodies take their real time. Raises Rejected on an event loop that is not asyncio's own.
    """
    if at is not None and at.tzinfo is None:
        raise Rejected(f"testing.engine(at=) is a time with a zone, not {at!r}: write datetime(.., tzinfo=UTC)")
    start_ms = clock_ms() if at is None else round(at.timestamp() * 1000)
    with borrowed(asyncio.get_running_loop()) as clock:
        made = VirtualEngine(workflows, shards, clock, start_ms)
        await made._begin()
        try:
            yield made
        finally:
            await crashes.note(made, workflows)
            await made.close()
