"""A handle on a workflow ID."""
from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Generic, overload

from typing_extensions import TypeVar

from fusee_mp.core.calls import (
    Call,
    CancelCall,
    DeleteCall,
    PauseCall,
    QueryCall,
    ResetCall,
    ResultCall,
    ResumeCall,
    SignalCall,
    StartedCall,
    TerminateCall,
    UpdateCall,
)
from fusee_mp.core.placement import shard_of
from fusee_mp.duration import Duration, to_ms_or_none
from fusee_mp.errors import Rejected
from fusee_mp.names import checked_name
from fusee_mp.payload.converter import Codec
from fusee_mp.sdk.handles import Asks, Changes, Sends
from fusee_mp.sdk.handling import answered, update_id_of, updated
from fusee_mp.sdk.target import asked, changed, named, reason_text
from fusee_mp.sdk.types import RunDetail, RunStatus

if TYPE_CHECKING:
    from fusee_mp.sdk.methods import Methods

A = TypeVar("A")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Run(Generic[R_co]):
    """What can be asked of a workflow ID. It follows the ID: after a restart under the same ID, the newest run answers."""

    def __init__(self, home: Methods, id: str, codec: Codec) -> None:
        self.id = id
        self._home = home
        self._codec = codec

    def __repr__(self) -> str:
        return f'<run "{self.id}">'

    async def _call(self, call: Call) -> Any:
        return await self._home._call(shard_of(self.id, self._home.shards), call)

    async def result(self, timeout: Duration | None = None) -> R_co:
        """Wait for the run's end. Raises WorkflowFailed, Cancelled, Terminated, TimedOut as it ended, NotFound; the builtin
        TimeoutError when `timeout` passes first, which leaves the run alone."""
        from fusee_mp.sdk.methods import unpack

        outcome = await within(timeout, self._call(ResultCall(self.id)))
        return unpack(outcome, self.id, self._codec)  # type: ignore[no-any-return]

    async def started(self, timeout: Duration | None = None) -> None:
        """Wait until the ID has a run. Raises the builtin TimeoutError."""
        await within(timeout, self._call(StartedCall(self.id)))

    async def status(self) -> RunStatus | None:
        return await self._home.status(self.id)

    async def describe(self) -> RunDetail | None:
        return await self._home.describe(self.id)

    @overload
    async def signal(self, s: Sends[None], value: None = None, *, request_id: str | None = None) -> None: ...
    @overload
    async def signal(self, s: Sends[A], value: A, *, request_id: str | None = None) -> None: ...
    @overload
    async def signal(self, s: str, value: object = None, *, request_id: str | None = None) -> None: ...
    async def signal(self, s: Any, value: Any = None, *, request_id: str | None = None) -> None:
        """Send a signal; on return it is durable. Raises NotFound, and Rejected when the run has ended."""
        name, codec = named(s)
        payload = codec.encode(value, f'the value of signal "{name}"', self._home.payloads.bytes_max)
        await self._call(SignalCall(self.id, name, payload, *self._home._request(request_id, SignalCall, self.id)))

    @overload
    async def update(self, u: Changes[None, R], value: None = None, *, update_id: str | None = None) -> R: ...
    @overload
    async def update(self, u: Changes[A, R], value: A, *, update_id: str | None = None) -> R: ...
    @overload
    async def update(self, u: str, value: object = None, *, update_id: str | None = None) -> Any: ...
    async def update(self, u: Any, value: Any = None, *, update_id: str | None = None) -> Any:
        """Change the run by its handler of this update, and return the result that it recorded.

        update_id: whoever comes with it again, for as long as the run is kept, gets the result of the first.
        Raises Rejected when the run has ended, has no such update or its validator refuses, which records nothing; WorkflowFailed,
        with the handler's exception as cause; Cancelled, Terminated, TimedOut when the run ended so before its handler did; NotFound.
        """
        name, codec, returns = changed(u)
        payload = codec.encode(value, f'the value of update "{name}"', self._home.payloads.bytes_max)
        request = self._home._request_id()
        outcome = await self._call(UpdateCall(self.id, name, payload, update_id_of(update_id, request), request))
        return updated(outcome, self.id, name, returns)

    @overload
    async def query(self, q: Asks[None, R], arg: None = None) -> R: ...
    @overload
    async def query(self, q: Asks[A, R], arg: A) -> R: ...
    @overload
    async def query(self, q: str, arg: object = None) -> Any: ...
    async def query(self, q: Any, arg: Any = None) -> Any:
        """Ask the run's code; nothing is recorded, and everything that the answer rests on is durable. Also after the run's end.

        Raises Rejected when the run has no such query or is quarantined; WorkflowFailed, with what the function raised as cause;
        NotFound.
        """
        name, codec, returns = asked(q)
        payload = codec.encode(arg, f'the argument of query "{name}"', self._home.payloads.bytes_max)
        outcome = await self._call(QueryCall(self.id, name, payload))
        return answered(outcome, self.id, name, returns)

    async def cancel(self, reason: str = "", *, request_id: str | None = None) -> None:
        """Ask the run to end: its code sees asyncio.CancelledError at its next await. A second cancel changes nothing."""
        await self._call(CancelCall(self.id, reason_text(reason), *self._home._request(request_id, CancelCall, self.id)))

    async def terminate(self, reason: str = "", *, request_id: str | None = None) -> None:
        """End the run without asking its code."""
        await self._call(TerminateCall(self.id, reason_text(reason), *self._home._request(request_id, TerminateCall, self.id)))

    async def pause(self, reason: str = "", *, request_id: str | None = None) -> None:
        """Start no further step body of the run until it is resumed. Bodies that run may end, and what arrives is recorded."""
        await self._call(PauseCall(self.id, reason_text(reason), *self._home._request(request_id, PauseCall, self.id)))

    async def reset(self, step_name: str, *, occurrence: int = 1, request_id: str | None = None) -> None:
        """Go on before a step: a new run of the ID takes the results before it from the journal, and runs the step again, with another
        idempotency key. On return that is durable. Works on open, quarantined, failed and other ended runs; an open one ends as `reset`.

        occurrence: which step of that name, counted from 1. Signals that came after the step are fed again.
        Raises Rejected, naming the steps there are, when there is none such; NotFound; Busy.
        """
        if not isinstance(occurrence, int) or occurrence < 1:
            raise Rejected(f"reset(occurrence=) counts from 1, not {occurrence!r}")
        step = checked_name("step", step_name)
        await self._call(ResetCall(self.id, step, occurrence, *self._home._request(request_id, ResetCall, self.id)))

    async def delete(self, *, request_id: str | None = None) -> None:
        """Forget the ID's ended runs: results, journals, attributes. On return nobody finds them any more.

        Raises Rejected while a run of the ID is open; NotFound.
        """
        await self._call(DeleteCall(self.id, *self._home._request(request_id, DeleteCall, self.id)))

    async def resume(self, *, request_id: str | None = None) -> None:
        """Let the run go on; a step that had used up its attempts has all of them again. On a run that is not paused: nothing."""
        await self._call(ResumeCall(self.id, *self._home._request(request_id, ResumeCall, self.id)))


async def within(timeout: Duration | None, answer: Any) -> Any:
    ms = to_ms_or_none(timeout, "timeout")
    if ms is None:
        return await answer
    return await asyncio.wait_for(answer, ms / 1000)
