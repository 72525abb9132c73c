# What workflow code holds: the typed face of a run's operations.
#
# Each operation begins when it is first awaited or made a task, and takes its place in the order of its task then. After the run
# has left memory every one raises and has no effect.
from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextvars import copy_context
from datetime import UTC, datetime
from logging import Logger, LoggerAdapter, getLogger
from random import Random
from typing import Any, Final, NoReturn, TypeVar
from uuid import UUID

from fusee_mp.core import records as r
from fusee_mp.core.placement import check_id
from fusee_mp.duration import Duration, to_ms, to_ms_or_none
from fusee_mp.errors import PayloadError, Rejected
from fusee_mp.names import checked_name
from fusee_mp.payload.converter import Codec, codec_of
from fusee_mp.payload.signature import result_codec
from fusee_mp.runtime.children import ChildCall, ask_child, ask_close, ask_send
from fusee_mp.runtime.completions import abandon_completion, ask_completion
from fusee_mp.runtime.continuing import ask_to_continue
from fusee_mp.runtime.loop import Sealed, TimerHandle
from fusee_mp.runtime.pickles import check_by_name
from fusee_mp.runtime.run import Run
from fusee_mp.sdk.ctx import ChildHandle, Ctx
from fusee_mp.sdk.definitions import Step
from fusee_mp.sdk.handling import register_query, register_update
from fusee_mp.sdk.options import StepOptions
from fusee_mp.sdk.retry import Retry
from fusee_mp.sdk.schedules import local
from fusee_mp.sdk.target import encoded_attributes, named, reason_text, target
from fusee_mp.sdk.types import Close

T = TypeVar("T")
_PLAIN: Final = StepOptions()
_LOG: Final = getLogger("fusee_mp.workflow")


class RunLog(LoggerAdapter[Logger]):
    """The log of a run's code: each line once, so silent while replaying and in clean-up code of a run that leaves memory."""

    def __init__(self, run: Run) -> None:
        super().__init__(_LOG, {"workflow_id": run.id, "run_number": run.number, "workflow": run.journal.start.type})
        self._run = run

    def isEnabledFor(self, level: int) -> bool:
        run = self._run
        return not run.sealed and not run.journal.replaying and super().isEnabledFor(level)


class Child(ChildHandle[Any]):
    """A started child."""

    def __init__(self, call: ChildCall) -> None:
        self.id = call.id
        self._call = call

    async def result(self) -> Any:
        return await self._call.result()


class RunCtx(Ctx):
    """The context of one run. `forget` cuts it off."""

    def __init__(self, run: Run) -> None:
        self._run_or_none: Run | None = run
        start = run.journal.start
        self.workflow_id = start.id
        self.run_number = start.run
        self.scheduled_at = None if start.scheduled_at is None else local(start.scheduled_at, start.zone or "UTC")
        self._seed = start.seed
        self._random: Random | None = None
        self._log: RunLog | None = None

    @property
    def _run(self) -> Run:
        run = self._run_or_none
        if run is None or run.sealed:
            raise Sealed
        return run

    def forget(self) -> None:
        self._run_or_none = None

    @property
    def journal_size(self) -> int:  # type: ignore[override]
        return self._run.journal.size

    @property
    def is_replaying(self) -> bool:  # type: ignore[override]
        return self._run.journal.replaying

    @property
    def log(self) -> LoggerAdapter[Logger]:  # type: ignore[override]
        if self._log is None:
            self._log = RunLog(self._run)
        return self._log

    # Steps.

    async def step(self, name: str, fn: Callable[..., Any], *args: Any, **options: Any) -> Any:  # type: ignore[override]
        if type(name) is not str or not name.isascii() or not 0 < len(name) < 256 or "\0" in name:
            checked_name("step", name)
        if isinstance(fn, Step):
            base, codec, body = fn.options, fn.result_codec, fn.fn
        else:
            base, codec, body = _PLAIN, result_codec(fn), fn
        return await self._step(name, body, args, {}, base.changed(**options) if options else base, codec)

    def call_step(self, step: Step[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Awaitable[Any]:
        return self._step(step.name, step.fn, args, kwargs, step.options, step.result_codec)

    async def _step(
        self, name: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], options: StepOptions, codec: Codec
    ) -> Any:
        run = self._run
        if not options.is_plain and options.pool == "process":
            check_by_name(name, fn)
        call = run.ask_step(name, fn, args, kwargs, options, codec)
        try:
            return await call.future
        except asyncio.CancelledError:
            run.abandon_step(call)
            raise

    async def completion(
        self, name: str, send: Callable[[str], Any], *, returns: Any = Any, timeout: Duration | None = None, retry: Retry | None = None
    ) -> Any:
        run = self._run
        base, body = (send.options, send.fn) if isinstance(send, Step) else (_PLAIN, send)
        options, limit_ms = base if retry is None else base.changed(retry=retry), to_ms_or_none(timeout, "completion timeout")
        call = ask_completion(run, checked_name("completion", name), body, options, codec_of(returns))
        late = TimeoutError(f'completion "{name}" was not completed within its timeout of {(limit_ms or 0) / 1000:g} s')
        timer = None if limit_ms is None else self._timer(limit_ms, f"completion {name}", _fail, call.future, late)
        try:
            return await call.future
        finally:
            abandon_completion(run, call)
            if timer is not None:
                timer.cancel()

    # Time.

    async def sleep(self, duration: Duration, name: str | None = None) -> None:
        ms = to_ms(duration, "sleep")
        if name is not None:
            checked_name("sleep", name)
        if ms == 0:
            self._run.check_open()
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.Future(loop=self._run.loop)
        timer = self._timer(ms, name or "", _settle, future, None)
        try:
            await future
        finally:
            timer.cancel()

    def _timer(self, ms: int, name: str, callback: Callable[..., object], *args: Any) -> TimerHandle:
        run = self._run
        timer = TimerHandle(run, run.journal.now + ms, callback, args, copy_context())
        run.ask_timer(timer, name)
        return timer

    def now(self) -> datetime:
        return _instant(self._run.journal.now)

    def random(self) -> Random:
        self._run.check_open()
        if self._random is None:
            self._random = Random(self._seed)
        return self._random

    def uuid4(self) -> UUID:
        return UUID(int=self.random().getrandbits(128), version=4)

    # Signals.

    async def wait_for(self, signal: Any, timeout: Duration | None = None, default: Any = None) -> Any:
        run = self._run
        name, codec = named(signal)
        limit_ms = to_ms_or_none(timeout, "wait_for timeout")
        while (payload := run.signals.take(name)) is not None:
            try:
                return codec.decode(payload)
            except PayloadError as e:
                self._passed_over(name, e)
        return default if limit_ms == 0 else await self._next_signal(run, name, codec, limit_ms, default)

    async def _next_signal(self, run: Run, name: str, codec: Codec, limit_ms: int | None, default: Any) -> Any:
        """`default` on timeout. A wait that is cancelled leaves the signal."""
        waiting: list[asyncio.Future[bytes | None]] = []
        timer = None if limit_ms is None else self._timer(limit_ms, f"wait_for {name}", lambda: _settle(waiting[0], None))
        try:
            while True:
                waiting[:] = [asyncio.Future(loop=run.loop)]
                payload = await self._one_signal(run, name, codec, waiting[0])
                try:
                    return default if payload is None else codec.decode(payload)
                except PayloadError as e:
                    self._passed_over(name, e)
        finally:
            if timer is not None:
                timer.cancel()

    async def _one_signal(self, run: Run, name: str, codec: Codec, waiter: asyncio.Future[bytes | None]) -> bytes | None:
        signals = run.signals
        signals.wait(name, waiter, codec.decode)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and (taken := waiter.result()) is not None:
                signals.given_back(name, taken)
            raise
        finally:
            signals.give_up(name, waiter)

    def _passed_over(self, name: str, error: PayloadError) -> None:
        # What somebody sent must not end a run that did nothing wrong. It stays in the journal for whoever looks.
        self.log.warning('signal "%s" does not have the type that the workflow waits for and is passed over: %s', name, error)

    async def signal(self, id: str, signal: Any, value: Any = None) -> None:
        name, codec = named(signal)
        data = codec.encode(value, f'the value of signal "{name}"', self._run.shard.payloads.bytes_max)
        ask_send(self._run, "signal", check_id(id), name, data)

    async def cancel(self, id: str, reason: str = "") -> None:
        ask_send(self._run, "cancel", check_id(id), "", reason_text(reason).encode())

    async def wait_until(self, condition: Callable[[], bool], timeout: Duration | None = None) -> bool:
        run = self._run
        limit_ms = to_ms_or_none(timeout, "wait_until timeout")
        if condition():
            return True
        future: asyncio.Future[bool] = asyncio.Future(loop=run.loop)
        entry = (condition, future)
        run.conditions.append(entry)
        timer = None if limit_ms is None else self._timer(limit_ms, "wait_until", _settle, future, False)
        try:
            return await future
        finally:
            if entry in run.conditions:
                run.conditions.remove(entry)
            if timer is not None:
                timer.cancel()

    # Children.

    async def start_child(
        self, workflow: Any, id: str, input: Any = None, *, close: Close = "terminate", timeout: Duration | None = None
    ) -> ChildHandle[Any]:
        return Child(self._start_child(workflow, id, input, close, timeout))

    def _start_child(self, workflow: Any, id: str, input: Any, close: Close, timeout: Duration | None) -> ChildCall:
        if close not in ("terminate", "cancel", "abandon"):
            raise Rejected(f'close= is "terminate", "cancel" or "abandon", not {close!r}')
        name, data, codec = target(workflow, input, self._run.shard.payloads.bytes_max)
        return ask_child(self._run, name, check_id(id), data, codec, close, to_ms_or_none(timeout, "child timeout"))

    async def child(
        self, workflow: Any, id: str, input: Any = None, *, close: Close = "terminate", timeout: Duration | None = None
    ) -> Any:
        call = self._start_child(workflow, id, input, close, timeout)
        try:
            return await call.result()
        except asyncio.CancelledError:
            if call.is_open and close != "abandon":
                ask_close(self._run, call)
            raise

    async def all(self, awaitables: Iterable[Awaitable[T]], limit: int | None = None) -> list[T]:
        if limit is not None and limit < 1:
            raise Rejected(f"ctx.all(limit=) is at least 1, not {limit}")
        gate = asyncio.Semaphore(limit) if limit is not None else None
        given = list(awaitables)
        tasks: list[asyncio.Future[T]] = []
        try:
            tasks += (asyncio.ensure_future(_behind(gate, awaitable)) for awaitable in given)
            if tasks:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in tasks:
                if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                    raise error
            return [task.result() for task in tasks]
        finally:
            await _cancelled([task for task in tasks if not task.done()])
            for awaitable in given:
                if asyncio.iscoroutine(awaitable):
                    awaitable.close()  # one that had not begun, and now never will

    # What it can be asked.

    def on_query(self, query: Any, fn: Callable[..., Any]) -> None:
        register_query(self._run, query, fn)

    def on_update(self, update: Any, handler: Callable[..., Any], validator: Callable[..., Any] | None = None) -> None:
        register_update(self._run, update, handler, validator)

    # Facts about the run.

    def set_attributes(self, mapping: Mapping[str, Any] | None = None, **attributes: Any) -> None:
        run = self._run
        given = attributes if mapping is None else mapping
        merged = {**given, **attributes} if isinstance(given, Mapping) else given
        data = encoded_attributes(merged, run.shard.payloads.bytes_max)
        op = run.loop.next_op()
        if run.ask(op, "attributes", "") is None:
            run.record(r.Attributes(run.number, run.tick(), op, data))
            run.attributes.append(data)

    def patched(self, name: str) -> bool:
        return self._run.patched(checked_name("patch", name))

    async def continue_as_new(self, workflow: Any, input: Any = None) -> NoReturn:
        name, data, _ = target(workflow, input, self._run.shard.payloads.bytes_max)
        ask_to_continue(self._run, name, data)


async def _behind(gate: asyncio.Semaphore | None, awaitable: Awaitable[T]) -> T:
    if gate is None:
        return await awaitable
    async with gate:
        return await awaitable


async def _cancelled(tasks: list[asyncio.Future[Any]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


def _settle(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():
        future.set_result(value)


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


def _instant(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)
