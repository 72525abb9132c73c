"""One shard's runtime over a log that is a list: crashed after any record, taken over again, its disk and its clock in the test's hands."""
from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any

from fusee_mp.core import records as r
from fusee_mp.core.calls import Call, CancelCall, Outcome, ResultCall, SignalCall, StartCall, TerminateCall
from fusee_mp.runtime.crew import Crew
from fusee_mp.runtime.shard_runtime import ShardRuntime
from fusee_mp.sdk.definitions import Workflow
from fusee_mp.sdk.registry import WorkflowRegistry
from fusee_mp.store import Store

BEGIN_MS = 1_700_000_000_000
DISK_S = 0.0002


class Rig:
    """A home for one runtime. `log` holds every record; what a crash leaves of it begins the next rig."""

    def __init__(self, workflows: Sequence[Workflow[Any, Any]], log: Sequence[bytes] = (), *, park_after_ms: int | None = None,
                 turn_s_max: float = 2.0, now_ms: int | None = None) -> None:
        self.workflows = workflows
        self.log = list(log)
        self.refusal = ""
        self.acts = True
        self.is_disk_stuck = False
        self.durable_lsn = 0
        self._park_after_ms = park_after_ms
        self._turn_s_max = turn_s_max
        self._first_ms = now_ms if now_ms is not None else max([BEGIN_MS, *(getattr(record, "at", 0) for record in self.records())])
        self._requests = 0
        self.runtime: ShardRuntime

    def records(self) -> list[r.Record]:
        return [r.decode(data) for data in self.log]

    def kinds(self) -> list[str]:
        return [r.KIND[type(record)] for record in self.records()]

    def clock(self) -> int:
        return self._first_ms + round((self._loop.time() - self._began_s) * 1000)

    async def __aenter__(self) -> Rig:
        self._loop = asyncio.get_running_loop()
        self._began_s = self._loop.time()
        self._store = Store.open(":memory:")
        self._store.fold_records(1, self.log)
        self._store.commit()
        self.durable_lsn = len(self.log)
        self.crew = Crew(threads=2, turn_s_max=self._turn_s_max)
        self.runtime = ShardRuntime(
            0, 1, WorkflowRegistry(self.workflows), self, clock=self.clock, draw=random.Random(7).random, crew=self.crew,
            park_after_ms=self._park_after_ms,
        )
        self.crew.shards = [self.runtime]
        await self.runtime.take_over(self.durable_lsn, self._store.read("state", ()))
        return self

    async def __aexit__(self, *_: object) -> None:
        self.runtime.close()
        self.crew.close()
        await asyncio.sleep(0)  # the spare tasks see their end
        self._store.close()

    def again(self, first: int | None = None, **options: Any) -> Rig:
        """What a crash after the first so many records leaves."""
        return Rig(self.workflows, self.log[:first], **options)

    # The home.

    def append(self, records: bytes, count: int) -> None:
        assert len(r.unframe(records)) == count
        self.log += r.unframe(records)
        if not self.is_disk_stuck:
            self._loop.call_later(DISK_S, self.flush, len(self.log))

    def flush(self, lsn: int | None = None) -> None:
        """The disk has everything up to this record; the store, too."""
        lsn = len(self.log) if lsn is None else lsn
        if lsn > self.durable_lsn and not self.runtime.is_closed:
            self._store.fold_records(self.durable_lsn + 1, self.log[self.durable_lsn : lsn])
            self._store.commit()
            self.durable_lsn = lsn
            self.runtime.durable(lsn)
            self.runtime.applied(lsn)

    def relay(self, to: int, messages: Sequence[tuple[int, bytes]]) -> None:
        self._loop.call_soon(self.runtime.deliver, 0, [message for _, message in messages])

    def relay_ack(self, sender: int, through: int) -> None:
        self._loop.call_soon(self.runtime.relay_acked, 0, through)

    def lacks(self, workflow: str) -> None:
        pass

    def may_act(self) -> bool:
        return self.acts

    async def read(self, method: str, args: tuple[Any, ...], min_lsn: int = 0) -> Any:
        await asyncio.sleep(0)
        return self._read_store(method, args)

    def _read_store(self, method: str, args: tuple[Any, ...]) -> Any:
        return self._store.read(method, args)

    # What a client does.

    async def call(self, call: Call) -> Any:
        answer: asyncio.Future[Any] = self._loop.create_future()

        def reply(value: Any, error: BaseException | None) -> None:
            assert not answer.done() or answer.cancelled(), "a call is answered once"
            if not answer.done():
                answer.set_exception(error) if error is not None else answer.set_result(value)

        self._loop.call_soon(self.runtime.call, call, reply)
        try:
            return await answer
        except asyncio.CancelledError:
            self.runtime.calls.forget(reply)
            raise

    def _request(self) -> str:
        self._requests += 1
        return f"r{self._requests}-{len(self.log)}"

    async def start(self, workflow: Workflow[Any, Any], id: str, input: Any = None, **options: Any) -> None:
        await self.call(StartCall(id, workflow.name, workflow.input_codec.encode(input), self._request(), **options))

    async def signal(self, id: str, name: str, payload: bytes = b"null") -> None:
        await self.call(SignalCall(id, name, payload, self._request()))

    async def cancel(self, id: str, reason: str = "") -> None:
        await self.call(CancelCall(id, reason, self._request()))

    async def terminate(self, id: str, reason: str = "") -> None:
        await self.call(TerminateCall(id, reason, self._request()))

    async def outcome(self, id: str) -> Outcome:
        return await asyncio.wait_for(self.call(ResultCall(id)), 100_000)  # of the loop's seconds

    def status(self, id: str) -> str:
        return self._store.read("status", (id,)).status

    async def until(self, holds: Callable[[], object], what: str = "") -> None:
        for _ in range(20_000):
            if holds():
                return
            await asyncio.sleep(0.01)
        raise AssertionError(f"never came: {what or holds}; log: {self.kinds()}")


async def turns(count: int = 10) -> None:
    """Let the loop turn without time going by."""
    for _ in range(count):
        await asyncio.sleep(0)

