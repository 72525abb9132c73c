# The methods that Engine, Client and a worker's engine share.
#
# Each is built on two doors: `_call`, which reaches the runtime that holds a shard, and `_read`, which reaches its keeper. So the
# three homes cannot drift apart.
from __future__ import annotations

import asyncio
import builtins
import hashlib
import os
import secrets
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar, overload

from fusee_mp.bounds import NAME_BYTES_MAX
from fusee_mp.core.calls import Call, CompleteCall, LimitCall, LimitRow, LimitState, Outcome, StartCall, StartWithUpdateCall
from fusee_mp.core.permits import LimitSpec
from fusee_mp.core.placement import check_id, shard_of
from fusee_mp.core.token import read_token
from fusee_mp.core.where import parse
from fusee_mp.duration import Duration, to_ms_or_none
from fusee_mp.errors import NotFound, PayloadError, Rejected, StepFailed
from fusee_mp.names import checked_name
from fusee_mp.payload.converter import Codec, codec_of
from fusee_mp.payload.failure import encode_failure
from fusee_mp.payload.sealing import PLAIN, Payloads
from fusee_mp.runtime.children import cause_of
from fusee_mp.sdk.definitions import Workflow
from fusee_mp.sdk.describe import detail_of, status_of
from fusee_mp.sdk.handles import Changes
from fusee_mp.sdk.handling import update_id_of, updated
from fusee_mp.sdk.here_only import HereOnly
from fusee_mp.sdk.limit import Limit, LimitStatus
from fusee_mp.sdk.run import Run
from fusee_mp.sdk.target import ANY, changed, encoded_attributes, target
from fusee_mp.sdk.timed_methods import TimedMethods
from fusee_mp.sdk.types import OnFinished, OnRunning, RunDetail, RunStatus, Where

I = TypeVar("I")
R = TypeVar("R")
A = TypeVar("A")
T = TypeVar("T")


class Methods(HereOnly, TimedMethods):
    """What can be asked of workflows, from anywhere."""

    def __init__(self, payloads: Payloads = PLAIN) -> None:
        self.payloads = payloads
        self._name = secrets.token_hex(8)
        self._pid = os.getpid()
        self._requests = 0

    @property
    @abstractmethod
    def shards(self) -> int:
        """The number of shards."""

    @abstractmethod
    async def _call(self, shard: int, call: Call) -> Any:
        """Carry out a call where its shard is held. Raises the FuseeError of the answer."""

    @abstractmethod
    async def _read(self, shard: int, method: str, args: tuple[Any, ...]) -> Any:
        """Ask the shard's keeper; the answer covers everything acknowledged before."""

    def _payloads_of(self, shard: int) -> Payloads:
        """What opens the records of a shard."""
        return self.payloads

    def _request_id(self) -> str:
        if os.getpid() != self._pid:  # a fork must not repeat its parent's request IDs
            self._name, self._pid = secrets.token_hex(8), os.getpid()
        self._requests += 1
        return f"{self._name}-{self._requests}"

    def _request(self, given: str | None, call: type[Call], id: str) -> tuple[str, bool]:
        """A request ID, and whether it may have been used before. One that was given stands for this kind of call on this ID alone:
        the shard tells requests apart by their text."""
        if given is None:
            return self._request_id(), False
        said = f"{call.__struct_config__.tag} {len(id)} {id} {checked_name('request ID', given)}"
        return (said if len(said.encode()) <= NAME_BYTES_MAX else hashlib.blake2b(said.encode(), digest_size=32).hexdigest()), True

    # Starting.

    @overload
    async def start(self, workflow: Workflow[None, R], id: str | None, input: None = None, *, on_running: OnRunning = "fail",
                    on_finished: OnFinished = "allow", deadline: Duration | None = None, attributes: Mapping[str, Any] | None = None,
                    request_id: str | None = None) -> Run[R]: ...
    @overload
    async def start(self, workflow: Workflow[I, R], id: str | None, input: I, *, on_running: OnRunning = "fail",
                    on_finished: OnFinished = "allow", deadline: Duration | None = None, attributes: Mapping[str, Any] | None = None,
                    request_id: str | None = None) -> Run[R]: ...
    @overload
    async def start(self, workflow: str, id: str | None, input: object = None, *, on_running: OnRunning = "fail",
                    on_finished: OnFinished = "allow", deadline: Duration | None = None, attributes: Mapping[str, Any] | None = None,
                    request_id: str | None = None) -> Run[Any]: ...
    async def start(self, workflow: Any, id: str | None, input: Any = None, *, on_running: OnRunning = "fail",
                    on_finished: OnFinished = "allow", deadline: Duration | None = None, attributes: Mapping[str, Any] | None = None,
                    request_id: str | None = None) -> Run[Any]:
        """Start a run; on return it is durable. `id=None` makes an ID.

        on_running, on_finished: what to do when the ID has an open run, or one that has ended. deadline: from now; then the run is
        `timed_out`. request_id: a repeat of the same start has the effect and the answer of one.
        Raises AlreadyExists, UnknownWorkflow, PayloadError, Rejected, StorageFull, Unavailable.
        """
        _one_of("on_running", on_running, ("fail", "use_existing", "terminate"))
        _one_of("on_finished", on_finished, ("allow", "allow_if_failed", "refuse", "use_existing"))
        name, data, codec = target(workflow, input, self.payloads.bytes_max)
        id = secrets.token_hex(16) if id is None else check_id(id)
        values = None if attributes is None else encoded_attributes(attributes, self.payloads.bytes_max)
        await self._call(shard_of(id, self.shards), StartCall(
            id, name, data, *self._request(request_id, StartCall, id), on_running, on_finished, to_ms_or_none(deadline, "deadline"), values,
        ))
        return Run(self, id, codec)

    @overload
    async def execute(self, workflow: Workflow[None, R], id: str | None, input: None = None, *, on_running: OnRunning = "fail",
                      on_finished: OnFinished = "allow", deadline: Duration | None = None, attributes: Mapping[str, Any] | None = None,
                      request_id: str | None = None) -> R: ...
    @overload
    async def execute(self, workflow: Workflow[I, R], id: str | None, input: I, *, on_running: OnRunning = "fail",
                      on_finished: OnFinished = "allow", deadline: Duration | None = None, attributes: Mapping[str, Any] | None = None,
                      request_id: str | None = None) -> R: ...
    @overload
    async def execute(self, workflow: str, id: str | None, input: object = None, *, on_running: OnRunning = "fail",
                      on_finished: OnFinished = "allow", deadline: Duration | None = None, attributes: Mapping[str, Any] | None = None,
                      request_id: str | None = None) -> Any: ...
    async def execute(self, workflow: Any, id: str | None, input: Any = None, **options: Any) -> Any:
        """Start a run and wait for its result: `start` and `result` in one."""
        run = await self.start(workflow, id, input, **options)
        return await run.result()

    @overload
    async def update_with_start(self, workflow: Workflow[I, R], id: str, input: I, update: Changes[A, T], value: A, *,
                                update_id: str | None = None) -> tuple[Run[R], T]: ...
    @overload
    async def update_with_start(self, workflow: str, id: str, input: object, update: str, value: object, *,
                                update_id: str | None = None) -> tuple[Run[Any], Any]: ...
    async def update_with_start(self, workflow: Any, id: str, input: Any, update: Any, value: Any, *,
                                update_id: str | None = None) -> tuple[Run[Any], Any]:
        """Update the open run of the ID, or start one with the update as its first outcome, in one record: the run, and the result.

        With an open run the input is ignored. update_id: a repeat changes nothing and gets the first result, also once the run has
        ended. A new run's validator is asked after the start: what it refuses has started the run all the same.
        Raises as `start` and `Run.update` do.
        """
        type_name, data, codec = target(workflow, input, self.payloads.bytes_max)
        name, value_codec, returns = changed(update)
        payload, request = value_codec.encode(value, f'the value of update "{name}"', self.payloads.bytes_max), self._request_id()
        outcome = await self._call(shard_of(check_id(id), self.shards), StartWithUpdateCall(
            id, type_name, data, name, payload, update_id_of(update_id, request), request,
        ))
        return Run(self, id, codec), updated(outcome, id, name, returns)

    async def complete(self, token: str, value: object = None, *, request_id: str | None = None) -> None:
        """Give the operation that `ctx.completion` waits for its value; on return that is durable. The workflow gets what its `returns`
        makes of it, so an instance of that class may be given, or its JSON form.

        Raises Rejected for a token that is stale, used, altered or not of this server, and for a value that is not what it `returns`.
        """
        try:
            payload = ANY.encode(value, "the value of the completion", self.payloads.bytes_max)
        except PayloadError:  # an instance of a class, which `returns` names
            payload = codec_of(type(value)).encode(value, "the value of the completion", self.payloads.bytes_max)
        await self._complete(token, "ok", payload, request_id)

    async def fail(self, token: str, error: str | BaseException, *, request_id: str | None = None) -> None:
        """Let the operation that `ctx.completion` waits for raise this error; text is raised as StepFailed. Raises as `complete`."""
        failure = encode_failure(StepFailed(error) if isinstance(error, str) else error)
        await self._complete(token, "failed", failure, request_id)

    async def _complete(self, token: str, status: Literal["ok", "failed"], payload: bytes, request_id: str | None) -> None:
        said = read_token(token)
        await self._call(shard_of(check_id(said.id), self.shards), CompleteCall(
            said.id, said.run, said.op, said.attempt, said.seal, status, payload,
            *self._request(request_id, CompleteCall, said.id)))

    @overload
    def handle(self, id: str) -> Run[Any]: ...
    @overload
    def handle(self, id: str, workflow: Workflow[Any, R]) -> Run[R]: ...
    def handle(self, id: str, workflow: Workflow[Any, Any] | None = None) -> Run[Any]:
        """A handle on an ID, without a call. It follows the ID, not one run."""
        return Run(self, check_id(id), ANY if workflow is None else workflow.result_codec)

    # Looking.

    async def status(self, id: str) -> RunStatus | None:
        """The newest run of an ID; None when there is none."""
        shard = shard_of(check_id(id), self.shards)
        row = await self._read(shard, "status", (id,))
        return None if row is None else status_of(row, shard, self._payloads_of(shard))

    async def describe(self, id: str) -> RunDetail | None:
        """The newest run of an ID with its journal; None when there is none."""
        shard = shard_of(check_id(id), self.shards)
        row = await self._read(shard, "describe", (id,))
        return None if row is None else detail_of(row, shard, self._payloads_of(shard))

    async def list(self, where: Where | None = None, limit: int = 100, after: str | None = None,
                   shards: Sequence[int] | None = None) -> list[RunStatus]:
        """Runs that match: newest first within a shard, shards ascending. `after`: the cursor of the last one of the page before.

        Raises Rejected for a filter or a cursor that cannot be.
        """
        terms = _checked(where)
        if type(limit) is not int or limit < 1:
            raise Rejected(f"list(limit=) is a whole number, at least 1, not {limit!r:.80}")
        first, position = _cursor(after, self.shards)
        found: list[RunStatus] = []
        for shard in _shards(shards, self.shards):
            if shard < first or len(found) >= limit:
                continue
            page_after = position if shard == first else None
            while len(found) < limit:
                rows = await self._read(shard, "list", (terms, min(limit - len(found), 1000), page_after))
                if not rows:
                    break
                found += [status_of(row, shard, self._payloads_of(shard)) for row in rows]
                page_after = rows[-1].cursor
        return found

    @abstractmethod
    async def _limit(self, shard: int, call: LimitCall) -> LimitState:
        """Carry out a call on a limit whose home is this shard."""

    @abstractmethod
    async def _limit_page(self, shard: int, after: str) -> builtins.list[LimitRow]:
        """The limits whose home is this shard, behind a name; empty when there are no more."""

    async def limit(self, name: str, limit: Limit) -> None:
        """Define a limit, or define it anew; durable on return. Steps that name it wait for a permit before each attempt."""
        if not isinstance(limit, Limit):
            raise Rejected(f"limit: expected Limit(concurrent=.., per_second=..), found {limit!r:.120}")
        await self._limit_call(name, LimitSpec(limit.concurrent, limit.per_second))

    async def limit_in_use(self, name: str) -> int:
        """Permits held now. Raises NotFound for a limit that is not defined."""
        return (await self._limit_call(name)).in_use

    async def limit_waiting(self, name: str) -> int:
        """Steps that wait for a permit now. Raises NotFound for a limit that is not defined."""
        return (await self._limit_call(name)).waiting

    async def list_limits(self) -> builtins.list[LimitStatus]:
        """All limits that are defined, by name."""
        pages = await asyncio.gather(*(self._limits_of(shard) for shard in range(self.shards)))
        return sorted(
            (LimitStatus(row.name, row.spec.concurrent, row.spec.per_second, row.in_use, row.waiting, row.most)
             for rows in pages for row in rows), key=lambda limit: limit.name)

    async def _limits_of(self, shard: int) -> builtins.list[LimitRow]:
        page = await self._limit_page(shard, "")
        found = [*page]
        while page:
            page = await self._limit_page(shard, page[-1].name)
            found += page
        return found

    async def _limit_call(self, name: str, spec: LimitSpec | None = None) -> LimitState:
        checked_name("limit", name)
        state = await self._limit(shard_of(name, self.shards), LimitCall(name, spec))
        if state.spec is None:
            raise NotFound(f'no limit has the name "{name}": define it with limit("{name}", Limit(..))', limit=name)
        return state

    async def count(self, where: Where | None = None) -> int:
        """How many runs match."""
        terms = _checked(where)
        return sum([await self._read(shard, "count", (terms,)) for shard in range(self.shards)])


def unpack(outcome: Outcome, id: str, codec: Codec) -> Any:
    """The result of a run, or the exception that stands for another end."""
    if outcome.status == "ok":
        return codec.decode(outcome.payload)
    raise cause_of(outcome.status, outcome.payload, id, outcome.reason)


def _checked(where: Where | None) -> dict[str, Any] | None:
    if where is None:
        return None
    parse(where)
    return dict(where)


def _shards(wanted: Sequence[int] | None, shards: int) -> Sequence[int]:
    if wanted is None:
        return range(shards)
    for shard in wanted:
        if not isinstance(shard, int) or not 0 <= shard < shards:
            raise Rejected(f"shards=[..] holds numbers from 0 to {shards - 1}, not {shard!r}")
    return sorted(set(wanted))


def _cursor(after: str | None, shards: int) -> tuple[int, str | None]:
    if after is None:
        return 0, None
    shard, colon, position = after.partition(":") if isinstance(after, str) else ("", "", "")
    if not colon or not (shard.isascii() and shard.isdecimal() and len(shard) < 8 and int(shard) < shards):
        raise Rejected(f"after= takes the cursor of a listed run, not {after!r:.80}")
    return int(shard), position


def _one_of(option: str, found: object, choices: tuple[str, ...]) -> None:
    if found not in choices:
        raise Rejected(f"{option}= is one of {', '.join(map(repr, choices))}, not {found!r}")


