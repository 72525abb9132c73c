"""The owner's side of a keeper, on asyncio.

1. `publish` costs a comparison: only the newest position counts, and it goes out at most every 50 ms, unless a question waits for it.
2. Whatever happens to the process, every question is answered: with its result, its error, or Unavailable.
"""
from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Final, Protocol, cast

import msgspec

import fusee_mp
from fusee_mp.errors import BY_CODE, FuseeError, Unavailable
from fusee_mp.keeper import protocol as p
from fusee_mp.store.reads import question

PUBLISH_S: Final = 0.05
# How long after its own deadline an answer may come before the keeper is taken for stuck.
GRACE_S: Final = 5.0
EXIT_S: Final = 10.0


class HasLsn(Protocol):
    """A position of the log; only how far it reaches matters here."""

    @property
    def lsn(self) -> int: ...


def ignore(_: Any) -> None:
    """What is called when nobody wants to know."""


class Keeper(asyncio.Protocol):
    """A running keeper. Made by `start`; whoever starts it must close it.

    `applied_lsn` is how far the store is, `checkpoint_lsn` how far it is safe from a crash of the machine: only log segments below
    that may go. `trouble` says what keeps it from folding, empty when nothing does; `on_trouble` is called when it changes.
    `on_exit` is called once, with the reason, when the process ends without having been closed.
    """

    def __init__(self, process: subprocess.Popen[bytes], directory: Path) -> None:
        self.applied_lsn = self.checkpoint_lsn = self.epoch = self.published_lsn = 0
        self.trouble = self.trouble_kind = ""
        self.on_applied: Callable[[int], None] = ignore
        self.on_checkpoint: Callable[[int], None] = ignore
        self.on_exit: Callable[[str], None] = ignore
        self.on_trouble: Callable[[str], None] = ignore
        self.directory = directory
        self._process = process
        self._loop = asyncio.get_running_loop()
        self._hello: asyncio.Future[None] = self._loop.create_future()
        self._gone: asyncio.Future[None] = self._loop.create_future()
        self._frames = p.Frames(p.ANSWER_BYTES_MAX)
        self._asked: dict[int, tuple[asyncio.Future[bytes], int]] = {}
        self._ids = count(1)
        self._sent_lsn = 0
        self._wanted_lsn = 0
        self._timer: asyncio.TimerHandle | None = None
        self._is_closing = False
        self._transport: asyncio.Transport | None = None
        self._exit: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, shard_directory: Path, *, pass_fds: Sequence[int] = (), checkpoint_interval_ms: int = 30_000) -> Keeper:
        """Start the keeper of the shard in this directory; it has the store when this returns, so it may wait for a predecessor's end.

        `pass_fds` stay open in it, such as the shard's lock. On Linux the keeper dies with the calling thread, not only with the
        process, so call this from one that lives as long. Raises StorageError when the store cannot be opened.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                process = _spawn(shard_directory, theirs.fileno(), pass_fds, checkpoint_interval_ms)
            except BaseException:
                ours.close()
                raise
        keeper = cls(process, shard_directory)
        try:
            await keeper._loop.create_unix_connection(lambda: keeper, sock=ours)
            await keeper._hello
        except BaseException:
            await keeper._end()
            raise
        return keeper

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """The process has closed its end; it may take a moment until `on_exit` says so."""
        return self._gone.done()

    @property
    def lag(self) -> int:
        """Records that are durable and not applied."""
        return max(0, self.published_lsn - self.applied_lsn)

    def publish(self, position: HasLsn) -> None:
        """The log is durable up to here. Never blocks."""
        if position.lsn <= self.published_lsn:
            return
        self.published_lsn = position.lsn
        if self._wanted_lsn > self._sent_lsn:
            self._send_position()
        elif self._timer is None and not self._is_closing:
            self._timer = self._loop.call_later(PUBLISH_S, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._send_position()

    def _send_position(self) -> None:
        if self.published_lsn > self._sent_lsn:
            self._sent_lsn = self.published_lsn
            self._send(p.Publish(self._sent_lsn))

    async def read(self, method: str, args: Sequence[Any] = (), *, min_lsn: int = 0, timeout: float = 10.0) -> Any:
        """The answer to a read of store/reads.py from a state that holds `min_lsn`.

        Raises the FuseeError that the store answers; Unavailable when that takes longer than `timeout` seconds or the keeper ends.
        """
        result = question(method).result
        value = await self.read_bytes(method, msgspec.msgpack.encode(args), min_lsn=min_lsn, timeout=timeout)
        return msgspec.msgpack.decode(value, type=result)

    async def read_bytes(self, method: str, args: bytes, *, min_lsn: int = 0, timeout: float = 10.0, asker: int = 0) -> bytes:
        """`read` for who only passes it on: arguments and answer stay MessagePack. Long questions of one asker wait for those of others."""
        if self._is_closing:
            raise self._unavailable()
        if min_lsn > self._sent_lsn:
            self._wanted_lsn = max(self._wanted_lsn, min_lsn)
            self._send_position()
        id = next(self._ids)
        return await self._ask(id, p.Ask(id, method, args, min_lsn, round(timeout * 1000), asker), method, min_lsn, timeout)

    async def checkpoint(self, timeout: float = 60.0) -> int:
        """Make everything published so far applied and safe from a crash of the machine; the LSN that is so now.

        Raises Unavailable when that does not come about within `timeout` seconds, or cannot.
        """
        self._send_position()
        id = next(self._ids)
        value = await self._ask(id, p.Checkpoint(id, round(timeout * 1000)), "checkpoint", self._sent_lsn, timeout)
        return int(msgspec.msgpack.decode(value, type=int))

    async def _ask(self, id: int, message: p.ToKeeper, method: str, min_lsn: int, timeout: float) -> bytes:
        if self._gone.done():
            raise self._unavailable()
        answer: asyncio.Future[bytes] = self._loop.create_future()
        self._asked[id] = answer, min_lsn
        self._send(message)
        try:
            async with asyncio.timeout(timeout + GRACE_S):
                return await answer
        except TimeoutError:
            raise Unavailable(f'read "{method}" got no answer from keeper {self.pid} within {timeout + GRACE_S:g} s') from None
        finally:
            del self._asked[id]
            self._wanted_lsn = max((wanted for _, wanted in self._asked.values()), default=0)

    async def close(self, *, checkpoint: bool) -> None:
        """Publish, checkpoint if asked to (as far as that succeeds), end the process and reap it. Idempotent."""
        if self._is_closing:
            await asyncio.shield(self._gone)
            return
        self._is_closing = True
        try:
            if checkpoint and not self._gone.done():
                await self.checkpoint()
        except Unavailable:
            pass
        finally:
            self._send(p.Close())
            await self._end()

    async def _end(self) -> None:
        """Close our end, wait until the process is gone, and kill it if it does not go."""
        self._is_closing = True
        if self._timer is not None:
            self._timer.cancel()
        try:
            if self._transport is not None and self._hello.done() and not self._hello.cancelled() and self._hello.exception() is None:
                async with asyncio.timeout(EXIT_S):
                    await asyncio.shield(self._gone)
        except TimeoutError:
            pass
        finally:
            if self._transport is not None:
                self._transport.abort()
            await self._reap()

    async def _reap(self) -> None:
        deadline = self._loop.time() + EXIT_S
        if self._transport is None or not self._gone.done():
            self._process.kill()
        while self._process.poll() is None:
            if self._loop.time() > deadline:
                self._process.kill()
            await asyncio.sleep(0.005)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's does not inherit from it

    def data_received(self, data: bytes) -> None:
        for body in self._frames.feed(data):
            self._take(p.decode_for_owner(body))

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone.set_result(None)
        answers: list[asyncio.Future[Any]] = [self._hello, *(answer for answer, _ in self._asked.values())]
        for answer in answers:
            if not answer.done():
                answer.set_exception(self._unavailable())
        if not self._is_closing:
            self._is_closing = True
            self._exit = self._loop.create_task(self._report_exit())

    async def _report_exit(self) -> None:
        await self._reap()
        self.on_exit(f"keeper {self.pid} of {self.directory} ended by itself with status {self._process.returncode}")

    def _unavailable(self) -> Unavailable:
        return Unavailable(f"keeper {self.pid} of {self.directory} is gone: ask again once it was started anew")

    def _send(self, message: p.ToKeeper) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(p.pack(message))

    def _take(self, message: p.ToOwner) -> None:
        match message:
            case p.Answer(id, value):
                self._resolve(id, value)
            case p.Failure(id, code, text, fields):
                self._resolve(id, BY_CODE.get(code, FuseeError)(text, **fields))
            case p.Applied(lsn):
                self.applied_lsn = lsn
                self.on_applied(lsn)
            case p.Checkpointed(lsn):
                self.checkpoint_lsn = lsn
                self.on_checkpoint(lsn)
            case p.Trouble(kind, text):
                self.trouble_kind, self.trouble = kind, text
                self.on_trouble(text)
            case p.Hello(applied, checkpoint, epoch):
                self.applied_lsn, self.checkpoint_lsn, self.epoch = applied, checkpoint, epoch
                self.published_lsn = self._sent_lsn = applied
                self._hello.set_result(None)

    def _resolve(self, id: int, value: bytes | FuseeError) -> None:
        answer = self._hello if id == 0 else self._asked.get(id, (None,))[0]
        if answer is None or answer.done():
            return
        if isinstance(value, FuseeError):
            answer.set_exception(value)
        else:
            answer.set_result(value)  # type: ignore[arg-type]


def _spawn(directory: Path, fd: int, pass_fds: Sequence[int], checkpoint_ms: int) -> subprocess.Popen[bytes]:
    package_home = os.path.dirname(os.path.dirname(os.path.abspath(fusee_mp.__file__)))
    path = os.pathsep.join(filter(None, (package_home, os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", "fusee_mp.keeper", str(fd), str(os.getpid()), str(directory), str(checkpoint_ms)]
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, close_fds=True, pass_fds=(fd, *pass_fds), env={**os.environ, "PYTHONPATH": path},
    )
