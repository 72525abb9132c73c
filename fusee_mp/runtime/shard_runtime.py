# The runtime of one shard: its runs, and the only two doors between them and the world.
#
# In: calls, messages, timers, ends of step bodies. Each is a plain callback of the ordinary loop that changes something and then
# lets `work` run: turns of the runs that have something to be fed, effects that have become free, until nothing is left.
# Out: `append` for records and `hold` for effects.
# Rule 1: an effect leaves only through `hold`, with the LSN it rests on, once the log is durable through it.
# Rule 2: the LSN of a record is known when it is appended: between two grants only this runtime's records follow in the log.
# Rule 3: `work` goes on from plain callbacks only and never twice, so code is never run from within code or a task, and the
#         stack stays flat.
from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol

from fusee_mp.bounds import FRAME_BYTES_MAX, KIB, RECORD_BYTES_MAX, TOGETHER_BYTES_MAX
from fusee_mp.core import records as r
from fusee_mp.core.calls import Call, Outcome
from fusee_mp.core.idfilter import IdFilter, key
from fusee_mp.core.postbox import Inbox, Outbox
from fusee_mp.core.timers import Timers
from fusee_mp.errors import FuseeError, LeaseLost, NonDeterminismError, UnknownWorkflow
from fusee_mp.payload.sealing import PLAIN, Payloads
from fusee_mp.runtime.calls import Calls, Reply
from fusee_mp.runtime.crew import Crew
from fusee_mp.runtime.entries import Entry
from fusee_mp.runtime.gathering import Gathering
from fusee_mp.runtime.home import Found, Home, Metrics
from fusee_mp.runtime.loop import Handle
from fusee_mp.runtime.mail import Mail
from fusee_mp.runtime.registry import Registry
from fusee_mp.runtime.residence import PAGE_MS, Deadline, Residence
from fusee_mp.runtime.retention import KEEP_ALL, Keeping, Retention
from fusee_mp.runtime.run import Run
from fusee_mp.runtime.schedules import Schedules
from fusee_mp.runtime.steps import StepCall
from fusee_mp.runtime.weight import Budget
from fusee_mp.store.results import State

LOG: Final = logging.getLogger("fusee_mp.shard")
PAGE_RETRY_S: Final = 1.0
TEND_MS: Final = 200
ALARM_MS_MAX: Final = 1_000
BYTES_AHEAD: Final = 64 << 10  # so much goes on to the log before the work is done, so that both go on side by side
APPEND_BYTES: Final = 1 << 20  # one turn may bring more than the log takes at once
assert APPEND_BYTES + RECORD_BYTES_MAX + 64 * KIB < FRAME_BYTES_MAX
ITEMS_A_SLICE: Final = 2_048  # then the ordinary loop gets a turn: sockets, user code


Effect = tuple[int, Callable[..., object], tuple[Any, ...]]


class Due(Protocol):
    """Something with a deadline."""

    @property
    def is_open(self) -> bool: ...
    def due(self) -> None: ...


class ShardRuntime:
    def __init__(
        self, shard: int, shards: int, registry: Registry, home: Home, *,
        clock: Callable[[], int], draw: Callable[[], float], crew: Crew, park_after_ms: int | None = 10_000,
        payloads: Payloads = PLAIN, keeping: Keeping = KEEP_ALL,
        budget: Budget | None = None,
    ) -> None:
        """`clock` gives milliseconds since the Unix epoch, `draw` a number in [0, 1)."""
        self.shard = shard
        self.shards = shards
        self.registry = registry
        self.home = home
        self.payloads = payloads
        # The one way of a record to its bytes: what it holds is sealed there.
        self.encode: Callable[[r.Record], bytes] = r.encode if payloads.is_plain else lambda record: r.encode(payloads.recorded(record))
        self.crew = crew
        self.loop = crew.loop
        self.clock = clock
        self.draw = draw
        self.threads = crew.threads
        self.eager = crew.eager
        self.base_context = crew.base_context
        self.ready: deque[Handle] = deque()
        self.by_id: dict[str, Run] = {}
        self.by_number: dict[int, Run] = {}
        self.timers: Timers[Due] = Timers()
        self.dead_timers = 0
        self.outbox = Outbox()
        self.mail = Mail(self)
        self.calls = Calls(self)
        self.schedules = Schedules(self, self.calls)
        self.windows = Gathering(self, self.calls)
        self.residence = Residence(self, park_after_ms, budget or Budget())
        self.keeping = keeping
        self.retention = Retention(self, keeping)
        self.metrics = Metrics()
        self.filter = IdFilter()
        self.next_run = 1
        self.lsn = 0
        self.durable_lsn = 0
        self.applied_lsn = 0
        self.turn: Run | None = None  # whose code is running, for the watch over blocked turns
        self.turns = 0
        self.blocked = ""  # what the watch says of it, when it interrupts it
        self.alarm_ms_max = ALARM_MS_MAX
        self.is_closed = False
        self.is_draining = False
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._held: deque[Effect] = deque()
        self._free: deque[Effect] = deque()
        self._applied: deque[tuple[int, Callable[[], object]]] = deque()
        self._runnable: deque[Run] = deque()
        self._working = self._is_scheduled = False
        self._lookups: dict[str, deque[tuple[Callable[[Entry], None], bool]]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_ms = 0
        self._tending: asyncio.TimerHandle | None = None
        self._paging = False
        self._early: list[Callable[[], object]] | None = []  # what came before the takeover was done

    # Taking over, leaving.

    async def take_over(self, base_lsn: int, state: State) -> None:
        """Begin where the log ends at `base_lsn`; `state` is the keeper's, with everything up to there applied."""
        self.lsn = self.durable_lsn = self.applied_lsn = base_lsn
        self.next_run = state.next_run
        # A layer that no frame can carry stays behind: then every ID may be known, and the keeper is asked.
        layers = [
            await self.home.read("layer", (index,)) if size < FRAME_BYTES_MAX // 2 else None
            for index, size in enumerate(state.filter_layers)
        ]
        self.filter = IdFilter.from_layers(layers)
        for to, no in state.outbox:
            self.outbox.start_at(to, no)
        self.mail.inbox = Inbox(state.inbox)
        await self._read_outbox([to for to, _ in state.outbox])
        await self.schedules.take_over()
        await self.windows.take_over()
        await self.residence.take_over()
        self.mail.resend()
        early, self._early = self._early or [], None
        for enter in early:
            enter()
        self.retention.begin()
        self.work_soon()

    async def _read_outbox(self, targets: list[int]) -> None:
        for to in targets:
            after = 0
            while sent := await self.home.read("outbox", (to, after, 256)):
                for entry in sent:
                    self.outbox.put(to, entry.no, r.encode_message(r.Message(self.shard, entry.no, entry.id, entry.record)))
                    after = entry.no

    def drain(self) -> None:
        """Start no further step body; those that run may end and are recorded."""
        self.is_draining = True

    @property
    def running(self) -> list[StepCall]:
        """Steps whose bodies run now."""
        return [step for run in self.by_number.values() for step in run.running]

    def close(self, error: FuseeError | None = None) -> None:
        """Drop every run without an effect; nothing is recorded any more. Bodies of async steps are cancelled."""
        if self.is_closed:
            return
        self.is_closed = True
        self.residence.close()
        for timer in (self._alarm, self._tending):
            if timer is not None:
                timer.cancel()
        for task in self._tasks:
            task.cancel()
        for run in list(self.by_number.values()):
            run.drop()
        self.calls.close(error or LeaseLost(f"shard {self.shard} has left this process"))
        early, self._early = self._early or [], None
        for enter in early:
            enter()
        self.by_id.clear()
        self.by_number.clear()
        self._held.clear()
        self._free.clear()
        self._runnable.clear()

    # In.

    def call(self, call: Call, reply: Reply) -> None:
        if self.is_closed:
            self.calls.do(call, reply)  # which says why
        else:
            self._enter(lambda: self.calls.do(call, reply))

    def deliver(self, sender: int, messages: list[bytes]) -> None:
        self._enter(lambda: self.mail.deliver(sender, messages))

    def others_changed(self) -> None:
        """What code other processes have has changed in the registry."""
        self._enter(self.calls.handlers.others_changed)

    def relay_acked(self, to: int, through: int) -> None:
        self._enter(lambda: self.mail.acknowledged(to, through))

    def _enter(self, enter: Callable[[], object]) -> None:
        if self.is_closed:
            return
        if self._early is not None:
            self._early.append(enter)
            return
        enter()
        self.work_soon()

    def durable(self, lsn: int) -> None:
        """The log is durable through `lsn`."""
        if lsn <= self.durable_lsn or self.is_closed:
            return
        self.durable_lsn = lsn
        held, free = self._held, self._free
        while held and held[0][0] <= lsn:
            free.append(held.popleft())
        self.work()

    def applied(self, lsn: int) -> None:
        """The keeper has applied everything up to `lsn`."""
        if lsn <= self.applied_lsn or self.is_closed:
            return
        self.applied_lsn = lsn
        while self._applied and self._applied[0][0] <= lsn:
            self._applied.popleft()[1]()
        self.residence.applied(lsn)

    # Out.

    def append(self, record: bytes) -> int:
        """Append one record and return its LSN. Not durable yet."""
        self._out.append(len(record).to_bytes(4, "little"))
        self._out.append(record)
        self._out_bytes += len(record)
        self.lsn += 1
        self.metrics.records += 1
        return self.lsn

    @contextmanager
    def together(self) -> Iterator[None]:
        """What is appended within stands or falls as one: a crash leaves all of it or nothing. At most TOGETHER_BYTES_MAX."""
        self._hand_on()
        try:
            yield
        finally:
            self._hand_on(TOGETHER_BYTES_MAX)

    def hold(self, lsn: int, effect: Callable[..., object], *args: Any) -> None:
        """Let an effect out once the log is durable through `lsn`.

        Effects leave in the order in which they were held, so one may wait for the records of another that was held before it:
        those are on their way to the disk, and a flush covers both.
        """
        if lsn <= self.durable_lsn:
            self._free.append((lsn, effect, args))
        else:
            self._held.append((lsn, effect, args))

    def when_applied(self, lsn: int, then: Callable[[], object]) -> None:
        self._applied.append((lsn, then))

    # Work.

    def wake(self, run: Run) -> None:
        """The run has something to be fed."""
        self._runnable.append(run)
        self.work_soon()

    def work_soon(self) -> None:
        """Let `work` run in the loop's next turn, so that what comes in this one shares it, and its records one append."""
        if not self._working and not self._is_scheduled:
            self._is_scheduled = True
            self.loop.call_soon(self.work)

    def work(self) -> None:
        """Go on until nothing is left to do now, then hand the records and messages on."""
        if self._working or self.is_closed:
            return
        if asyncio.current_task(self.loop) is not None:
            self.work_soon()
            return
        self._working, self._is_scheduled = True, False
        left = ITEMS_A_SLICE
        runnable, free, may_act, residence = self._runnable, self._free, self.home.may_act, self.residence
        try:
            while left:
                left -= 1
                if runnable:
                    run = runnable.popleft()
                    residence.touched[run.number] = run
                    self._pump(run)
                    if len(residence.touched) >= residence.crowd:
                        residence.tend()
                elif free and may_act():  # asked each time: a process may be frozen and thawed between any two effects
                    _, effect, args = free.popleft()
                    effect(*args)
                else:
                    break
                if self._out_bytes >= BYTES_AHEAD:
                    self._hand_on()
        except Exception as e:
            # A fault of ours, after which nothing here can be trusted. The log can: whoever holds the shard next begins from it.
            LOG.critical("shard %s: a fault of the runtime: giving the shard up", self.shard, exc_info=e)
            self.home.give_up(f"a fault of the runtime: {e!r}")
            return
        finally:
            self._working = False
            if not self.is_closed:
                self._hand_on()
                self.mail.flush()
        if not left:
            self.work_soon()
        self._set_alarm()
        if self._tending is None and (self.residence.needs_tending or self.mail.needs_tending):
            self._tending = self.loop.call_later(TEND_MS / 1000, self._tend)

    def _pump(self, run: Run) -> None:
        try:
            run.pump()
        except Exception as e:
            LOG.error('shard %s: run %d ("%s") met a fault of the runtime and is set aside', self.shard, run.number, run.id, exc_info=e)
            said = f"the run met a fault of the runtime: {e!r}. It is tried again when it is next loaded"
            self.quarantine(run, FuseeError(said, run=run.number))

    def _hand_on(self, most: int = APPEND_BYTES) -> None:
        if self._out:
            out, size, self._out, self._out_bytes = self._out, self._out_bytes, [], 0
            for some in [out] if size <= most else _by_size(out):
                self.home.append(b"".join(some), len(some) // 2)

    def _tend(self) -> None:
        self._tending = None
        self.residence.tend()
        self.mail.tend()
        self.work()

    # Timers.

    def _set_alarm(self) -> None:
        due = self.timers.next_due
        page = self.residence.horizon_ms - PAGE_MS // 2
        if page > 0 and not self._paging and (due is None or page < due):
            due = page
        if due is None or self._alarm is not None and self._alarm_ms <= due:
            return
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_ms = due
        # Never far ahead: the loop's clock does not follow when the machine sleeps or its time of day is set.
        self._alarm = self.loop.call_later(min(max(0, due - self.clock()), self.alarm_ms_max) / 1000, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        now = self.clock()
        for timer in self.timers.pop_due(now):
            timer.due()
        if 0 < self.residence.horizon_ms - PAGE_MS // 2 <= now and not self._paging:
            self._paging = True
            self.spawn(self._page())
        self.work()

    async def _page(self) -> None:
        while True:
            try:
                await self.residence.read_timers()
                break
            except FuseeError as e:
                LOG.warning("shard %s: the timers due soon were not read, and will be again: %s", self.shard, e)
                await asyncio.sleep(PAGE_RETRY_S)
        self._paging = False
        self.work_soon()

    # Runs.

    def enter(self, run: Run, awake: bool = True) -> None:
        """A run is in memory from now on; its code begins, or replays, in the next turn, or, not `awake`, when it is woken."""
        self.by_id[run.id] = run
        self.by_number[run.number] = run
        self._know(run.id)
        if run.journal.start.deadline is not None:
            self.timers.add(run.journal.start.deadline, Deadline(self, run.number))
        if awake:
            self.wake(run)

    def _know(self, id: str) -> None:
        hashed = key(id)
        if not self.filter.maybe(hashed):
            self.filter.add(hashed)

    def forget(self, run: Run) -> None:
        """The run left memory."""
        self.by_number.pop(run.number, None)
        if self.by_id.get(run.id) is run:
            del self.by_id[run.id]

    def finish(
        self, run: Run, status: r.FinalStatus, payload: bytes, reason: str, request: str, source: r.Source | None
    ) -> None:
        """Record a run's end, tell its parent and those who wait, and drop its code."""
        run.say_complaints()
        run.close_children()
        parent = None if run.hands_on else run.journal.start.parent
        done = r.Done(run.number, run.tick(), status, payload, reason, request, parent, source=source, history=self.keeping.history)
        if parent is not None:
            done.to, done.no = self.mail.address(parent.id)
        data = self.encode(done)
        run.gate = self.append(data)
        run.outcome = Outcome(status, payload, reason, run.journal.start.type)
        if parent is not None:
            self.mail.post(run.id, done.to, done.no, data, run.gate)
        self.metrics.finished += 1
        self.calls.ended(run)
        run.drop()
        self.residence.leave(run)

    def quarantine(self, run: Run, error: FuseeError) -> None:
        """Set a run aside. What arrives for it is recorded; it is tried again when it is next loaded."""
        if run.quarantined is not None:
            return
        run.drop()
        run.quarantined = error
        self.calls.handlers.set_aside(run, error)
        if run.said_quarantined != error.message:
            position = error.fields.get("position", 0) if isinstance(error, NonDeterminismError) else 0
            run.record(r.Quarantined(run.number, run.tick(), error.code, error.message, position))
            self.say_quarantined(run, error)
        if isinstance(error, UnknownWorkflow):
            self.home.lacks(run.journal.start.type)
        self.residence.leave(run)

    def say_quarantined(self, run: Run, error: FuseeError) -> None:
        if self.is_for_others(run):
            self.crew.for_others.note(f'run {run.number} of "{run.id}" is set aside (quarantined): {error.message}')
        else:
            LOG.warning('run %d of "%s" is set aside (quarantined): %s', run.number, run.id, error.message)

    def is_for_others(self, run: Run) -> bool:
        """Its code is not here, and where it is, the shard will be soon."""
        return isinstance(run.quarantined, UnknownWorkflow) and self.registry.is_elsewhere(run.journal.start.type)

    # Looking up.

    def with_id(self, id: str, then: Callable[[Entry], None]) -> None:
        """Call `then` with the newest run of the ID: in memory, as the store has it, or None. In the order of asking."""
        self._look_up(id, then, False)

    def with_run(self, id: str, then: Callable[[Entry], None]) -> None:
        """The same, but an open run is loaded first."""
        self._look_up(id, then, True)

    def _look_up(self, id: str, then: Callable[[Entry], None], load: bool) -> None:
        queue = self._lookups.get(id)
        if queue is not None:
            queue.append((then, load))
        elif (run := self.by_id.get(id)) is not None:
            then(run)
        elif not self.filter.maybe(key(id)):
            then(None)
        else:
            self._lookups[id] = deque([(then, load)])
            self.spawn(self._find(id))

    async def _find(self, id: str) -> None:
        queue = self._lookups[id]
        entry = await self._stored(id)
        while queue:
            then, load = queue.popleft()
            entry = self.by_id.get(id, entry)
            if load and isinstance(entry, Found) and entry.is_open:
                entry = await self._loaded(entry)
            try:
                then(entry)
            except Exception:
                LOG.exception('what was asked of workflow ID "%s" failed', id)
        del self._lookups[id]
        self.work_soon()

    async def _stored(self, id: str) -> Entry:
        try:
            found = await self.home.read("find", (id,))
        except FuseeError as e:
            return e
        if found is None:
            return None
        row = self.payloads.shown(found)
        return Found(row.run, id, row.type, row.status, row.result or b"", row.reason, row.parent)

    async def _loaded(self, found: Found) -> Entry:
        try:
            return await self.residence.load(found)
        except FuseeError as e:
            return e

    def ask_keeper(self, method: str, args: tuple[Any, ...], then: Callable[[Any, FuseeError | None], None], min_lsn: int = 0) -> None:
        async def ask() -> None:
            try:
                answer = await self.home.read(method, args, min_lsn)
            except FuseeError as e:
                then(None, e)
            else:
                then(answer, None)
            self.work_soon()

        self.spawn(ask())

    def spawn(self, body: Coroutine[Any, Any, Any]) -> None:
        task = self.loop.create_task(body)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _by_size(out: list[bytes]) -> Iterator[list[bytes]]:
    """Lengths and records by turns, in pieces of whole records that no append refuses."""
    start = size = 0
    for at in range(1, len(out), 2):
        if size and size + len(out[at]) > APPEND_BYTES:
            yield out[start:at - 1]
            start, size = at - 1, 0
        size += len(out[at]) + 4
    yield out[start:]
