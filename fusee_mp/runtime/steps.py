# A step: the body runs when the log is durable through everything its run has recorded, its outcome is recorded, the code gets a
# decoded copy of what was recorded.
#
# Rule 1: a body starts only through the shard's gate, on the ordinary loop, never inside workflow code.
# Rule 2: once the code has given a step up, or its run has left memory, whatever its body still brings is dropped.
# Rule 3: an attempt that failed and will be repeated is a record of its own, so that attempts are counted across crashes.
# Rule 4: of a failure, what says that another attempt is pointless (Fatal, the policy's `only` and `never`) is the step's outcome; what
#         only used up its attempts or its time may pause the run instead.
from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from fusee_mp.core import records as r
from fusee_mp.core.retry import Fatal, RetrySchedule
from fusee_mp.payload.converter import Codec
from fusee_mp.payload.failure import decode_failure, encode_failure, rebuild_failure, summary
from fusee_mp.runtime.heartbeats import Heartbeats
from fusee_mp.runtime.limits import Permit
from fusee_mp.runtime.pausing import pause_used_up

if TYPE_CHECKING:
    from fusee_mp.runtime.run import Run


class Body(Protocol):
    """What a body can reach of its step."""

    @property
    def key(self) -> str: ...
    @property
    def progress(self) -> bytes | None: ...
    @property
    def bytes_max(self) -> int:
        """Of one payload."""
    def report(self, generation: int, payload: bytes) -> None: ...


# The step, the generation and the number of the attempt that this code runs in.
CURRENT: ContextVar[tuple[Body, int, int] | None] = ContextVar("fusee_step", default=None)
UNSET: Final = object()
_CO_COROUTINE: Final = inspect.CO_COROUTINE


class Policy(Protocol):
    """When a failed attempt is followed by another."""

    @property
    def schedule(self) -> RetrySchedule: ...
    def allows(self, error: BaseException) -> bool: ...


class Options(Protocol):
    """How a step is run."""

    @property
    def retry(self) -> Policy | None: ...
    @property
    def timeout_ms(self) -> int | None: ...
    @property
    def total_timeout_ms(self) -> int | None: ...
    @property
    def heartbeat_timeout_ms(self) -> int | None: ...
    @property
    def pool(self) -> Executor | Literal["process"] | None: ...
    @property
    def is_plain(self) -> bool:
        """None of the times and no pool is set."""
    @property
    def limit(self) -> str | None: ...
    @property
    def priority(self) -> int: ...
    @property
    def fairness(self) -> str: ...
    @property
    def weight(self) -> int: ...


class StepCall:
    """One operation of the kind "step", from the moment the code asks until it has the outcome."""

    __slots__ = (
        "run", "op", "name", "fn", "args", "kwargs", "options", "codec", "future", "attempt", "began_ms", "body", "timer",
        "generation", "retry_at", "used_up", "beats", "permit",
    )

    def __init__(
        self, run: Run, op: str, name: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any],
        options: Options, codec: Codec,
    ) -> None:
        self.run = run
        self.op = op
        self.name = name
        self.fn = fn
        self.args = args
        self.kwargs = kwargs
        self.options = options
        self.codec = codec
        self.future: asyncio.Future[Any] = asyncio.Future(loop=run.loop)
        self.attempt = 0
        self.retry_at = 0
        self.began_ms = run.journal.now
        self.body: asyncio.Future[Any] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.generation = 0  # of the attempt whose end is awaited; an older one's end is dropped
        self.used_up = 0  # attempts that no longer count: the run was paused after them
        self.beats: Heartbeats | None = None
        self.permit: Permit | None = None  # of its limit, from the first ask to the attempt's end

    def restore(self) -> None:
        """Go on where the journal ends."""
        journal, op = self.run.journal, self.op
        last, progress = journal.attempt(op), journal.progress(op)
        if last is not None:
            self.attempt, self.retry_at = last.attempt, last.retry_at
            self.used_up, resumed_at = journal.used_up(op)
            self.began_ms = max(self.began_ms, resumed_at)
        if progress is not None:
            self.beats = Heartbeats(self, progress)

    @property
    def key(self) -> str:
        """The idempotency key: equal for all attempts of this step, different for every other step of every run."""
        start = self.run.journal.start
        return f"{start.id}/{start.run}/{self.op}"

    @property
    def is_open(self) -> bool:
        return self.run.journal.open.get(self.op) is self

    @property
    def is_active(self) -> bool:
        """A body of it runs, or will without anything from outside."""
        return self.body is not None or not self.run.is_paused

    # What its body can reach.

    @property
    def progress(self) -> bytes | None:
        """What the earlier attempts last reported."""
        return None if self.beats is None else self.beats.progress

    @property
    def bytes_max(self) -> int:
        return self.run.shard.payloads.bytes_max

    def report(self, generation: int, payload: bytes) -> None:
        if self.beats is None:
            self.beats = Heartbeats(self)
        self.beats.report(generation, payload)

    # The body.

    def begin(self) -> None:
        """Start the next attempt. Called through the gate, from a plain callback of the ordinary loop."""
        shard = self.run.shard
        if not self.is_open or shard.is_draining:
            return
        if self.run.is_paused:
            self._give_back()
            self.run.held_steps.append(self)
            return
        if self.options.limit is not None and not self._is_permitted(self.options.limit):
            return
        self._stop_timer()
        self.attempt += 1
        self.generation = generation = self.generation + 1
        fn = self.fn
        code = getattr(fn, "__code__", None)
        if code is not None:
            is_async = bool(code.co_flags & _CO_COROUTINE)
        else:
            is_async = inspect.iscoroutinefunction(fn)
        shard.metrics.attempts += 1
        if not self.options.is_plain:
            if not self._arm(generation):
                return
            if self.options.pool == "process":
                self.body = shard.crew.processes.start(self, functools.partial(self._settle, generation))
                return
        if is_async:
            try:
                body = fn(*self.args, **self.kwargs)
            except Exception as e:  # wrong arguments
                self._settle(generation, None, e)
                return
            self.body = shard.eager.start(body, self._enter, lambda value, error: self._settle(generation, value, error))
        else:
            self._begin_in_thread(shard.loop)

    def _is_permitted(self, limit: str) -> bool:
        """Has it a permit? If not it is asked for, and `begin` is called again."""
        if self.permit is None:
            self.permit = Permit(self, limit)
            if not self.permit.is_held and (left_ms := self._left_ms()) is not None:
                self.timer = self.run.shard.loop.call_later(left_ms / 1000, self._waited_out, self.generation)
        return self.permit.is_held

    def _waited_out(self, generation: int) -> None:
        """The time for all attempts is over, and no permit came for the next one: it counts as an attempt that failed."""
        if generation != self.generation or not self.is_open or self.run.shard.is_draining:
            return
        if self.run.is_paused:
            self._give_back()
            self.run.held_steps.append(self)
            return
        self.attempt += 1
        total = f"its total_timeout of {(self.options.total_timeout_ms or 0) / 1000:g} s"
        self.expire(generation, TimeoutError(f'step "{self.name}" got no permit of the limit "{self.options.limit}" within {total}'))

    def refuse(self, error: Exception) -> None:
        """It cannot begin at all: that is its outcome."""
        self._give_back()
        self._fails(encode_failure(error))

    def _give_back(self) -> None:
        permit, self.permit = self.permit, None
        if permit is not None:
            permit.give_back()

    def _arm(self, generation: int) -> bool:
        """Watch over the attempt's limits. False when there is no time left for it."""
        options, loop = self.options, self.run.shard.loop
        if options.timeout_ms is not None or options.total_timeout_ms is not None:
            limit_ms = self._limit_ms()
            if not limit_ms:  # the time for all attempts passed while nobody was there to run one
                self._timed_out(generation)
                return False
            self.timer = loop.call_later(limit_ms / 1000, self._timed_out, generation)
        if options.heartbeat_timeout_ms is not None:
            if self.beats is None:
                self.beats = Heartbeats(self)
            self.beats.watch(generation, options.heartbeat_timeout_ms)
        return True

    def _enter(self) -> None:
        CURRENT.set((self, self.generation, self.attempt))

    def _begin_in_thread(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            future = self._submit(loop)
        except Exception as e:  # a pool of the user's that is shut down or broken
            self._settle(self.generation, None, e)
            return
        self.body = future
        future.add_done_callback(functools.partial(self._thread_ended, self.generation))

    def _submit(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[tuple[Any, BaseException | None]]:
        shard, pool = self.run.shard, self.options.pool
        if pool is None or isinstance(pool, ThreadPoolExecutor):
            context = shard.base_context.copy()
            context.run(self._enter)
            return loop.run_in_executor(pool or shard.threads, lambda: _outcome(context.run, self.fn, *self.args, **self.kwargs))
        assert isinstance(pool, Executor)  # of other processes: what goes there must be picklable
        return loop.run_in_executor(pool, functools.partial(_outcome, self.fn, *self.args, **self.kwargs))

    def _thread_ended(self, generation: int, future: asyncio.Future[tuple[Any, BaseException | None]]) -> None:
        if generation != self.generation:
            return
        broken = asyncio.CancelledError("its pool was shut down") if future.cancelled() else future.exception()
        value, error = (None, broken) if broken is not None else future.result()
        if error is None and inspect.isawaitable(value):
            settled = functools.partial(self._settle, generation)
            self.body = self.run.shard.eager.start(_awaited(value), self._enter, settled)
        else:
            self._settle(generation, value, error)

    def _left_ms(self) -> int | None:
        """What is left of the time for all attempts."""
        total = self.options.total_timeout_ms
        return None if total is None else max(0, self.began_ms + total - self.run.shard.clock())

    def _limit_ms(self) -> int | None:
        one, left = self.options.timeout_ms, self._left_ms()
        return one if left is None else left if one is None else min(one, left)

    def _timed_out(self, generation: int) -> None:
        which, limit = ("timeout", self.options.timeout_ms)
        if self._left_ms() == 0:
            which, limit = ("total_timeout", self.options.total_timeout_ms)
        self.expire(generation, TimeoutError(f'step "{self.name}" took longer than its {which} of {(limit or 0) / 1000:g} s'))

    def expire(self, generation: int, error: TimeoutError) -> None:
        """The attempt has failed by taking too long: what its body still brings is dropped."""
        if generation != self.generation or not self.is_open:
            return
        if self.body is not None and not self.body.done():
            self.body.cancel()
        self._settle(generation, None, error)
        self.run.shard.work_soon()

    def _stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def stop_body(self) -> None:
        """The outcome is no longer wanted: cancel an async body, kill a process; a thread runs on."""
        self.generation += 1
        if self.permit is not None:
            self._give_back()
        self._stop_timer()
        if self.beats is not None:
            self.beats.end(is_failed=False)
        body, self.body = self.body, None
        if body is not None and not body.done():
            body.cancel()

    # Its outcome.

    def _settle(self, generation: int, value: Any, error: BaseException | None) -> None:
        if generation != self.generation or not self.is_open:
            return
        self._stop_timer()
        self.body = None
        if self.permit is not None:
            self._give_back()
        if self.beats is not None:
            self.beats.end(is_failed=error is not None)
        self.generation = generation + 1
        if error is None:
            self._succeeded(value)
        else:
            self._failed(error)

    def _succeeded(self, value: Any) -> None:
        try:
            payload, copy = self.codec.roundtrip(value, f'the result of step "{self.name}"', self.run.shard.payloads.bytes_max)
        except Exception as e:  # a value that cannot be carried will not fit at the next attempt either
            self._is_used_up(encode_failure(e))
            return
        run = self.run
        run.record_outcome(r.StepDone(run.number, run.tick(), self.op, self.name, self.attempt, "ok", payload), copy)

    def _failed(self, error: BaseException) -> None:
        policy = self.options.retry
        if isinstance(error, Fatal):
            self._fails(encode_failure(error if error.__cause__ is None else error.__cause__))
        elif not isinstance(error, Exception) or policy is not None and not policy.allows(error):
            self._fails(encode_failure(error))
        elif policy is None or (wait := self._wait_ms(policy)) is None:
            self._is_used_up(encode_failure(error))
        else:
            self._is_repeated(encode_failure(error), wait)

    def _is_repeated(self, failure: bytes, wait_ms: int) -> None:
        run = self.run
        self._repeats()
        now = run.tick()
        run.record(r.Attempt(run.number, now, self.op, self.name, self.attempt, failure, now + wait_ms))
        run.shard.timers.add(now + wait_ms, self)
        run.shard.work_soon()

    def _is_used_up(self, failure: bytes) -> None:
        registered = self.run.registered
        if registered is not None and registered.on_exhausted == "pause":
            self._repeats()
            pause_used_up(self, failure, summary(decode_failure(failure)))
        else:
            self._fails(failure)

    def _repeats(self) -> None:
        """There will be another attempt."""

    def _fails(self, failure: bytes) -> None:
        """This is the outcome."""
        run = self.run
        run.record_outcome(r.StepDone(run.number, run.tick(), self.op, self.name, self.attempt, "failed", failure), UNSET)

    def _wait_ms(self, policy: Policy) -> int | None:
        left = self._left_ms()
        wait = policy.schedule.delay_ms(self.attempt - self.used_up, self.run.shard.draw())
        return None if wait is None or left is not None and wait >= left else wait

    def due(self) -> None:
        """The wait before the next attempt is over."""
        if self.is_open:
            self.run.shard.hold(self.run.gate, self.begin)

    def deliver(self, record: r.StepDone | r.Completed, copy: Any) -> None:
        """Hand the recorded outcome to the code."""
        future = self.future
        if future.done():
            return
        if record.status != "ok":
            future.set_exception(self._raised(record))
        elif copy is not UNSET:
            future.set_result(copy)
        else:
            try:
                future.set_result(self.codec.decode(record.payload))
            except Exception as e:
                future.set_exception(e)

    def _raised(self, record: r.StepDone | r.Completed) -> BaseException:
        """What the code sees of a failed step: the body's own exception, but none that means something to the code's tasks."""
        try:
            error = rebuild_failure(record.payload, step=self.name, attempts=record.attempt)
        except Exception as e:
            return e
        is_odd = not isinstance(error, (Exception, SystemExit, KeyboardInterrupt)) or isinstance(error, (StopIteration, StopAsyncIteration))
        return error.__cause__ if is_odd and error.__cause__ is not None else error


def _outcome(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> tuple[Any, BaseException | None]:
    # A pool thread must not see SystemExit as its own end, nor a future refuse StopIteration.
    try:
        return fn(*args, **kwargs), None
    except BaseException as e:
        return None, e


async def _awaited(value: Any) -> Any:
    return await value
