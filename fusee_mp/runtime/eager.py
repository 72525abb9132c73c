# Starting a coroutine without a task of its own, until it first suspends.
#
# Most step bodies of a busy shard end without suspending; a task for each would double their cost. Yet asyncio.timeout,
# TaskGroup and anyio need a current task. So a parked real task stands in as `current_task` while the body's first send runs;
# if the body suspends, that task adopts it and goes on with it, in the Context in which it began.
from __future__ import annotations

import asyncio
import types
from asyncio import tasks
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from typing import Any, Final

Body = Coroutine[Any, Any, Any]
Settled = Callable[[Any, BaseException | None], None]
SPARE_MAX: Final = 8


class _Exit:
    """SystemExit or KeyboardInterrupt out of a body: handed on as an outcome, since a task would let it end the process."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


class _Spare:
    """A task that waits to adopt a body."""

    __slots__ = ("task", "_handed")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._handed: asyncio.Future[tuple[Context, Body, Any]] = loop.create_future()
        self.task = asyncio.Task(self._wait(), loop=loop)

    async def _wait(self) -> Any:
        return await _adopt(self._handed)

    def adopt(self, context: Context, body: Body, yielded: Any) -> None:
        if yielded is not None:
            yielded._asyncio_future_blocking = True  # the task clears it again, as if the body had yielded to it
        self._handed.set_result((context, body, yielded))


@types.coroutine
def _adopt(handed: asyncio.Future[tuple[Context, Body, Any]]) -> Generator[Any, Any, Any]:
    error: BaseException | None = None
    try:
        yield from handed
    except BaseException as e:
        if not handed.done() or handed.cancelled():
            raise
        error = e  # cancelled between adoption and wake-up: it is for the body
    return (yield from _go_on(*handed.result(), error))


@types.coroutine
def _go_on(context: Context, body: Body, yielded: Any, error: BaseException | None) -> Generator[Any, Any, Any]:
    while True:
        value: Any = None
        if error is None:
            try:
                value = yield yielded
            except BaseException as e:
                error = e
        try:
            if error is None:
                yielded = context.run(body.send, value)
            else:
                thrown, error = error, None
                yielded = context.run(body.throw, thrown)
        except StopIteration as e:
            return e.value
        except (SystemExit, KeyboardInterrupt) as e:
            return _Exit(e)


async def _cancelled(context: Context, body: Body) -> Any:
    return await _go_on(context, body, None, asyncio.CancelledError())


class EagerStarter:
    """Starts bodies on the ordinary loop. `close` cancels the spare tasks; bodies that run are their owner's to cancel."""

    def __init__(self, loop: asyncio.AbstractEventLoop, base: Context) -> None:
        self._loop = loop
        self._base = base
        self._spares: list[_Spare] = []
        self._refilling = self._is_closed = False
        self._sentinel = _Spare(loop)  # never adopts: only the end of the whole loop cancels it
        self._refill()

    def start(self, body: Body, enter: Callable[[], object], settled: Settled) -> asyncio.Task[Any] | None:
        """Run the body up to its first suspension; `enter` runs first, in the body's own Context.

        Call it from a plain callback of the loop. Returns None when the body has ended, after `settled(value, error)`; else
        its task, and `settled` is called when it ends.
        """
        if not self._spares:
            return self._start_task(body, enter, settled)
        spare = self._spares.pop()
        loop, context = self._loop, self._base.copy()
        tasks._enter_task(loop, spare.task)
        try:
            yielded = context.run(_enter_and_send, enter, body)
        except StopIteration as e:
            value, error = e.value, None
        except BaseException as e:
            value, error = None, e
        else:
            return self._adopted(spare, context, body, yielded, settled)
        finally:
            tasks._leave_task(loop, spare.task)
        if spare.task.cancelling():  # by the body: the spare is spoilt
            self._refill_soon()
        else:
            self._spares.append(spare)
        settled(value, error)
        return None

    def _adopted(self, spare: _Spare, context: Context, body: Body, yielded: Any, settled: Settled) -> asyncio.Task[Any]:
        task = spare.task
        if task.cancelling():  # by the body, before it suspended: it sees that at its first wait, in another task
            task = self._loop.create_task(_cancelled(context, body))
        else:
            spare.adopt(context, body, yielded)
        self._watch(task, settled)
        self._refill_soon()
        return task

    def _refill_soon(self) -> None:
        if not self._refilling:
            self._refilling = True
            self._loop.call_soon(self._refill)

    def _start_task(self, body: Body, enter: Callable[[], object], settled: Settled) -> asyncio.Task[Any]:
        context = self._base.copy()
        context.run(enter)
        task = self._loop.create_task(_guard(body), context=context)
        self._watch(task, settled)
        return task

    def _watch(self, task: asyncio.Task[Any], settled: Settled) -> None:
        def ended(task: asyncio.Task[Any]) -> None:
            if task.cancelled():
                if not self._is_torn_down:
                    settled(None, asyncio.CancelledError())
            else:
                value: Any = None
                error = task.exception()
                if error is None:
                    value = task.result()
                    if isinstance(value, _Exit):
                        value, error = None, value.error
                settled(value, error)

        task.add_done_callback(ended)

    @property
    def _is_torn_down(self) -> bool:
        """The loop is being ended (asyncio.run cancels every task at once): what bodies bring now says nothing about them."""
        return not self._is_closed and self._sentinel.task.cancelling() > 0

    def _refill(self) -> None:
        self._refilling = False
        if self._is_closed:
            return
        fresh = [_Spare(self._loop) for _ in range(SPARE_MAX - len(self._spares))]
        # A spare must have reached its wait before it can adopt: that takes one turn of the loop.
        self._loop.call_soon(self._ready, fresh)

    def _ready(self, fresh: list[_Spare]) -> None:
        self._spares += fresh
        if self._is_closed:
            self.close()

    def close(self) -> None:
        self._is_closed = True
        for spare in (self._sentinel, *self._spares):
            spare.task.cancel()
        self._spares.clear()


def _enter_and_send(enter: Callable[[], object], body: Body) -> Any:
    enter()
    return body.send(None)


async def _guard(body: Body) -> Any:
    try:
        return await body
    except (SystemExit, KeyboardInterrupt) as e:
        return _Exit(e)
