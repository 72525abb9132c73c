# The debounce and batch windows of one shard, at work.
#
# Which event goes where, and when a window closes, the machine says (core/windows.py). Here each event becomes one record, with
# whatever closed by it, and a closed window's run starts on the shard of its own ID, by a message.
# Rule 1: an event is acknowledged once its record is durable: from then on it reaches a run.
# Rule 2: a window has no end of its own that could be missed: after a takeover what is overdue closes at once.
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from fusee_mp.bounds import WINDOWS_CLOSED_MAX
from fusee_mp.core import records as r
from fusee_mp.core.time_calls import GatherCall
from fusee_mp.core.windows import Closed, Place, Windows, place_of
from fusee_mp.core.wishes import close_of
from fusee_mp.errors import FuseeError, Rejected
from fusee_mp.runtime.schedules import encode_answer

if TYPE_CHECKING:
    from fusee_mp.runtime.calls import Calls
    from fusee_mp.runtime.shard_runtime import ShardRuntime
    from fusee_mp.store.results import StoredEvent, StoredWindow

PAGE: Final = 1_000


class Gathering:
    def __init__(self, shard: ShardRuntime, calls: Calls) -> None:
        self._shard = shard
        self._calls = calls
        self._windows = Windows()
        self._alarm_ms: int | None = None

    def has_key(self, key: str) -> bool:
        """A window of this key is open."""
        return self._windows.has_key(key)

    async def take_over(self) -> None:
        """Read the windows from the store."""
        read = self._shard.home.read
        state, after, rows, last, events = await read("windows_state", ()), "", [], 0, []
        while page := await read("windows", (after, PAGE)):
            rows += page
            after = page[-1].id
        while page := await read("events", (last, PAGE)):
            events += page
            last = page[-1].lsn
        self._windows = Windows.load({"now_ms": state.now, "number": state.number, **_saved(rows, events)})
        self._arm()

    # Events.

    def gather(self, call: GatherCall) -> None:
        """An event comes. Answered with the ID of the run that it goes to."""
        call = self._shard.payloads.sealed(call)  # its input is looked at by nobody before the run
        if refusal := self._refusal(call):
            self._calls.refuse(call, 0, refusal)
            return
        place = place_of(call.type, call.key, call.rule)
        if (known := self._windows.answer(place, call.event)) is not None:
            self._calls.done(call, self._shard.lsn, known)
            return
        try:
            window, effects = self._windows.add(call.type, call.key, call.rule, call.input, call.event, now_ms=self._shard.clock())
        except Rejected as e:
            self._calls.refuse(call, 0, e)
            return
        lsn = self._gathered(call, place, window, [effect for effect in effects if isinstance(effect, Closed)])
        self._calls.done(call, lsn, window)

    def _refusal(self, call: GatherCall) -> FuseeError | None:
        if call.key in self._shard.schedules:
            return Rejected(f'key "{call.key}" is the ID of a schedule, and its runs have IDs of the same form. Use another key.',
                            key=call.key)
        return self._calls.start_refusal(call)

    def _gathered(self, call: GatherCall, place: Place, window: str, closed: list[Closed]) -> int:
        at = self._windows.now_ms
        closings = self._closings(closed)
        lsn = self._shard.append(self._shard.encode(r.Gathered(
            at, "debounce" if place.kind == "debounce" else "batch", call.type, call.key, window, self._windows.closes_ms(place) or at,
            call.input, call.event or "", closings, call.request, encode_answer(window))))
        self._post(closed, closings, at, lsn)
        self._arm()
        return lsn

    # Time.

    is_open = True  # as a timer: one is set for the first window to close, and set again when it is due

    def due(self) -> None:
        if self._alarm_ms is not None and self._shard.clock() < self._alarm_ms:
            return  # one that was set before an earlier one: it was done with that
        self._alarm_ms = None
        closed = self._windows.pass_time(self._shard.clock())
        for at in range(0, len(closed), WINDOWS_CLOSED_MAX):
            self._close(closed[at:at + WINDOWS_CLOSED_MAX])
        self._arm()

    def _close(self, closed: list[Closed]) -> None:
        at, closings = self._windows.now_ms, self._closings(closed)
        self._post(closed, closings, at, self._shard.append(self._shard.encode(r.WindowsClosed(at, closings))))

    def _arm(self) -> None:
        due = self._windows.next_due
        if due is not None and (self._alarm_ms is None or due < self._alarm_ms):
            self._alarm_ms = max(due, self._shard.clock() + 1)
            self._shard.timers.add(self._alarm_ms, self)

    # Messages.

    def _closings(self, closed: list[Closed]) -> list[r.Closing]:
        return [r.Closing(each.run_id, *self._shard.mail.address(each.run_id)) for each in closed]

    def _post(self, closed: list[Closed], closings: list[r.Closing], at: int, lsn: int) -> None:
        for each, closing in zip(closed, closings, strict=True):
            place = each.place
            message = close_of(place.kind, place.workflow, each.inputs, at, closing)
            self._shard.mail.post(place.key, closing.to, closing.no, self._shard.encode(message), lsn)


def _saved(rows: list[StoredWindow], events: list[StoredEvent]) -> dict[str, Any]:
    """Open windows, and what the closed ones took, as the machine saves them."""
    inputs: dict[str, list[bytes]] = {}
    ids: dict[str, list[str]] = {}
    for event in events:
        if event.input is not None:
            inputs.setdefault(event.window, []).append(event.input)
        if event.id:
            ids.setdefault(event.window, []).append(event.id)
    places = {row.id: {"kind": row.kind, "workflow": row.workflow, "key": row.key} for row in rows}
    return {
        "open": [{
            "place": places[row.id], "run_id": row.id, "opened_ms": row.opened, "closes_ms": row.closes, "taken": row.taken,
            "inputs": inputs.get(row.id, []), "event_ids": ids.get(row.id, []),
        } for row in rows if row.closed is None],
        "closed": [
            {"closed_ms": row.closed, "place": places[row.id], "event_id": id, "run_id": row.id}
            for row in sorted((row for row in rows if row.closed is not None), key=lambda row: row.closed or 0)
            for id in ids.get(row.id, [])
        ],
    }
