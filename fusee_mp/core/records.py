"""The facts of a shard: every kind of record that its log may hold, and their codec.

A record is a MessagePack array whose first element is the kind's tag; the fields follow in the order written here. The rules:

1. A tag is never given to another kind, and a field is never moved or removed: a new field goes to the end, with a default.
2. `run` is the run's number within its shard; `at` is milliseconds since the Unix epoch, and never decreases within a run.
3. The records of one run, in log order, are its journal. A kind is one of three sorts:
   outcomes (`OUTCOMES`) are what is fed to the code, one at a time, in journal order;
   asked (`ASKED`) are what the code asked for, so replay checks them and does not repeat their effect;
   the rest are facts about the run or the shard that the code never sees.
4. `op` is the identity of an operation: the path of the task that asked and its count within that task ("3", "2/1/3").
"""
from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from fusee_mp.core.numbers import Number, Seed, Shard, Signed
from fusee_mp.core.schedule import ScheduleState
from fusee_mp.core.schedule_changes import ScheduleChange

FinalStatus: TypeAlias = Literal["ok", "failed", "cancelled", "terminated", "timed_out", "reset", "continued_as_new"]
ClosePolicy: TypeAlias = Literal["terminate", "cancel", "abandon"]


class Source(Struct, array_like=True, frozen=True, gc=False):
    """The message that brought an arrival: the next of its sending shard, so it also moves the inbox position."""

    shard: Shard
    no: Number


class Parent(Struct, array_like=True, frozen=True, gc=False):
    """Who waits for a child: where its result goes."""

    shard: Shard
    id: str
    run: Number
    op: str


class _Record(Struct, array_like=True, tag_field="$", gc=False):
    """The base of all kinds: an array whose first element is the tag."""


class Grant(_Record, tag=1):
    """The right to append went to this worker; until the next grant only its records follow."""

    at: Number
    epoch: Number
    worker: str


class Start(_Record, tag=2):
    """A run began. `behaviour` names the asyncio behaviour of the interpreter that ran it first; `seed` feeds ctx.random().

    `update` was accepted with the start, before its validator could be asked, and is the first outcome. `zone` is that of the schedule.
    `answered` are the IDs of updates that the runs before it in a chain have carried out, the oldest first, each with its run.
    """

    run: Number
    at: Number
    id: str
    type: str
    input: bytes
    request: str = ""
    version: Signed = 0
    behaviour: str = ""
    deadline: Number | None = None
    attributes: bytes | None = None
    parent: Parent | None = None
    close: ClosePolicy = "terminate"
    source: Source | None = None
    origin: Number | None = None
    scheduled_at: Signed | None = None
    seed: Seed = 0
    update: Update | None = None
    zone: str = ""
    carried: Number = 0
    answered: list[tuple[str, Number]] = []


class StepDone(_Record, tag=3):
    """A step has its outcome: `ok` with a value, `failed` with a failure, or `cancelled` by the code (then it is asked, not fed)."""

    run: Number
    at: Number
    op: str
    name: str
    attempt: Number
    status: Literal["ok", "failed", "cancelled"]
    payload: bytes


class Attempt(_Record, tag=4):
    """An attempt failed and the next is due at `retry_at`. Not fed: the code does not see single attempts."""

    run: Number
    at: Number
    op: str
    name: str
    attempt: Number
    failure: bytes
    retry_at: Number


class Timer(_Record, tag=5):
    """The code asked for a timer, due at `due`."""

    run: Number
    at: Number
    op: str
    name: str
    due: Number


class Fired(_Record, tag=6):
    """A timer's time has come."""

    run: Number
    at: Number
    op: str


class Signal(_Record, tag=7):
    """A signal arrived."""

    run: Number
    at: Number
    name: str
    payload: bytes
    request: str = ""
    source: Source | None = None


class Child(_Record, tag=8):
    """The code asked for a child: message `no` to shard `to`. `no` 0: it was started before, and nothing is sent.

    `started_by`, `started_op`: the run of the same ID and its operation whose child this is already (0: this one).
    """

    run: Number
    at: Number
    op: str
    to: Shard
    no: Number
    id: str
    type: str
    input: bytes
    close: ClosePolicy = "terminate"
    timeout_ms: Number | None = None
    started_by: Number = 0
    started_op: str = ""


class ChildDone(_Record, tag=9):
    """A child's outcome arrived. `status` "refused" means that it never ran: `payload` has the failure."""

    run: Number
    at: Number
    op: str
    status: str
    payload: bytes
    source: Source | None = None


class Send(_Record, tag=10):
    """The code (or the end of a run, then `op` is empty) sends to another workflow: message `no` to shard `to`. `no` 0: sent before.

    With `child`, only the run that is this operation's child is meant, not a later one of the same ID; `child_by`: the operation is
    one of that earlier run (0: of this one).
    """

    run: Number
    at: Number
    op: str
    to: Shard
    no: Number
    kind: Literal["signal", "cancel", "terminate"]
    id: str
    name: str = ""
    payload: bytes = b""
    child: str = ""
    child_by: Number = 0


class CancelRequested(_Record, tag=11):
    """Somebody asked for the run's cancellation."""

    run: Number
    at: Number
    reason: str
    request: str = ""
    source: Source | None = None


class Done(_Record, tag=12):
    """The run ended. With a parent, the outcome is also message `no` to shard `to`. Without `history` its journal is not kept."""

    run: Number
    at: Number
    status: FinalStatus
    payload: bytes
    reason: str = ""
    request: str = ""
    parent: Parent | None = None
    to: Shard = -1
    no: Number = 0
    source: Source | None = None
    history: bool = True


class Quiet(_Record, tag=13):
    """The run waits for timers (the first at `due`), signals and children only. Any later record of it ends that."""

    run: Number
    at: Number
    due: Number | None
    parked: bool = False


class Skipped(_Record, tag=14):
    """A message had no effect (its target is missing or has ended); its number is taken all the same."""

    at: Number
    source: Source
    reason: str


class Acked(_Record, tag=15):
    """Shard `to` holds every message up to `through`: they need not be sent again."""

    to: Shard
    through: Number


class Quarantined(_Record, tag=16):
    """The run cannot go on with the code at hand: why, and at which journal position."""

    run: Number
    at: Number
    code: str
    message: str
    position: Signed


class Unquarantined(_Record, tag=17):
    """The run goes on: code that fits came."""

    run: Number
    at: Number


class Deleted(_Record, tag=18):
    """The finished run is gone: its retention ended or somebody deleted it. `archive`: its journal goes to the archive."""

    run: Number
    at: Number
    request: str = ""
    archive: bool = False


class Attributes(_Record, tag=19):
    """The code merged search attributes (a JSON object)."""

    run: Number
    at: Number
    op: str
    values: bytes


class Refused(_Record, tag=20):
    """A child could not be started: message `no` to shard `to` tells its parent why.

    Another `status` is the end of a child that had its result already, and `failure` that result.
    """

    at: Number
    id: str
    to: Shard
    no: Number
    parent: Parent
    failure: bytes
    source: Source
    status: str = "refused"


class Update(_Record, tag=21):
    """An update was accepted: its handler begins. `id` is the update's own, unlike any other of its run."""

    run: Number
    at: Number
    name: str
    id: str
    payload: bytes
    request: str = ""


class UpdateDone(_Record, tag=22):
    """The handler of an update came to its end. "refused": by the validator (of one that came with the start), `payload` says why."""

    run: Number
    at: Number
    op: str
    name: str
    id: str
    status: Literal["ok", "failed", "cancelled", "refused"]
    payload: bytes


class Heartbeat(_Record, tag=25):
    """A step's body reported how far it is: what its next attempt sees as progress."""

    run: Number
    at: Number
    op: str
    name: str
    attempt: Number
    payload: bytes


class Awaiting(_Record, tag=26):
    """The code waits for somebody outside, who gets the token of this attempt to send it. `sent`: the sender has it."""

    run: Number
    at: Number
    op: str
    name: str
    attempt: Number
    sent: bool = False


class Completed(_Record, tag=27):
    """Somebody outside completed the operation, or its sender failed; `cancelled` by the code (then it is asked, not fed)."""

    run: Number
    at: Number
    op: str
    name: str
    attempt: Number
    status: Literal["ok", "failed", "cancelled"]
    payload: bytes
    request: str = ""


class Paused(_Record, tag=28):
    """No step body of the run starts from here on. `op`: the step whose attempts are used up, or empty: somebody asked for it."""

    run: Number
    at: Number
    reason: str
    op: str = ""
    request: str = ""


class Resumed(_Record, tag=29):
    """Step bodies start again; a step whose attempts were used up has all of them again."""

    run: Number
    at: Number
    request: str = ""


class Begin(Struct, array_like=True, frozen=True, gc=False):
    """A schedule starts the run of this instant: message `no` to shard `to`."""

    to: Shard
    no: Number
    instant: Signed


class End(Struct, array_like=True, frozen=True, gc=False):
    """A schedule asks the run of this instant to end: message `no` to shard `to`."""

    to: Shard
    no: Number
    instant: Signed
    kind: Literal["cancel", "terminate"]


class Closing(Struct, array_like=True, frozen=True, gc=False):
    """A window closed, and its run starts: message `no` to shard `to`."""

    window: str
    to: Shard
    no: Number


class ScheduleSet(_Record, tag=35):
    """A schedule is this from here on; it may have started what it once remembered."""

    at: Number
    id: str
    type: str
    input: bytes
    zone: str
    state: ScheduleState
    begins: list[Begin] = []
    ends: list[End] = []
    request: str = ""
    answer: bytes = b""


class ScheduleMoved(_Record, tag=36):
    """Time, a call or the end of a run did this to a schedule."""

    at: Number
    id: str
    change: ScheduleChange
    begins: list[Begin] = []
    ends: list[End] = []
    request: str = ""
    answer: bytes = b""
    source: Source | None = None


class ScheduleDeleted(_Record, tag=37):
    """A schedule is gone. Its runs go on."""

    at: Number
    id: str
    request: str = ""
    answer: bytes = b""


class StartAsked(_Record, tag=38):
    """Message `no` to shard `to`: start this run. It stands in no log: the records of schedules and windows say when it is sent.

    `scheduled_at` is the instant of the schedule that asks, in `zone`: it is the run's parent, as run 0, and hears of its end.
    """

    at: Number
    to: Shard
    no: Number
    id: str
    type: str
    input: bytes
    scheduled_at: Signed | None = None
    zone: str = ""


class Gathered(_Record, tag=39):
    """An event joined the window of its key, which closes at `closes` if nothing else comes. What `closed` names but this window closed
    before it."""

    at: Number
    kind: Literal["debounce", "batch"]
    workflow: str
    key: str
    window: str
    closes: Signed
    input: bytes
    event: str = ""
    closed: list[Closing] = []
    request: str = ""
    answer: bytes = b""


class WindowsClosed(_Record, tag=40):
    """The time of these windows came."""

    at: Number
    closed: list[Closing]


class Inherited(_Record, tag=30):
    """The run continues another one of its ID, and this child of that one is its own now: started by operation `op` of run `by`."""

    run: Number
    at: Number
    id: str
    type: str
    close: ClosePolicy
    by: Number
    op: str


class Patched(_Record, tag=31):
    """The code came to this change of itself first now, so the run goes the new way, for ever."""

    run: Number
    at: Number
    name: str


Record: TypeAlias = (
    Grant | Start | StepDone | Attempt | Timer | Fired | Signal | Child | ChildDone | Send | CancelRequested | Done
    | Quiet | Skipped | Acked | Quarantined | Unquarantined | Deleted | Attributes | Refused
    | Update | UpdateDone | Heartbeat | Awaiting | Completed | Paused | Resumed | Inherited | Patched
    | ScheduleSet | ScheduleMoved | ScheduleDeleted | StartAsked | Gathered | WindowsClosed
)
Outcome: TypeAlias = StepDone | Fired | Signal | ChildDone | CancelRequested | Update | Completed
RunRecord: TypeAlias = (
    Start | StepDone | Attempt | Timer | Fired | Signal | Child | ChildDone | Send | CancelRequested | Done
    | Quiet | Quarantined | Unquarantined | Deleted | Attributes | Update | UpdateDone
    | Heartbeat | Awaiting | Completed | Paused | Resumed | Inherited | Patched
)

OUTCOMES: Final = (StepDone, Fired, Signal, ChildDone, CancelRequested, Update, Completed)
ASKED: Final = (Timer, Child, Send, Attributes, UpdateDone, Awaiting)
MESSAGES: Final = (Child, Send, Done, Refused, StartAsked)
# What a journal shows under these words; `describe` and exports use them.
KIND: Final[dict[type[Struct], str]] = {
    Grant: "grant", Start: "start", StepDone: "step", Attempt: "attempt", Timer: "timer", Fired: "fired", Signal: "signal",
    Child: "child", ChildDone: "child_done", Send: "send", CancelRequested: "cancel", Done: "done", Quiet: "quiet",
    Skipped: "skipped", Acked: "acked", Quarantined: "quarantined", Unquarantined: "unquarantined", Deleted: "deleted",
    Attributes: "attributes", Refused: "refused", Update: "update", UpdateDone: "update_done",
    Heartbeat: "heartbeat", Awaiting: "awaiting", Completed: "completed", Paused: "paused", Resumed: "resumed",
    Inherited: "inherited", Patched: "patched",
    ScheduleSet: "schedule", ScheduleMoved: "schedule_moved", ScheduleDeleted: "schedule_deleted", StartAsked: "start_asked",
    Gathered: "gathered", WindowsClosed: "windows_closed",
}
# Kept in the log and folded, but no part of a journal.
NOT_IN_JOURNAL: Final = (
    Grant, Quiet, Skipped, Acked, Deleted, Refused, ScheduleSet, ScheduleMoved, ScheduleDeleted, StartAsked, Gathered, WindowsClosed,
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)
encode = _encoder.encode
"""Encode one record. Equal records give equal bytes."""
decode = _decoder.decode
"""Decode one record. Raises msgspec.DecodeError (a ValueError) that names the field when the bytes are not a record."""


decode_object: Final = msgspec.json.Decoder(dict[str, Any]).decode
"""Decode attributes. Raises as `decode` does."""


def read(data: bytes) -> Record:
    """Decode one record, and see that the attributes it may have are a JSON object. Raises ValueError that says what is wrong."""
    try:
        record = decode(data)
        if type(record) is Attributes:
            decode_object(record.values)
        elif type(record) is Start and record.attributes is not None:
            decode_object(record.attributes)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as e:
        raise ValueError(f"{e} (its bytes begin {data[:24].hex()})") from e
    return record


class Message(Struct, array_like=True, gc=False):
    """One outbox entry on its way: the record that caused it, with its sender."""

    shard: Shard
    no: Number
    id: str
    record: bytes


encode_message = _encoder.encode
decode_message = msgspec.msgpack.Decoder(Message).decode

R = TypeVar("R", bound=Struct)
LENGTH_BYTES: Final = 4


def frame(data: bytes) -> bytes:
    """One encoded record as it stands in a batch: its length (u32, little-endian), then its bytes."""
    return len(data).to_bytes(LENGTH_BYTES, "little") + data


def unframe(data: bytes) -> list[bytes]:
    """The records that stand one after another in `data`, each behind its length. Raises ValueError when the last is cut."""
    found: list[bytes] = []
    at, end = 0, len(data)
    while at < end:
        size = int.from_bytes(data[at : at + LENGTH_BYTES], "little")
        at += LENGTH_BYTES
        if at + size > end:
            raise ValueError(f"{end} bytes of records end within the one at {at - LENGTH_BYTES}")
        found.append(data[at : at + size])
        at += size
    return found
