# Processes of ours that run step bodies: for work that keeps a processor busy, or code that must be stoppable.
#
#   this process                                   one of ours (process_body.py)
#     CALL  (function, arguments, key, attempt)  ->
#                                                <- BEAT  a heartbeat          any number of them
#                                                <- VALUE | FAILED             once; then it waits for the next call
#
# Rule 1: one body at a time in each, so stopping a body (its time is up, the code gave it up, the run left) is SIGKILL for that process
#         and concerns no other. The next body finds or makes another.
# Rule 2: a process whose parent is gone ends: its socket is at its end, and on Linux the kernel kills it.
# Rule 3: a process that dies fails the attempt that it ran, which is repeated or not as after any failure.
from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from fusee_mp.core.retry import Fatal
from fusee_mp.errors import FuseeError, PayloadError, Rejected
from fusee_mp.payload.failure import rebuild_failure
from fusee_mp.runtime import pickles

if TYPE_CHECKING:
    from fusee_mp.runtime.steps import StepCall

Settled = Callable[[Any, BaseException | None], None]
CALL, BEAT, VALUE, FAILED = range(4)
LENGTH_BYTES: Final = 4
IDLE_S: Final = 60.0
REAP_S: Final = 0.005
RECEIVE_BYTES: Final = 1 << 18
_PROGRAM: Final = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from fusee_mp.runtime.process_body import main; main()"


class Job:
    """A body on its way: `body` is done when it has ended or, cancelled, when it is to be stopped."""

    __slots__ = ("name", "call", "body", "_settled", "_report", "_generation")

    def __init__(self, step: StepCall, settled: Settled) -> None:
        said = (step.key, step.attempt, step.progress, step.bytes_max, _main())
        self.name = step.name
        self.call = pickles.dumps((said, pickles.dump_call(step.name, step.fn, step.args, step.kwargs)))
        self.body: asyncio.Future[None] = step.run.shard.loop.create_future()
        self._settled = settled
        self._report = step.report
        self._generation = step.generation

    def beat(self, payload: bytes) -> None:
        self._report(self._generation, payload)

    def end(self, value: Any, error: BaseException | None) -> None:
        if not self.body.done():
            self.body.set_result(None)
        self._settled(value, error)


class Processes:
    """At most `most` of them, made when there is work and ended when there is none for a while. `close` ends them all."""

    def __init__(self, loop: asyncio.AbstractEventLoop, most: int | None = None) -> None:
        self._loop = loop
        self._most = most or os.cpu_count() or 1
        self._all: set[BodyProcess] = set()
        self._idle: list[BodyProcess] = []
        self._waiting: deque[Job] = deque()
        self._is_closed = False

    def start(self, step: StepCall, settled: Settled) -> asyncio.Future[None] | None:
        """Run the step's body in one of them; cancelling what is returned kills it. None: it could not begin, which was settled."""
        try:
            job = Job(step, settled)
        except Rejected as e:
            refusal = Fatal(e.message)
            refusal.__cause__ = e
            settled(None, refusal)
            return None
        job.body.add_done_callback(lambda body: self._stop(job) if body.cancelled() else None)
        self._waiting.append(job)
        self._assign()
        return job.body

    def _assign(self) -> None:
        while self._waiting and not self._is_closed:
            if self._idle:
                self._idle.pop().run(self._waiting.popleft())
            elif len(self._all) < self._most:
                self._make().run(self._waiting.popleft())
            else:
                return

    def _make(self) -> BodyProcess:
        process = BodyProcess(self, self._loop)
        self._all.add(process)
        return process

    def _stop(self, job: Job) -> None:
        if job in self._waiting:
            self._waiting.remove(job)
        for process in self._all:
            if process.job is job:
                process.kill()

    def free(self, process: BodyProcess) -> None:
        """It has done its work."""
        self._idle.append(process)
        self._assign()

    def gone(self, process: BodyProcess) -> None:
        self._all.discard(process)
        if process in self._idle:
            self._idle.remove(process)
        self._assign()

    def close(self) -> None:
        """Kill them all, and wait until they are gone."""
        self._is_closed = True
        self._waiting.clear()
        for process in self._all:
            process.kill()
        for process in self._all:
            process.wait()


class BodyProcess:
    """One of them, and the body that it runs. Its own task reads the socket, closes it and reaps the process."""

    def __init__(self, owner: Processes, loop: asyncio.AbstractEventLoop) -> None:
        self._owner = owner
        self._loop = loop
        self.job: Job | None = None
        self._rest: asyncio.TimerHandle | None = None
        self._socket, theirs = socket.socketpair()
        self._socket.setblocking(False)
        with theirs:
            # On the loop's thread, since the kernel kills a child when the thread that made it ends.
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, json.dumps(sys.path), str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),),
            )
        self._reading = loop.create_task(self._read())
        self._sending: asyncio.Task[None] | None = None

    def run(self, job: Job) -> None:
        if self._rest is not None:
            self._rest.cancel()
            self._rest = None
        self.job = job
        self._sending = self._loop.create_task(self._send(job.call))

    async def _send(self, call: bytes) -> None:
        with contextlib.suppress(OSError):  # it has ended, which the reading side sees too
            await self._loop.sock_sendall(self._socket, (len(call) + 1).to_bytes(LENGTH_BYTES, "little") + bytes((CALL,)) + call)

    def kill(self) -> None:
        self._process.kill()

    def wait(self) -> None:
        """It was killed: wait until it is gone. The socket closes in the loop's next turn."""
        self._process.wait()
        self._reading.cancel()

    def _retire(self) -> None:
        self._owner.gone(self)
        self.kill()

    async def _read(self) -> None:
        received = bytearray()
        try:
            with contextlib.suppress(ConnectionError):
                while data := await self._loop.sock_recv(self._socket, RECEIVE_BYTES):
                    received += data
                    self._take_frames(received)
            while (status := self._process.poll()) is None:
                await asyncio.sleep(REAP_S)
            self._ended(status)
        finally:
            if self._sending is not None:
                self._sending.cancel()
            self._socket.close()

    def _take_frames(self, received: bytearray) -> None:
        while len(received) >= LENGTH_BYTES:
            end = LENGTH_BYTES + int.from_bytes(received[:LENGTH_BYTES], "little")
            if len(received) < end:
                return
            frame = bytes(received[LENGTH_BYTES:end])
            del received[:end]
            self._take(frame[0], frame[1:])

    def _take(self, kind: int, content: bytes) -> None:
        job = self.job
        if job is None:
            return
        if kind == BEAT:
            job.beat(content)
            return
        self.job = None
        job.end(*_outcome(job.name, kind, content))
        self._rest = self._loop.call_later(IDLE_S, self._retire)
        self._owner.free(self)

    def _ended(self, status: int) -> None:
        if self._rest is not None:
            self._rest.cancel()
        self._owner.gone(self)
        if self.job is not None:
            how = f"signal {-status}" if status < 0 else f"exit status {status}"
            self.job.end(None, ChildProcessError(f'the process that ran step "{self.job.name}" ended with {how}'))


def _outcome(name: str, kind: int, content: bytes) -> tuple[Any, BaseException | None]:
    try:
        return (None, rebuild_failure(content)) if kind == FAILED else (pickles.loads(content), None)
    except FuseeError as e:
        return None, e
    except Exception as e:  # its class cannot be found here
        return None, PayloadError(f'the result of step "{name}" could not be taken over from its process ({type(e).__name__}: {e})')


def _main() -> tuple[str, str]:
    """The program's main module, by name where it was run with -m, and by file: where functions of `__main__` are found."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    return ("" if spec is None else spec.name), getattr(main, "__file__", None) or ""
