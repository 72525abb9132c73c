# The methods of schedules, debounce and batch: a part of what Engine, Client and a worker's engine share.
from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, TypeVar, overload

from fusee_mp.core.calls import Call
from fusee_mp.core.placement import check_id, shard_of
from fusee_mp.core.time_calls import GatherCall, SchedulesCall, ScheduleShown, SetScheduleCall
from fusee_mp.core.windows import Rule
from fusee_mp.errors import Rejected
from fusee_mp.names import checked_name
from fusee_mp.payload.converter import Codec
from fusee_mp.payload.sealing import Payloads
from fusee_mp.sdk.awaited import AwaitedRun
from fusee_mp.sdk.definitions import Workflow
from fusee_mp.sdk.run import Run
from fusee_mp.sdk.schedules import ScheduleDetail, ScheduleHandle, ScheduleSpec, detail_of
from fusee_mp.sdk.target import ANY, target
from fusee_mp.sdk.windows import Batch, Debounce

E = TypeVar("E")
I = TypeVar("I")
R = TypeVar("R")


class TimedMethods(ABC):
    payloads: Payloads

    @property
    @abstractmethod
    def shards(self) -> int:
        """The number of shards."""

    @abstractmethod
    async def _call(self, shard: int, call: Call) -> Any:
        """Carry out a call where its shard is held. Raises the FuseeError of the answer."""

    @abstractmethod
    def _request_id(self) -> str:
        """A request ID that was never used."""

    @abstractmethod
    def handle(self, id: str) -> Run[Any]:
        """A handle on an ID, without a call."""

    # Schedules.

    async def schedule(self, id: str, spec: ScheduleSpec[Any]) -> ScheduleHandle:
        """Make a schedule; on return it is durable. One of this ID gets the new spec, and keeps what it has started.

        Set again with the same timing it loses nothing that is due, and stays paused or resumed as it is unless the spec says otherwise
        than before. Raises Rejected, UnknownWorkflow, PayloadError, StorageFull, Unavailable.
        """
        if not isinstance(spec, ScheduleSpec):
            raise Rejected(f"expected ScheduleSpec(workflow=.., every=..), found {spec!r:.120}")
        handle = ScheduleHandle(self, id)
        name, data, _ = target(spec.workflow, spec.input, self.payloads.bytes_max)
        call = SetScheduleCall(id, name, data, spec.timezone, spec.rule, self._request_id())
        await self._call(shard_of(id, self.shards), call)
        return handle

    def schedule_handle(self, id: str) -> ScheduleHandle:
        """A handle on a schedule, without a call."""
        return ScheduleHandle(self, id)

    async def schedules(self) -> list[ScheduleDetail]:
        """All schedules: by ID within a shard, shards ascending."""
        found: list[ScheduleDetail] = []
        for shard in range(self.shards):
            after = ""
            while page := await self._schedules(shard, after):
                found += map(detail_of, page)
                after = page[-1].id
        return found

    async def _schedules(self, shard: int, after: str) -> list[ScheduleShown]:
        found: list[ScheduleShown] = await self._call(shard, SchedulesCall(after))
        return found

    # Windows.

    @overload
    async def debounce(self, workflow: Workflow[I, R], key: str, input: I, rule: Debounce, event_id: str | None = None) -> Run[R]: ...
    @overload
    async def debounce(self, workflow: str, key: str, input: object, rule: Debounce, event_id: str | None = None) -> Run[Any]: ...
    async def debounce(self, workflow: Any, key: str, input: Any, rule: Debounce, event_id: str | None = None) -> Run[Any]:
        """One run for many events of a key: it starts, with the last input, when they have ceased. On return the event is durable.

        The run is there once the window has closed; `Run.started` waits for that. Its ID is `<key>@<number>`. event_id: an event that
        comes again with it changes nothing and gets the same run, also a day after the window closed.
        Raises Rejected, UnknownWorkflow, PayloadError, StorageFull, Unavailable.
        """
        if not isinstance(rule, Debounce):
            raise Rejected(f"expected Debounce(window), found {rule!r:.120}")
        name, data, codec = target(workflow, input, self.payloads.bytes_max)
        return await self._gather(name, key, data, rule.rule, event_id, codec)

    @overload
    async def batch(self, workflow: Workflow[list[E], R], key: str, event: E, rule: Batch, event_id: str | None = None) -> Run[R]: ...
    @overload
    async def batch(self, workflow: str, key: str, event: object, rule: Batch, event_id: str | None = None) -> Run[Any]: ...
    async def batch(self, workflow: Any, key: str, event: Any, rule: Batch, event_id: str | None = None) -> Run[Any]:
        """One run for many events of a key: it gets them all, in the order in which they came. On return the event is durable.

        A batch closes early before its list would be larger than an input may be. Otherwise as `debounce`.
        """
        if not isinstance(rule, Batch):
            raise Rejected(f"expected Batch(size, wait), found {rule!r:.120}")
        name, codec = (workflow.name, workflow.result_codec) if isinstance(workflow, Workflow) else (target(workflow, None)[0], ANY)
        return await self._gather(name, key, _one_event(workflow, name, event, self.payloads.bytes_max), rule.rule, event_id, codec)

    async def _gather(self, name: str, key: str, data: bytes, rule: Rule, event_id: str | None, codec: Codec) -> Run[Any]:
        event = None if event_id is None else checked_name("event ID", event_id)
        call = GatherCall(name, key, rule, data, event, self._request_id())
        return AwaitedRun(self, await self._call(shard_of(check_id(key), self.shards), call), codec)  # type: ignore[arg-type]


def _one_event(workflow: Any, name: str, event: Any, bytes_max: int) -> bytes:
    """The event as the workflow's list has it: what stands between the brackets of a list of it alone."""
    codec = workflow.input_codec if isinstance(workflow, Workflow) else ANY
    data: bytes = codec.encode([event], f'the events of workflow "{name}"', bytes_max)
    if data[:1] != b"[":
        raise Rejected(f'workflow "{name}" takes no list: a batch hands it a list of events. Annotate its input as list[..].',
                       workflow=name)
    return data[1:-1]

