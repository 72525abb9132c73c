# Windows: many events become one start.
#
# A debounce window closes when no event came for `window_ms`, or `max_wait_ms` after it opened; its run gets the last input. A batch
# window closes with its `size`th event, or `wait_ms` after it opened; its run gets all inputs in order.
# Rule 1: a window's run ID, `<key>@<ms>`, is fixed when it opens. The number rises over all windows of a shard and never repeats.
# Rule 2: an event ID joins once. While its window is open and for a day after, a repeat gets the run ID that the first one got.
# Rule 3: an event at or after a window's closing time belongs to the next window, however late the time was noticed. So what a window
#         holds depends on the events and their times alone, and replaying them gives the same windows.
# Rule 4: no window grows past what one start can carry: it closes before an event that would make it too large.
# Time never goes back here: an earlier `now_ms` counts as the latest that was seen.
from __future__ import annotations

from collections import deque
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import Struct, field

from fusee_mp.bounds import (
    DURATION_MS_MAX,
    PAYLOAD_BYTES_MAX,
    WINDOW_EVENT_IDS_KEEP_MS,
    WINDOW_EVENT_IDS_MAX,
    WINDOW_EVENTS_MAX,
)
from fusee_mp.core.placement import check_id
from fusee_mp.core.timers import Timers
from fusee_mp.errors import Rejected, StorageError
from fusee_mp.names import checked_name


class DebounceRule(Struct, frozen=True, tag="debounce"):
    """window_ms: of silence that closes it. max_wait_ms: the longest that the first event waits; None for no such bound."""

    window_ms: int
    max_wait_ms: int | None = None

    def check(self) -> DebounceRule:
        """This rule, if it may be one; else Rejected."""
        _within("Debounce window", self.window_ms, DURATION_MS_MAX, "ms")
        if self.max_wait_ms is not None:
            _within("Debounce max_wait", self.max_wait_ms, DURATION_MS_MAX, "ms")
        return self

    @property
    def size(self) -> int:
        return WINDOW_EVENTS_MAX

    def closes_ms(self, opened_ms: int, last_ms: int) -> int:
        silence = last_ms + self.window_ms
        return silence if self.max_wait_ms is None else min(silence, opened_ms + self.max_wait_ms)


class BatchRule(Struct, frozen=True, tag="batch"):
    """size: events that close it. wait_ms: the longest that the first event waits."""

    size: int
    wait_ms: int

    def check(self) -> BatchRule:
        """This rule, if it may be one; else Rejected."""
        _within("Batch size", self.size, WINDOW_EVENTS_MAX, "events")
        _within("Batch wait", self.wait_ms, DURATION_MS_MAX, "ms")
        return self

    def closes_ms(self, opened_ms: int, last_ms: int) -> int:
        return opened_ms + self.wait_ms


Rule: TypeAlias = DebounceRule | BatchRule


class Place(Struct, frozen=True):
    """What has one window at a time. kind: "debounce" or "batch"."""

    kind: str
    workflow: str
    key: str


class Opened(Struct, frozen=True):
    """A window opened; its run will have this ID."""

    place: Place
    run_id: str
    closes_ms: int


class Extended(Struct, frozen=True):
    """A window closes at another time than was said before."""

    place: Place
    run_id: str
    closes_ms: int


class Closed(Struct, frozen=True):
    """Start this run. inputs: the last one of a debounce window, all of a batch."""

    place: Place
    run_id: str
    inputs: list[bytes]


Effect: TypeAlias = Opened | Extended | Closed


class _Window(Struct):
    place: Place
    run_id: str
    opened_ms: int
    closes_ms: int
    taken: int = 0
    size: int = 1  # Bytes of the JSON list of its inputs.
    inputs: list[bytes] = field(default_factory=list)
    event_ids: list[str] = field(default_factory=list)

    def take(self, rule: Rule, input: bytes, now_ms: int) -> None:
        if isinstance(rule, DebounceRule):
            self.inputs.clear()
            self.size = 1
        self.inputs.append(input)
        self.size += len(input) + 1
        self.taken += 1
        self.closes_ms = rule.closes_ms(self.opened_ms, now_ms)

    def has_room(self, input: bytes) -> bool:
        return self.place.kind == "debounce" or self.size + len(input) + 1 <= PAYLOAD_BYTES_MAX


class _Answer(Struct, frozen=True):
    """What a closed window says of an event ID."""

    closed_ms: int
    place: Place
    event_id: str
    run_id: str


class Windows:
    """All windows of one shard. Every input is a record of the log first; replaying them, or `load`, gives the same state."""

    __slots__ = ("_answers", "_closed", "_now_ms", "_number", "_open", "_timers")

    def __init__(self) -> None:
        self._open: dict[Place, _Window] = {}
        self._answers: dict[tuple[Place, str], str] = {}
        self._closed: deque[_Answer] = deque()
        self._timers: Timers[Place] = Timers()
        self._now_ms = 0
        self._number = 0  # The last window's.

    def __len__(self) -> int:
        """Open windows."""
        return len(self._open)

    @property
    def now_ms(self) -> int:
        """The latest time that was seen."""
        return self._now_ms

    def has_key(self, key: str) -> bool:
        """A window of this key is open."""
        return any(place.key == key for place in self._open)

    def answer(self, place: Place, event_id: str | None) -> str | None:
        """The run that this event ID went to, if it came before."""
        return None if event_id is None else self._answers.get((place, event_id))

    def closes_ms(self, place: Place) -> int | None:
        """When its open window closes, if nothing else comes."""
        window = self._open.get(place)
        return None if window is None else window.closes_ms

    def add(self, workflow: str, key: str, rule: Rule, input: bytes, event_id: str | None = None, *,
            now_ms: int) -> tuple[str, list[Effect]]:
        """The run that this event goes to, and what follows. A repeated event ID changes nothing and gets the first answer.

        The rule of the latest event holds for the whole window. Raises Rejected, changing nothing, for what cannot be.
        """
        place = _place(workflow, key, rule, input, event_id)
        self._now_ms = now = max(now_ms, self._now_ms)
        self._forget()
        if event_id is not None and (place, event_id) in self._answers:
            return self._answers[place, event_id], []
        effects: list[Effect] = []
        window = self._open.get(place)
        if window is not None and (window.closes_ms <= now or not window.has_room(input)):
            effects.append(self._close(window))
            window = None
        known = window is not None
        window = window or self._opened(place, now)
        effects += self._join(window, rule, input, event_id, known)
        return window.run_id, effects

    def _opened(self, place: Place, now_ms: int) -> _Window:
        self._number = max(now_ms, self._number + 1)
        window = self._open[place] = _Window(place, f"{place.key}@{self._number}", now_ms, 0)
        return window

    def _join(self, window: _Window, rule: Rule, input: bytes, event_id: str | None, known: bool) -> list[Effect]:
        before = window.closes_ms
        window.take(rule, input, self._now_ms)
        if event_id is not None:
            window.event_ids.append(event_id)
            self._answers[window.place, event_id] = window.run_id
        effects: list[Effect] = [] if known else [Opened(window.place, window.run_id, window.closes_ms)]
        if window.taken >= rule.size or window.closes_ms <= self._now_ms:
            return [*effects, self._close(window)]
        if window.closes_ms != before:
            self._set_timer(window)
        return [Extended(window.place, window.run_id, window.closes_ms)] if known and window.closes_ms != before else effects

    def pass_time(self, now_ms: int) -> list[Closed]:
        """Close every window whose time has come, the earliest first."""
        self._now_ms = now = max(now_ms, self._now_ms)
        closed = []
        for place in self._timers.pop_due(now):
            window = self._open.get(place)
            if window is not None and window.closes_ms <= now:
                closed.append(self._close(window))
        self._forget()
        return closed

    @property
    def next_due(self) -> int | None:
        """When `pass_time` has something to do again; None when nothing is open. It may be early, never late."""
        return self._timers.next_due if self._open else None

    def run_id(self, workflow: str, key: str, kind: str) -> str | None:
        """The run that an open window will start."""
        window = self._open.get(Place(kind, workflow, key))
        return None if window is None else window.run_id

    def _close(self, window: _Window) -> Closed:
        del self._open[window.place]
        # By the window's own time, so that it does not matter how late that was noticed.
        closed_ms = min(window.closes_ms, self._now_ms)
        self._closed.extend(_Answer(closed_ms, window.place, id, window.run_id) for id in window.event_ids)
        return Closed(window.place, window.run_id, window.inputs)

    def _forget(self) -> None:
        before_ms = self._now_ms - WINDOW_EVENT_IDS_KEEP_MS
        while self._closed and (self._closed[0].closed_ms <= before_ms or len(self._closed) > WINDOW_EVENT_IDS_MAX):
            answer = self._closed.popleft()
            del self._answers[answer.place, answer.event_id]

    def _set_timer(self, window: _Window) -> None:
        self._timers.add(window.closes_ms, window.place)
        # Every extension leaves its old deadline behind.
        if len(self._timers) > 2 * len(self._open) + 64:
            self._timers = _timers(self._open)

    def state(self) -> dict[str, Any]:
        """Everything as plain values (dict, list, int, text, bytes)."""
        saved = _Saved(self._now_ms, self._number, list(self._open.values()), list(self._closed))
        plain: dict[str, Any] = msgspec.to_builtins(saved, builtin_types=(bytes,))
        return plain

    @classmethod
    def load(cls, state: object) -> Windows:
        """What `state` described. Raises StorageError for what no windows can have written."""
        self = cls()
        try:
            saved = msgspec.convert(state, _Saved)
        except msgspec.ValidationError as e:
            raise StorageError(f"saved windows: {e}") from None
        self._now_ms, self._number, self._closed = saved.now_ms, saved.number, deque(saved.closed)
        self._open = {window.place: window for window in saved.open}
        for window in saved.open:
            window.size = 1 + sum(len(input) + 1 for input in window.inputs)
        answers = [(answer.place, answer.event_id, answer.run_id) for answer in saved.closed]
        answers += [(window.place, id, window.run_id) for window in saved.open for id in window.event_ids]
        self._answers = {(place, id): run_id for place, id, run_id in answers}
        if len(self._open) < len(saved.open) or len(self._answers) < len(answers):
            raise StorageError("saved windows: expected one window of each key and one run of each event ID, found two of one")
        self._timers = _timers(self._open)
        return self


class _Saved(Struct, frozen=True, forbid_unknown_fields=True):
    now_ms: int
    number: int
    open: list[_Window]
    closed: list[_Answer]


def _timers(windows: dict[Place, _Window]) -> Timers[Place]:
    timers: Timers[Place] = Timers()
    for place, window in windows.items():
        timers.add(window.closes_ms, place)
    return timers


_LONGEST_NUMBER: Final = (1 << 63) - 1


def _place(workflow: str, key: str, rule: Rule, input: bytes, event_id: str | None) -> Place:
    rule.check()
    if not isinstance(key, str):
        raise Rejected(f"key: expected text, found {key!r:.80}. Name what is gathered: a customer, a document, ..")
    check_id(f"{key}@{_LONGEST_NUMBER}")
    if event_id is not None:
        checked_name("event ID", event_id)
    place = place_of(workflow, key, rule)
    size = len(input) if place.kind == "debounce" else len(input) + 2
    if size > PAYLOAD_BYTES_MAX:
        raise Rejected(f"event: a {place.kind} of it alone is {size:,} bytes, and an input has at most {PAYLOAD_BYTES_MAX:,}."
                       " Keep the value elsewhere and send its address.")
    return place


def place_of(workflow: str, key: str, rule: Rule) -> Place:
    """Where events with this rule go."""
    return Place("debounce" if isinstance(rule, DebounceRule) else "batch", workflow, key)


def _within(what: str, found: object, most: int, unit: str) -> None:
    if not isinstance(found, int) or isinstance(found, bool) or not 1 <= found <= most:
        raise Rejected(f"{what}: expected 1 to {most:,} {unit}, found {found!r:.80}.", option=what)
