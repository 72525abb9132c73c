"""What may be asked of a shard: the calls and their answers, as they travel.

A call is a MessagePack array whose first element is its word. Every call that changes something has a request ID.
"""
from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

from fusee_mp.core.permits import LimitSpec
from fusee_mp.core.time_calls import ScheduleCall, SchedulesCall, TimeMutation

OnRunning: TypeAlias = Literal["fail", "use_existing", "terminate"]
OnFinished: TypeAlias = Literal["allow", "allow_if_failed", "refuse", "use_existing"]


class _Call(Struct, array_like=True, tag_field="$", gc=False):
    """The base of all calls. `repeat` says that this request ID may have been used before."""


class StartCall(_Call, tag="start"):
    id: str
    type: str
    input: bytes
    request: str
    repeat: bool = False
    on_running: OnRunning = "fail"
    on_finished: OnFinished = "allow"
    deadline_ms: int | None = None
    attributes: bytes | None = None


class SignalCall(_Call, tag="signal"):
    id: str
    name: str
    payload: bytes
    request: str
    repeat: bool = False


class CancelCall(_Call, tag="cancel"):
    id: str
    reason: str
    request: str
    repeat: bool = False


class TerminateCall(_Call, tag="terminate"):
    id: str
    reason: str
    request: str
    repeat: bool = False


class UpdateCall(_Call, tag="update"):
    """Waits for the handler's end. `update` is the ID of the update, by default that of the request."""

    id: str
    name: str
    payload: bytes
    update: str
    request: str
    repeat: bool = False


class StartWithUpdateCall(_Call, tag="start_with_update"):
    """An update of the ID's open run, or a start and an update in one."""

    id: str
    type: str
    input: bytes
    name: str
    payload: bytes
    update: str
    request: str
    repeat: bool = False


class PauseCall(_Call, tag="pause"):
    id: str
    reason: str
    request: str
    repeat: bool = False


class ResumeCall(_Call, tag="resume"):
    id: str
    request: str
    repeat: bool = False


class ResetCall(_Call, tag="reset"):
    """A new run of the ID goes on before the `occurrence`-th step of this name."""

    id: str
    step: str
    occurrence: int
    request: str
    repeat: bool = False


class DeleteCall(_Call, tag="delete"):
    """The ended runs of the ID are gone."""

    id: str
    request: str
    repeat: bool = False


class CompleteCall(_Call, tag="complete"):
    """An operation of run `run` that waits for this: what a token says, with its seal, and the outcome, a value or a failure."""

    id: str
    run: int
    op: str
    attempt: int
    seal: bytes
    status: Literal["ok", "failed"]
    payload: bytes
    request: str
    repeat: bool = False


class QueryCall(_Call, tag="query"):
    id: str
    name: str
    payload: bytes


class ResultCall(_Call, tag="result"):
    """Waits for the end of the newest run of the ID."""

    id: str


class StartedCall(_Call, tag="started"):
    """Waits until the ID has a run."""

    id: str


Mutation: TypeAlias = (
    StartCall | SignalCall | CancelCall | TerminateCall | UpdateCall | StartWithUpdateCall | PauseCall | ResumeCall | CompleteCall
    | ResetCall | DeleteCall
    | TimeMutation
)
Call: TypeAlias = Mutation | QueryCall | ResultCall | StartedCall | ScheduleCall | SchedulesCall


class LimitCall(Struct, array_like=True, frozen=True):
    """Defines a limit, or with `spec` None only looks at it. Its shard's process answers it, no worker."""

    name: str
    spec: LimitSpec | None = None


class LimitRow(Struct, array_like=True, frozen=True):
    """One limit of a list: permits held, tickets that wait, the most permits ever held since its table began, and the definition."""

    name: str
    in_use: int
    waiting: int
    most: int
    spec: LimitSpec


class LimitState(Struct, array_like=True, frozen=True):
    """The answer to a limit call: permits held, tickets that wait, and what is defined, if it is."""

    in_use: int
    waiting: int
    spec: LimitSpec | None


class Started(Struct, array_like=True, frozen=True, gc=False):
    """The answer to a start: the number of the run that answers for the ID, and whether this call made it."""

    run: int
    created: bool


class Outcome(Struct, array_like=True, frozen=True, gc=False):
    """The answer to a result call: how the run ended. To an update or a query: how its handler ended."""

    status: str
    payload: bytes
    reason: str = ""
    type: str = ""


_decoder: msgspec.msgpack.Decoder[Call] = msgspec.msgpack.Decoder(Call)
decode_call = _decoder.decode
encode_call = msgspec.msgpack.encode
