"""The blocking engine and client: typed results, several threads, Ctrl-C, forks."""
from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fusee_mp import (
    Batch,
    Ctx,
    Debounce,
    Limit,
    NotFound,
    Rejected,
    ScheduleSpec,
    SyncClient,
    SyncEngine,
    Unavailable,
    WorkflowFailed,
    step,
    workflow,
)
from fusee_mp import signal as signal_
from fusee_mp.cli.demonstration.stage import Stage
from fusee_mp.sdk.methods import Methods
from fusee_mp.sdk.run import Run
from fusee_mp.sdk.schedules import ScheduleHandle
from fusee_mp.sdk.sync import SyncMethods, SyncRun
from fusee_mp.sdk.sync_timed import SyncScheduleHandle

ROOT = Path(__file__).resolve().parent.parent.parent
GO = signal_("go", int)
PATIENCE_S = 30


@step
def double(number: int) -> int:
    return 2 * number


@workflow("doubled")
async def doubled(ctx: Ctx, number: int) -> int:
    return await double(number)


@workflow("summed")
async def summed(ctx: Ctx, numbers: list[int]) -> int:
    return sum(numbers)


@workflow("waiting")
async def waiting(ctx: Ctx) -> int:
    return await ctx.wait_for(GO)


@workflow("failing")
async def failing(ctx: Ctx) -> None:
    raise LookupError("nothing there")


ALL = (doubled, summed, waiting, failing)


@pytest.fixture
def engine() -> Iterator[SyncEngine]:
    with SyncEngine.memory(workflows=ALL, shards=2) as engine:
        yield engine


def test_every_method_gives_what_the_asynchronous_one_gives(engine: SyncEngine) -> None:
    assert engine.shards == 2
    assert engine.execute(doubled, "a", 21) == 42
    run = engine.start(waiting, "b", attributes={"who": "ann"})
    run.started(timeout="5s")
    status = run.status()
    assert status is not None and status.is_open and status.attributes == {"who": "ann"}
    run.signal(GO, 7)
    assert run.result(timeout="5s") == 7 == engine.handle("b", waiting).result()
    detail = run.describe()
    assert detail is not None and [record.kind for record in detail.journal] == ["start", "signal", "done"]
    assert engine.count() == 2 and {run.id for run in engine.list()} == {"a", "b"}
    assert engine.status("nobody") is None and engine.describe("nobody") is None


def test_errors_arrive_as_they_are(engine: SyncEngine) -> None:
    with pytest.raises(WorkflowFailed) as failed:
        engine.execute(failing, "f")
    assert isinstance(failed.value.__cause__, LookupError)
    with pytest.raises(NotFound):
        engine.handle("nobody").result()
    with pytest.raises(TimeoutError):
        engine.start(waiting, "w").result(timeout="10ms")
    engine.handle("w").cancel("enough")
    engine.start(waiting, "t").terminate("now")


def test_it_keeps_its_runs_on_disk(tmp_path: Path) -> None:
    with SyncEngine.open(tmp_path / "data", workflows=ALL) as engine:
        engine.start(waiting, "kept")
    with SyncEngine.open(tmp_path / "data", workflows=ALL) as engine:
        engine.handle("kept").signal(GO, 3)
        assert engine.handle("kept").result(timeout="10s") == 3


def test_what_cannot_be_opened_leaves_no_thread(tmp_path: Path) -> None:
    before = threading.active_count()
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(Exception, match="file"):
        SyncEngine.open(tmp_path / "file")
    with pytest.raises(Unavailable):
        SyncClient.connect(f"unix:{tmp_path}/nobody")
    assert threading.active_count() == before


def test_several_threads_use_one_engine(engine: SyncEngine) -> None:
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda number: engine.execute(doubled, f"n-{number}", number), range(200)))
    assert found == [2 * number for number in range(200)]


def test_closing_wakes_those_who_wait_and_refuses_those_who_come(engine: SyncEngine) -> None:
    run = engine.start(waiting, "w")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        result = pool.submit(run.result)
        while not concurrent.futures.wait([result], 0.05).not_done:
            pass
        engine.close()
        engine.close()
        with pytest.raises(Unavailable, match="closed"):
            result.result(PATIENCE_S)
    with pytest.raises(Unavailable, match="closed"):
        engine.count()


def test_a_call_from_its_own_loop_is_refused_where_it_would_wait_for_itself() -> None:
    @step
    async def ask_myself() -> str:
        try:
            engine.count()
        except Rejected as e:
            return e.message
        return "no error"

    @workflow
    async def curious(ctx: Ctx) -> str:
        return await ask_myself()

    with SyncEngine.memory(workflows=[curious]) as engine:
        assert "would wait for itself" in engine.execute(curious, "c")


def test_a_sync_step_may_use_the_engine_that_runs_it() -> None:
    @step
    def look() -> int:
        return engine.count()

    @workflow
    async def looking(ctx: Ctx) -> int:
        return await look()

    with SyncEngine.memory(workflows=[looking]) as engine:
        assert engine.execute(looking, "l") == 1


@pytest.mark.parametrize("home", ["engine", "client"])
def test_ctrl_c_ends_a_program_that_waits(tmp_path: Path, home: str) -> None:
    program = f"""
from fusee_mp import SyncClient, SyncEngine
from tests.sdk.test_sync import ALL, waiting
with SyncEngine.open({str(tmp_path / "data")!r}, workflows=ALL) as home:
    run = home.start(waiting, "w")
    print("waiting", flush=True)
    run.result()
"""
    if home == "client":
        program = program.replace(f"SyncEngine.open({str(tmp_path / 'data')!r}, workflows=ALL)", "SyncClient.connect(sys.argv[1])")
        program = "import sys" + program.replace('home.start(waiting, "w")', 'home.handle("w", waiting)')
    with _maybe_server(home == "client") as address:
        done = _interrupted(program, address)
    assert done.returncode == -signal.SIGINT, done.stderr
    assert "KeyboardInterrupt" in done.stderr and "Unavailable" not in done.stderr


class _maybe_server:
    """A server without a worker, so that whoever asks it waits; or nothing."""

    def __init__(self, is_wanted: bool) -> None:
        self._stage = Stage() if is_wanted else None

    def __enter__(self) -> str:
        if self._stage is None:
            return ""
        asyncio.run(self._stage.start_server())
        return self._stage.address

    def __exit__(self, *_: object) -> None:
        if self._stage is not None:
            self._stage.__exit__()


def _interrupted(program: str, address: str) -> subprocess.CompletedProcess[str]:
    """Run a program, and press Ctrl-C when it says that it waits."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, address], cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    time.sleep(0.1)  # into the wait; before it, the interrupt would only come sooner
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)
    return subprocess.CompletedProcess(program, process.returncode, out, err)


FORK = """
import os, sys
from fusee_mp import SyncClient, Unavailable
client = SyncClient.connect(sys.argv[1])
assert client.count() == 0
child = os.fork()
if child == 0:
    try:
        client.count()
    except Unavailable as error:
        print("child:", error, flush=True)
    client.close()
    with SyncClient.connect(sys.argv[1]) as another:
        print("child counts", another.count(), flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print("parent counts", client.count())
client.close()
"""


def test_a_client_made_before_a_fork_says_so_in_the_child_and_works_on_in_the_parent() -> None:
    with _maybe_server(True) as address:
        done = subprocess.run(
            [sys.executable, "-c", FORK, address], check=False, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    child, another, parent = done.stdout.splitlines()
    assert child.startswith("child: this client was made before a fork") and "make one in this process" in child
    assert (another, parent) == ("child counts 0", "parent counts 0")


def test_a_program_that_forgets_to_close_still_ends(tmp_path: Path) -> None:
    program = f"""
from fusee_mp import SyncEngine
from tests.sdk.test_sync import ALL, doubled
print(SyncEngine.open({str(tmp_path / "data")!r}, workflows=ALL).execute(doubled, "d", 4))
"""
    done = subprocess.run([sys.executable, "-c", program], check=False, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout) == (0, "8\n"), done.stderr


def test_limits_have_blocking_methods() -> None:
    with SyncEngine.memory(workflows=ALL) as engine:
        with pytest.raises(NotFound):
            engine.limit_in_use("bank")
        engine.limit("bank", Limit(concurrent=2))
        assert (engine.limit_in_use("bank"), engine.limit_waiting("bank")) == (0, 0)
        assert [(one.name, one.concurrent) for one in engine.list_limits()] == [("bank", 2)]


@pytest.mark.parametrize(("waiting", "blocking"), [(Methods, SyncMethods), (Run, SyncRun), (ScheduleHandle, SyncScheduleHandle)])
def test_every_method_that_waits_has_a_blocking_twin_with_the_same_parameters(waiting: type, blocking: type) -> None:
    names = [name for name, one in inspect.getmembers(waiting, inspect.iscoroutinefunction) if not name.startswith("_")]
    assert len(names) >= 7
    for name in names:
        twin = getattr(blocking, name, None)
        assert twin is not None, f"{blocking.__name__} has no {name}"
        assert not inspect.iscoroutinefunction(twin)
        wanted, found = inspect.signature(getattr(waiting, name)).parameters, inspect.signature(twin).parameters
        assert list(found) == list(wanted) or "options" in found, f"{blocking.__name__}.{name}"


def test_schedules_and_windows_have_blocking_methods() -> None:
    with SyncEngine.memory(workflows=ALL) as engine:
        handle = engine.schedule("s", ScheduleSpec(workflow=doubled, input=4, every="1d", paused=True))
        assert handle.trigger().result(PATIENCE_S) == 8
        assert handle.backfill(datetime(2025, 1, 1, tzinfo=UTC), datetime(2025, 1, 3, tzinfo=UTC)) == 3
        handle.resume()
        handle.pause()
        assert engine.schedule_handle("s").describe().started == 4 and len(handle.next_times(2)) == 2
        assert [detail.id for detail in engine.schedules()] == ["s"]
        handle.delete()
        with pytest.raises(NotFound):
            handle.describe()
        assert engine.debounce(doubled, "k", 3, Debounce("10ms")).result(PATIENCE_S) == 6
        assert engine.batch(summed, "k", 3, Batch(1, "1m")).result(PATIENCE_S) == 3
