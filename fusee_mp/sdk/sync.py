# The engine and the client for code that blocks.
#
# Behind each is the asynchronous one, on a loop in a thread of its own; every method hands its call to that loop and waits.
#
# Rule 1: any thread may call, several at once. What KeyboardInterrupt leaves behind in the caller is cancelled on the loop.
# Rule 2: a thread does not survive a fork, so nobody would answer in the child: there every call raises at once and says what to do,
#         and closing does nothing, since the connections are the parent's.
# Rule 3: the loop's own thread never waits for itself: a call from it raises.
from __future__ import annotations

import asyncio
import builtins
import concurrent.futures
import os
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, Final, Generic, Self, TypedDict, TypeVar, Unpack, overload

from fusee_mp.duration import Duration
from fusee_mp.errors import Rejected, Unavailable
from fusee_mp.payload.sealing import PayloadCodec
from fusee_mp.sdk.address import FilePath
from fusee_mp.sdk.client import Client, Connecting
from fusee_mp.sdk.config import Config
from fusee_mp.sdk.definitions import Workflow
from fusee_mp.sdk.engine import Engine
from fusee_mp.sdk.handles import Asks, Changes, Sends
from fusee_mp.sdk.here_only import HereOnly
from fusee_mp.sdk.limit import Limit, LimitStatus
from fusee_mp.sdk.methods import Methods
from fusee_mp.sdk.run import Run
from fusee_mp.sdk.sync_timed import SyncTimed
from fusee_mp.sdk.types import OnFinished, OnRunning, RunDetail, RunStatus, Where

A = TypeVar("A")
I = TypeVar("I")
M = TypeVar("M", bound=Methods)
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")
ENDING_S: Final = 10.0


class StartOptions(TypedDict, total=False):
    """The options of `start` and `execute`, as `Engine.start` explains them."""

    on_running: OnRunning
    on_finished: OnFinished
    deadline: Duration | None
    attributes: Mapping[str, Any] | None
    request_id: str | None


def new_loop() -> asyncio.AbstractEventLoop:
    """An event loop, uvloop's where it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class LoopThread:
    """A loop in a thread. Closed by `close`; the thread does not keep the interpreter from ending."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._pid = os.getpid()
        self.is_closed = False
        self._is_up = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"fusee-mp {what}", daemon=True)
        self._thread.start()
        self._is_up.wait()

    def call(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine on the loop and wait for what it returns or raises."""
        self._check_usable()
        body = make()
        try:
            answer = asyncio.run_coroutine_threadsafe(body, self._loop)
        except RuntimeError:  # closed by another thread a moment ago
            body.close()
            raise self._closed() from None
        try:
            return answer.result()
        except concurrent.futures.CancelledError:
            raise self._closed() from None
        except BaseException:
            answer.cancel()
            raise

    @property
    def is_inherited(self) -> bool:
        """This process is a fork of the one that has the thread."""
        return os.getpid() != self._pid

    def close(self) -> None:
        """End the loop, with what is still waiting on it. Closing twice is allowed."""
        if self.is_closed or self.is_inherited:
            return
        self.is_closed = True
        self._loop.call_soon_threadsafe(self._ending.set)
        self._thread.join(ENDING_S)

    def _check_usable(self) -> None:
        if self.is_inherited:
            raise Unavailable(f"this {self._what} was made before a fork, and its thread is the parent's: make one in this process")
        if self.is_closed:
            raise self._closed()
        if threading.current_thread() is self._thread:
            raise Rejected(f"a blocking {self._what} was called on its own loop, which would wait for itself: make this step a plain `def`")

    def _closed(self) -> Unavailable:
        return Unavailable(f"this {self._what} is closed: make another")

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(self._stay())

    async def _stay(self) -> None:
        self._loop, self._ending = asyncio.get_running_loop(), asyncio.Event()
        self._is_up.set()
        await self._ending.wait()


class SyncRun(Generic[R_co]):
    """`Run` for blocking code."""

    def __init__(self, thread: LoopThread, run: Run[R_co]) -> None:
        self.id = run.id
        self._thread = thread
        self._run = run

    def __repr__(self) -> str:
        return repr(self._run)

    def result(self, timeout: Duration | None = None) -> R_co:
        """Wait for the run's end. Raises as `Run.result` does."""
        return self._thread.call(lambda: self._run.result(timeout))

    def started(self, timeout: Duration | None = None) -> None:
        """Wait until the ID has a run. Raises the builtin TimeoutError."""
        self._thread.call(lambda: self._run.started(timeout))

    def status(self) -> RunStatus | None:
        return self._thread.call(self._run.status)

    def describe(self) -> RunDetail | None:
        return self._thread.call(self._run.describe)

    @overload
    def signal(self, s: Sends[None], value: None = None, *, request_id: str | None = None) -> None: ...
    @overload
    def signal(self, s: Sends[A], value: A, *, request_id: str | None = None) -> None: ...
    @overload
    def signal(self, s: str, value: object = None, *, request_id: str | None = None) -> None: ...
    def signal(self, s: Any, value: Any = None, *, request_id: str | None = None) -> None:
        """Send a signal; on return it is durable. Raises NotFound, and Rejected when the run has ended."""
        self._thread.call(lambda: self._run.signal(s, value, request_id=request_id))

    @overload
    def update(self, u: Changes[None, R], value: None = None, *, update_id: str | None = None) -> R: ...
    @overload
    def update(self, u: Changes[A, R], value: A, *, update_id: str | None = None) -> R: ...
    @overload
    def update(self, u: str, value: object = None, *, update_id: str | None = None) -> Any: ...
    def update(self, u: Any, value: Any = None, *, update_id: str | None = None) -> Any:
        """Change the run by its handler of this update, and return the recorded result. Raises as `Run.update` does."""
        return self._thread.call(lambda: self._run.update(u, value, update_id=update_id))

    @overload
    def query(self, q: Asks[None, R], arg: None = None) -> R: ...
    @overload
    def query(self, q: Asks[A, R], arg: A) -> R: ...
    @overload
    def query(self, q: str, arg: object = None) -> Any: ...
    def query(self, q: Any, arg: Any = None) -> Any:
        """Ask the run's code, also after the run's end. Raises as `Run.query` does."""
        return self._thread.call(lambda: self._run.query(q, arg))

    def cancel(self, reason: str = "", *, request_id: str | None = None) -> None:
        """Ask the run to end: its code sees asyncio.CancelledError at its next await. A second cancel changes nothing."""
        self._thread.call(lambda: self._run.cancel(reason, request_id=request_id))

    def terminate(self, reason: str = "", *, request_id: str | None = None) -> None:
        """End the run without asking its code."""
        self._thread.call(lambda: self._run.terminate(reason, request_id=request_id))

    def reset(self, step_name: str, *, occurrence: int = 1, request_id: str | None = None) -> None:
        """Go on before a step, in a new run of the ID. Raises as `Run.reset` does."""
        self._thread.call(lambda: self._run.reset(step_name, occurrence=occurrence, request_id=request_id))

    def delete(self, *, request_id: str | None = None) -> None:
        """Forget the ID's ended runs. Raises as `Run.delete` does."""
        self._thread.call(lambda: self._run.delete(request_id=request_id))

    def pause(self, reason: str = "", *, request_id: str | None = None) -> None:
        """Start no further step body of the run until it is resumed. Bodies that run may end, and what arrives is recorded."""
        self._thread.call(lambda: self._run.pause(reason, request_id=request_id))

    def resume(self, *, request_id: str | None = None) -> None:
        """Let the run go on; a step that had used up its attempts has all of them again. On a run that is not paused: nothing."""
        self._thread.call(lambda: self._run.resume(request_id=request_id))


class SyncMethods(HereOnly, SyncTimed[M]):
    """What SyncEngine and SyncClient share: the methods of `Methods`, each blocking until there is an answer."""

    def __init__(self, thread: LoopThread, home: M) -> None:
        self._thread = thread
        self._home = home

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    @property
    def shards(self) -> int:
        """The number of shards."""
        return self._home.shards

    @overload
    def start(self, workflow: Workflow[None, R], id: str | None, input: None = None, **options: Unpack[StartOptions]) -> SyncRun[R]: ...
    @overload
    def start(self, workflow: Workflow[I, R], id: str | None, input: I, **options: Unpack[StartOptions]) -> SyncRun[R]: ...
    @overload
    def start(self, workflow: str, id: str | None, input: object = None, **options: Unpack[StartOptions]) -> SyncRun[Any]: ...
    def start(self, workflow: Any, id: str | None, input: Any = None, **options: Unpack[StartOptions]) -> SyncRun[Any]:
        """Start a run; on return it is durable. Options and errors are those of `Engine.start`."""
        return SyncRun(self._thread, self._thread.call(lambda: self._home.start(workflow, id, input, **options)))

    @overload
    def update_with_start(self, workflow: Workflow[I, R], id: str, input: I, update: Changes[A, T], value: A, *,
                          update_id: str | None = None) -> tuple[SyncRun[R], T]: ...
    @overload
    def update_with_start(self, workflow: str, id: str, input: object, update: str, value: object, *,
                          update_id: str | None = None) -> tuple[SyncRun[Any], Any]: ...
    def update_with_start(self, workflow: Any, id: str, input: Any, update: Any, value: Any, *,
                          update_id: str | None = None) -> tuple[SyncRun[Any], Any]:
        """Update the open run of the ID, or start one with the update in one record. As `Engine.update_with_start`."""
        run, result = self._thread.call(lambda: self._home.update_with_start(workflow, id, input, update, value, update_id=update_id))
        return SyncRun(self._thread, run), result

    @overload
    def execute(self, workflow: Workflow[None, R], id: str | None, input: None = None, **options: Unpack[StartOptions]) -> R: ...
    @overload
    def execute(self, workflow: Workflow[I, R], id: str | None, input: I, **options: Unpack[StartOptions]) -> R: ...
    @overload
    def execute(self, workflow: str, id: str | None, input: object = None, **options: Unpack[StartOptions]) -> Any: ...
    def execute(self, workflow: Any, id: str | None, input: Any = None, **options: Unpack[StartOptions]) -> Any:
        """Start a run and wait for its result: `start` and `result` in one."""
        return self._thread.call(lambda: self._home.execute(workflow, id, input, **options))

    @overload
    def handle(self, id: str) -> SyncRun[Any]: ...
    @overload
    def handle(self, id: str, workflow: Workflow[Any, R]) -> SyncRun[R]: ...
    def handle(self, id: str, workflow: Workflow[Any, Any] | None = None) -> SyncRun[Any]:
        """A handle on an ID, without a call. It follows the ID, not one run."""
        return SyncRun(self._thread, self._home.handle(id) if workflow is None else self._home.handle(id, workflow))

    def complete(self, token: str, value: object = None, *, request_id: str | None = None) -> None:
        """Give the operation that `ctx.completion` waits for its value. Raises as `Engine.complete` does."""
        self._thread.call(lambda: self._home.complete(token, value, request_id=request_id))

    def fail(self, token: str, error: str | BaseException, *, request_id: str | None = None) -> None:
        """Let the operation that `ctx.completion` waits for raise this error. Raises as `Engine.fail` does."""
        self._thread.call(lambda: self._home.fail(token, error, request_id=request_id))

    def status(self, id: str) -> RunStatus | None:
        """The newest run of an ID; None when there is none."""
        return self._thread.call(lambda: self._home.status(id))

    def describe(self, id: str) -> RunDetail | None:
        """The newest run of an ID with its journal; None when there is none."""
        return self._thread.call(lambda: self._home.describe(id))

    def limit(self, name: str, limit: Limit) -> None:
        """Define a limit, or define it anew; durable on return. Steps that name it wait for a permit before each attempt."""
        self._thread.call(lambda: self._home.limit(name, limit))

    def limit_in_use(self, name: str) -> int:
        """Permits held now. Raises NotFound for a limit that is not defined."""
        return self._thread.call(lambda: self._home.limit_in_use(name))

    def limit_waiting(self, name: str) -> int:
        """Steps that wait for a permit now. Raises NotFound for a limit that is not defined."""
        return self._thread.call(lambda: self._home.limit_waiting(name))

    def list_limits(self) -> builtins.list[LimitStatus]:
        """All limits that are defined, by name."""
        return self._thread.call(lambda: self._home.list_limits())

    def count(self, where: Where | None = None) -> int:
        """How many runs match."""
        return self._thread.call(lambda: self._home.count(where))

    def list(self, where: Where | None = None, limit: int = 100, after: str | None = None,
             shards: Sequence[int] | None = None) -> list[RunStatus]:
        """Runs that match: newest first within a shard, shards ascending."""
        return self._thread.call(lambda: self._home.list(where, limit, after, shards))

    def close(self) -> None:
        """Close it, and end its thread; calls that wait in other threads raise Unavailable. Closing twice is allowed."""
        if self._thread.is_closed or self._thread.is_inherited:
            return
        try:
            self._thread.call(self._close)
        finally:
            self._thread.close()

    async def _close(self) -> None:
        raise NotImplementedError


class SyncEngine(SyncMethods[Engine]):
    """`Engine` for blocking code. Made by `open` or `memory`."""

    @classmethod
    def open(
        cls, dir: str | PathLike[str] | Config, *, workflows: Sequence[Workflow[Any, Any]] = (), shards: int | None = None,
    ) -> SyncEngine:
        """The engine on a data directory: `with SyncEngine.open(..) as engine`, or close it yourself. Raises as `Engine.open` does."""
        return cls(*_begin("engine", lambda: _engine(Engine.open(dir, workflows=workflows, shards=shards))))

    @classmethod
    def memory(cls, *, workflows: Sequence[Workflow[Any, Any]] = (), shards: int = 1) -> SyncEngine:
        """An engine that keeps nothing on disk, for tests."""
        return cls(*_begin("engine", lambda: _engine(Engine.memory(workflows=workflows, shards=shards))))

    async def _close(self) -> None:
        await self._home.close()


class SyncClient(SyncMethods[Client]):
    """`Client` for blocking code. Made by `connect`."""

    @classmethod
    def connect(
        cls, address: str, *, name: str = "", codec: PayloadCodec | None = None, ca: FilePath | None = None, cert: FilePath | None = None,
        key: FilePath | None = None, token_file: FilePath | None = None,
    ) -> SyncClient:
        """A client of the server at this address: `with SyncClient.connect(..) as client`. Options and errors are those of
        `Client.connect`."""
        return cls(*_begin("client", lambda: _client(
            Client.connect(address, name=name, codec=codec, ca=ca, cert=cert, key=key, token_file=token_file))))

    async def _close(self) -> None:
        await self._home.close()


async def _engine(opening: Any) -> Engine:
    engine: Engine = await opening
    return engine


async def _client(connecting: Connecting) -> Client:
    return await connecting


def _begin(what: str, make: Callable[[], Coroutine[Any, Any, M]]) -> tuple[LoopThread, M]:
    """A thread and what lives on its loop; neither is left when that cannot be made."""
    thread = LoopThread(what)
    try:
        return thread, thread.call(make)
    except BaseException:
        thread.close()
        raise
