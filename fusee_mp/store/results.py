"""What reads answer: plain structs that travel as MessagePack arrays. Times are Unix milliseconds, attributes a JSON object."""
from __future__ import annotations

from msgspec import Struct

from fusee_mp.core.records import Parent


class State(Struct, array_like=True, frozen=True):
    """What the holder of a shard needs to begin: `inbox` has the last number taken per sending shard, `outbox` the next one per
    receiving shard, `filter_layers` the size in bytes of each layer of the filter of known IDs, to be asked for with `layer`."""

    applied_lsn: int
    epoch: int
    next_run: int
    inbox: list[tuple[int, int]]
    outbox: list[tuple[int, int]]
    filter_layers: list[int]
    strays: int
    stray_lsn: int


class Status(Struct, array_like=True, frozen=True):
    """One line of a list. `cursor` as `after` of the next call continues behind this line."""

    run: int
    id: str
    type: str
    status: str
    started: int
    finished: int | None
    due: int | None
    attributes: bytes
    reason: str
    cursor: str


class Found(Struct, array_like=True, frozen=True):
    """Everything about a run except its journal. `result` is there once it has ended, `lsn` is that of its last record."""

    run: int
    id: str
    type: str
    status: str
    started: int
    finished: int | None
    due: int | None
    deadline: int | None
    result: bytes | None
    reason: str
    attributes: bytes
    request: str
    parent: Parent | None
    lsn: int


class Journal(Struct, array_like=True, frozen=True):
    """A run's records, each behind its length (u32, little-endian), in log order; `lsn` is that of the run's last record, also when
    that one (a marker such as Quiet) is no part of the journal."""

    run: int
    id: str
    lsn: int
    data: bytes


class Description(Struct, array_like=True, frozen=True):
    """A run with its journal and the LSN of each record of it."""

    found: Found
    lsns: list[int]
    data: bytes


class Due(Struct, array_like=True, frozen=True):
    """A quiet run whose first timer is due at `due`; of a list of ended runs, one that ended then, with its workflow."""

    due: int
    run: int
    id: str
    type: str = ""


class Request(Struct, array_like=True, frozen=True):
    """The first record that came of a request."""

    run: int
    id: str
    lsn: int


class Sent(Struct, array_like=True, frozen=True):
    """An outbox entry that shard `to` has not acknowledged. `id` and `run` (0: none) sent it."""

    to: int
    no: int
    run: int
    id: str
    record: bytes


class Tally(Struct, array_like=True, frozen=True):
    """How many runs have this type and status."""

    type: str
    status: str
    n: int


class StoredSchedule(Struct, array_like=True, frozen=True):
    """A schedule. `state` is a core.schedule.ScheduleState in MessagePack."""

    id: str
    type: str
    input: bytes
    zone: str
    state: bytes


class StoredWindow(Struct, array_like=True, frozen=True):
    """A window of debounced or batched starts: open, or `closed` and kept for the event IDs it took."""

    id: str
    kind: str
    workflow: str
    key: str
    opened: int
    closes: int
    taken: int
    closed: int | None


class StoredEvent(Struct, array_like=True, frozen=True):
    """An event of a window. `id` may be empty; `input` is there while the window needs it."""

    lsn: int
    window: str
    id: str
    input: bytes | None


class WindowsState(Struct, array_like=True, frozen=True):
    """The latest time that the windows saw, and the last number that one of them got."""

    now: int
    number: int
