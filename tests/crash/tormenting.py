"""Workers behind proxies, and faults that befall them at random moments."""
from __future__ import annotations

import asyncio
import contextlib
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

from tests.server.flows import boot_time
from tests.server.loopback import Proxy
from tests.server.workers import WorkerProcess


class Harried:
    """A worker behind a proxy, and all that may happen to it."""

    def __init__(self, name: str, proxy: Proxy, path: Path, program: str) -> None:
        self._name, self._proxy, self._path, self._program = name, proxy, path, program
        self.killed_at: dict[int, float] = {}
        self.surprised: list[tuple[int, float]] = []  # which process was cut off or thawed, and when
        self.process = self._start()

    def _start(self) -> WorkerProcess:
        return WorkerProcess(self._proxy.address, self._name, self._path, max_shards=2, program=self._program)

    def close(self) -> None:
        self.process.close()

    def look_after(self) -> None:
        if self.process.process.poll() is not None:
            self.process.close()
            self.process = self._start()

    async def kill(self, for_s: float) -> None:
        self.process.signal(signal.SIGKILL)
        self.killed_at[self.process.pid] = boot_time()

    async def freeze(self, for_s: float) -> None:
        """SIGSTOP, and SIGCONT after a while that its lease may or may not outlast."""
        process = self.process
        process.signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(for_s)
        finally:
            self.surprised.append((process.pid, boot_time()))
            process.signal(signal.SIGCONT)

    async def cut(self, for_s: float) -> None:
        """Every connection of it is reset."""
        self.surprised.append((self.process.pid, boot_time()))
        self._proxy.cut()

    async def silence(self, for_s: float) -> None:
        """Nothing goes through for a while, and then what was held back goes through."""
        self._proxy.freeze()
        try:
            await asyncio.sleep(for_s)
        finally:
            self._proxy.thaw()


class Tormentor:
    """One fault after the other, `every_s` seconds on average, each on a worker drawn by lot that has none at the moment. Those that last
    do for at most `most_s` seconds."""

    def __init__(self, workers: list[Harried], draw: random.Random, *, every_s: float, most_s: float) -> None:
        self._workers, self._draw = workers, draw
        self._every_s, self._most_s = every_s, most_s
        self._under_way: dict[int, asyncio.Task[None]] = {}
        self.done: Counter[str] = Counter()

    async def torment(self) -> None:
        """Until cancelled; then whatever is frozen goes on."""
        try:
            while True:
                await asyncio.sleep(self._draw.expovariate(1 / self._every_s))  # the moment is the point
                self._strike(self._draw.randrange(len(self._workers)))
        finally:
            for fault in self._under_way.values():
                fault.cancel()
            await asyncio.gather(*self._under_way.values(), return_exceptions=True)

    def _strike(self, number: int) -> None:
        worker, for_s = self._workers[number], self._draw.uniform(0.05, 1) * self._most_s
        fault = self._draw.choice([worker.kill, worker.freeze, worker.cut, worker.silence])
        if number not in self._under_way or self._under_way[number].done():
            self.done[fault.__name__] += 1
            self._under_way[number] = asyncio.create_task(fault(for_s))


@contextlib.asynccontextmanager
async def harried(count: int, address: str, path: Path, program: str) -> AsyncIterator[list[Harried]]:
    """So many workers of a program, each with two shards at most. They write what they do to `path`. What has ended is started again."""
    async with contextlib.AsyncExitStack() as stack:
        workers = []
        for number in range(count):
            proxy = await stack.enter_async_context(Proxy(address))
            workers.append(Harried(f"w{number}", proxy, path, program))
            stack.callback(workers[-1].close)
        await stack.enter_async_context(background(look_after(workers)))
        yield workers


async def look_after(workers: list[Harried]) -> None:
    while True:
        for worker in workers:
            worker.look_after()
        await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def background(body: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Runs meanwhile; a fault of it is one of the test."""
    task = asyncio.create_task(body)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
