"""Steps in processes: what goes there, what comes back, how one is stopped, and that none is left behind."""
from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from behaviour_places import Place, run, until

from fusee_mp import Cancelled, Ctx, PayloadError, Rejected, Retry, current_step, step, workflow
from fusee_mp.bounds import PAYLOAD_BYTES_MAX
from tests.processes import is_alive

ROOT = Path(__file__).parents[2]


class Odd(Exception):
    def __init__(self, *, number: int) -> None:
        super().__init__(f"{number} is odd")
        self.number = number


def half(number: int) -> int:
    if number % 2:
        raise Odd(number=number)
    return number // 2


@step(pool="process")
def decorated(number: int) -> list[int]:
    return [number, os.getpid()]


async def asynchronous(number: int) -> list[int]:
    await asyncio.sleep(0)
    return [number, os.getpid()]


def who_am_i() -> list[Any]:
    here = current_step()
    progress = here.progress(list[int])
    here.heartbeat([here.attempt, os.getpid()])
    if here.attempt == 1:
        raise ValueError("once more")
    return [here.key, here.attempt, progress]


def spins(path: str) -> None:
    Path(path).write_text(str(os.getpid()))
    while True:
        pass


def dies() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def much(size: int) -> str:
    return "x" * (size - 2)


@workflow
async def halves(ctx: Ctx, number: int) -> Any:
    try:
        return await ctx.step("half", half, number, pool="process")
    except Odd as e:
        return {"odd": e.number, "cause": type(e.__cause__).__name__}


@workflow
async def elsewhere(ctx: Ctx) -> list[list[int]]:
    return [await decorated(1), await ctx.step("a", asynchronous, 2, pool="process"), await ctx.step("d", decorated, 3)]


@workflow
async def reporter(ctx: Ctx) -> list[Any]:
    return await ctx.step("who", who_am_i, pool="process", retry=Retry(attempts=2, initial="1ms"))


@workflow
async def stuck(ctx: Ctx, path: str) -> str:
    try:
        await ctx.step("spin", spins, path, pool="process", timeout="1s")
    except TimeoutError as e:
        return str(e)
    return "?"


@workflow
async def forever(ctx: Ctx, path: str) -> None:
    await ctx.step("spin", spins, path, pool="process")


@workflow
async def crash(ctx: Ctx) -> str:
    try:
        await ctx.step("die", dies, pool="process", retry=Retry(attempts=2, initial="1ms"))
    except ChildProcessError as e:
        return str(e)
    return "?"


@workflow
async def unnamed(ctx: Ctx) -> list[str]:
    said = []
    for fn, args in ((lambda: 1, ()), (half, (threading.Lock(),))):
        try:
            await ctx.step("x", fn, *args, pool="process", retry=Retry(attempts=5))
        except Rejected as e:
            said.append(e.message)
    return said


@workflow
async def large(ctx: Ctx, size: int) -> int:
    try:
        return len(await ctx.step("much", much, size, pool="process", retry=Retry(attempts=5)))
    except PayloadError:
        return -1


def pid_in(path: Path) -> int:
    return int(path.read_text() or 0) if path.exists() else 0


def test_values_and_exceptions_come_back_as_they_are() -> None:
    async def main() -> None:
        async with Place(None).engine([halves]) as engine:
            assert await engine.execute(halves, "a", 8) == 4
            assert await engine.execute(halves, "b", 7) == {"odd": 7, "cause": "StepFailed"}

    run(main())


def test_decorated_and_asynchronous_functions_run_there_too() -> None:
    async def main() -> None:
        async with Place(None).engine([elsewhere]) as engine:
            found = await engine.execute(elsewhere, "e")
        assert [number for number, _ in found] == [1, 2, 3] and os.getpid() not in [pid for _, pid in found]

    run(main())


def test_a_body_there_sees_its_step_and_reports_through_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with Place(tmp_path / "data").engine([reporter]) as engine:
            key, attempt, progress = await engine.execute(reporter, "r")
        assert key.startswith("r/1/") and attempt == 2 and progress[0] == 1 and progress[1] != os.getpid()

    run(main())


def test_a_stuck_body_is_killed_when_its_time_is_up_and_the_next_one_runs(tmp_path: Path) -> None:
    async def main() -> None:
        async with Place(None).engine([stuck, halves]) as engine:
            assert "longer than its timeout of 1 s" in await engine.execute(stuck, "s", str(tmp_path / "pid"))
            await until(lambda: not is_alive(pid_in(tmp_path / "pid")))
            assert await engine.execute(halves, "h", 2) == 1

    run(main())


def test_cancelling_kills_that_process_and_no_other(tmp_path: Path) -> None:
    async def main() -> None:
        async with Place(None).engine([forever]) as engine:
            one, _ = [await engine.start(forever, name, str(tmp_path / name)) for name in ("one", "two")]
            await until(lambda: pid_in(tmp_path / "one") and pid_in(tmp_path / "two"))
            await one.cancel()
            with pytest.raises(Cancelled):
                await one.result()
            await until(lambda: not is_alive(pid_in(tmp_path / "one")))
            assert is_alive(pid_in(tmp_path / "two"))
        assert not is_alive(pid_in(tmp_path / "two"))  # closing the engine leaves none

    run(main())


def test_a_process_that_dies_fails_its_attempt_only() -> None:
    async def main() -> None:
        async with Place(None).engine([crash]) as engine:
            assert await engine.execute(crash, "c") == 'the process that ran step "die" ended with signal 11'
            detail = await engine.describe("c")
        assert detail is not None and [record.kind for record in detail.journal] == ["start", "attempt", "step", "done"]

    run(main())


def test_what_cannot_go_there_is_refused_at_the_call_and_not_tried_again() -> None:
    async def main() -> None:
        async with Place(None).engine([unnamed]) as engine:
            by_name, arguments = await engine.execute(unnamed, "u")
        assert "functions go by their name" in by_name and "Define it at the top level of a module" in by_name
        assert 'the arguments of step "x" cannot be sent to a process' in arguments and "lock" in arguments

    run(main())


@pytest.mark.parametrize(("size", "comes"), [
    (PAYLOAD_BYTES_MAX, PAYLOAD_BYTES_MAX - 2), (PAYLOAD_BYTES_MAX + 1, -1), (10 * PAYLOAD_BYTES_MAX, -1),
])
def test_a_result_that_is_too_large_is_a_payload_error(size: int, comes: int) -> None:
    async def main() -> None:
        async with Place(None).engine([large]) as engine:
            assert await engine.execute(large, "l", size) == comes

    run(main())


PROGRAM = """
import asyncio, sys
from pathlib import Path
from fusee_mp import Engine, workflow
def spins(path):
    import os
    Path(path).write_text(str(os.getpid()))
    while True: pass
@workflow
async def forever(ctx, path):
    await ctx.step("spin", spins, path, pool="process")
async def main():
    async with Engine.memory(workflows=[forever]) as engine:
        await engine.execute(forever, "f", sys.argv[1])
if __name__ == "__main__":
    asyncio.run(main())
"""


def test_no_process_outlives_an_engine_that_is_killed_and_functions_of_a_script_are_found(tmp_path: Path) -> None:
    script, pid_file = tmp_path / "script.py", tmp_path / "pid"
    script.write_text(PROGRAM)
    program = subprocess.Popen([sys.executable, str(script), str(pid_file)], env={**os.environ, "PYTHONPATH": str(ROOT)})
    try:
        deadline = time.monotonic() + 20
        while not pid_in(pid_file):
            assert time.monotonic() < deadline and program.poll() is None
            time.sleep(0.01)
    finally:
        program.kill()
        program.wait()
    while is_alive(pid_in(pid_file)):
        assert time.monotonic() < deadline
        time.sleep(0.01)


THREADS = ThreadPoolExecutor(1, thread_name_prefix="mine")
CLOSED = ThreadPoolExecutor(1)
CLOSED.shutdown()
PROCESSES: list[ProcessPoolExecutor] = []


def thread_name() -> str:
    return threading.current_thread().name


@workflow
async def pools_of_mine(ctx: Ctx) -> list[Any]:
    found: list[Any] = [await ctx.step("thread", thread_name, pool=THREADS)]
    found.append(await ctx.step("process", half, 8, pool=PROCESSES[0]))
    try:
        await ctx.step("closed", half, 8, pool=CLOSED)
    except RuntimeError as e:
        found.append("shutdown" in str(e))
    return found


def test_executors_of_the_users_own_work_and_a_closed_one_fails_the_step() -> None:
    async def main() -> None:
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as processes:
            assert processes.submit(half, 2).result() == 1  # it forks here, before there are threads
            PROCESSES[:] = [processes]
            async with Place(None).engine([pools_of_mine]) as engine:
                assert await engine.execute(pools_of_mine, "p") == ["mine_0", 4, True]
        THREADS.shutdown()

    run(main())
