# A step: the body runs when the log is durable through everything its run has recorded, its outcome is recorded, the code gets a
# decoded copy of what was recorded.
#
# Rule 1: a body starts only through the shard's gate, on the ordinary loop, never inside workflow code.
# Rule 2: once the code has given a step up, or its run has left memory, whatever its body still brings is dropped.
# Rule 3: an attempt that failed and will be repeated is a record of its own, so that attempts are counted across crashes.
from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Protocol

from fusee_mp.core import records as r
from fusee_mp.core.retry import Fatal, RetrySchedule
from fusee_mp.payload.converter import Codec
from fusee_mp.payload.failure import encode_failure, rebuild_failure

if TYPE_CHECKING:
    from fusee_mp.runtime.run import Run

CURRENT: ContextVar[StepCall | None] = ContextVar("fusee_step", default=None)
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
    def pool(self) -> Executor | None: ...


class StepCall:
    """One operation of the kind "step", from the moment the code asks until it has the outcome."""

    __slots__ = (
        "run", "op", "name", "fn", "args", "kwargs", "options", "codec", "future", "attempt", "began_ms", "body", "timer",
        "generation", "retry_at",
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

    @property
    def key(self) -> str:
        """The idempotency key: equal for all attempts of this step, different for every other step of every run."""
        start = self.run.journal.start
        return f"{start.id}/{start.run}/{self.op}"

    @property
    def is_open(self) -> bool:
        return self.run.journal.open.get(self.op) is self

    # The body.

    def begin(self) -> None:
        """Start the next attempt. Called through the gate, from a plain callback of the ordinary loop."""
        shard = self.run.shard
        if not self.is_open or shard.is_draining:
            return
        self.attempt += 1
        self.generation = generation = self.generation + 1
        fn = self.fn
        code = getattr(fn, "__code__", None)
        if code is not None:
            is_async = bool(code.co_flags & _CO_COROUTINE)
        else:
            is_async = inspect.iscoroutinefunction(fn)
        shard.metrics.attempts += 1
        options = self.options
        if options.timeout_ms is not None or options.total_timeout_ms is not None:
            limit_ms = self._limit_ms()
            if not limit_ms:  # the time for all attempts passed while nobody was there to run one
                self._timed_out(generation)
                return
            self.timer = shard.loop.call_later(limit_ms / 1000, self._timed_out, generation)
        if is_async:
            try:
                body = fn(*self.args, **self.kwargs)
            except Exception as e:  # wrong arguments
                self._settle(generation, None, e)
                return
            self.body = shard.eager.start(body, self._enter, lambda value, error: self._settle(generation, value, error))
        else:
            self._begin_in_thread(shard.loop)

    def _enter(self) -> None:
        CURRENT.set(self)

    def _begin_in_thread(self, loop: asyncio.AbstractEventLoop) -> None:
        shard, pool = self.run.shard, self.options.pool
        if pool is None or isinstance(pool, ThreadPoolExecutor):
            context = shard.base_context.copy()
            context.run(self._enter)
            future = loop.run_in_executor(pool or shard.threads, lambda: _outcome(context.run, self.fn, *self.args, **self.kwargs))
        else:  # other processes: what goes there must be picklable
            future = loop.run_in_executor(pool, functools.partial(_outcome, self.fn, *self.args, **self.kwargs))
        self.body = future
        future.add_done_callback(functools.partial(self._thread_ended, self.generation))

    def _thread_ended(self, generation: int, future: asyncio.Future[tuple[Any, BaseException | None]]) -> None:
        if future.cancelled() or generation != self.generation:
            return
        broken = future.exception()
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
        if generation != self.generation or not self.is_open:
            return
        self.timer = None
        if self.body is not None and not self.body.done():
            self.body.cancel()
        which, limit = ("timeout", self.options.timeout_ms)
        if self._left_ms() == 0:
            which, limit = ("total_timeout", self.options.total_timeout_ms)
        self._settle(generation, None, TimeoutError(f'step "{self.name}" took longer than its {which} of {(limit or 0) / 1000:g} s'))
        self.run.shard.work_soon()

    def stop_body(self) -> None:
        """The outcome is no longer wanted: cancel an async body; a thread runs on."""
        self.generation += 1
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        body, self.body = self.body, None
        if body is not None and not body.done():
            body.cancel()

    # Its outcome.

    def _settle(self, generation: int, value: Any, error: BaseException | None) -> None:
        if generation != self.generation or not self.is_open:
            return
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        self.body = None
        self.generation = generation + 1
        if error is None:
            try:
                payload, copy = self.codec.roundtrip(value, f'the result of step "{self.name}"')
            except Exception as e:  # a value that cannot be carried will not fit at the next attempt either
                self._failed(e, final=True)
                return
            run = self.run
            run.record_outcome(r.StepDone(run.number, run.tick(), self.op, self.name, self.attempt, "ok", payload), copy)
        else:
            self._failed(error, final=False)

    def _failed(self, error: BaseException, final: bool) -> None:
        run = self.run
        if isinstance(error, Fatal):
            final = True
            if error.__cause__ is not None:
                error = error.__cause__
        failure = encode_failure(error)
        wait = None if final else self._wait_ms(error)
        now = run.tick()
        if wait is None:
            run.record_outcome(r.StepDone(run.number, now, self.op, self.name, self.attempt, "failed", failure), UNSET)
        else:
            run.record(r.Attempt(run.number, now, self.op, self.name, self.attempt, failure, now + wait))
            run.shard.timers.add(now + wait, self)
            run.shard.work_soon()

    def _wait_ms(self, error: BaseException) -> int | None:
        policy, left = self.options.retry, self._left_ms()
        if policy is None or not policy.allows(error):
            return None
        wait = policy.schedule.delay_ms(self.attempt, self.run.shard.draw())
        return None if wait is None or left is not None and wait >= left else wait

    def due(self) -> None:
        """The wait before the next attempt is over."""
        if self.is_open:
            self.run.shard.hold(self.run.gate, self.begin)

    def deliver(self, record: r.StepDone, copy: Any) -> None:
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

    def _raised(self, record: r.StepDone) -> BaseException:
        """What the code sees of a failed step: the body's own exception, but none that means something to the code's tasks."""
        try:
            error = rebuild_failure(record.payload, step=self.name, attempts=record.attempt)
        except Exception as e:
            return e
        is_plain = isinstance(error, (Exception, SystemExit, KeyboardInterrupt)) and not isinstance(error, (StopIteration, StopAsyncIteration))
        return error if is_plain or error.__cause__ is None else error.__cause__


def _outcome(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> tuple[Any, BaseException | None]:
    # A pool thread must not see SystemExit as its own end, nor a future refuse StopIteration.
    try:
        return fn(*args, **kwargs), None
    except BaseException as e:
        return None, e


async def _awaited(value: Any) -> Any:
    return await value
