"""Real files, real helpers, real kills."""
from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from log_sim import append, read_all
from log_writer import OPTIONS

from fusee_mp.errors import StorageError
from fusee_mp.log import Log, LogOptions, recover
from fusee_mp.log.directory import Lock
from tests.processes import is_alive

LONG = os.environ.get("FUSEE_LONG") == "1"
QUICK = LogOptions(**OPTIONS)  # type: ignore[arg-type]
WRITER = Path(__file__).with_name("log_writer.py")


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.005)


async def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, f"never: {what}"
        await asyncio.sleep(0.002)


def run(main: Callable[[Log], Coroutine[Any, Any, None]], directory: Path, options: LogOptions, loop_kind: str = "asyncio") -> None:
    """Run `main` on a fresh log; afterwards no descriptor and no process is left."""

    async def whole() -> None:
        before = len(os.listdir("/proc/self/fd"))
        log = Log.open(directory, options, proven_lsn=0, loop=asyncio.get_running_loop())
        pid = log._flusher.helper_pid
        try:
            await main(log)
        finally:
            pid = log._flusher.helper_pid or pid
            log.abandon()
        assert len(os.listdir("/proc/self/fd")) == before
        assert pid is None or not is_alive(pid)

    if loop_kind == "uvloop":
        uvloop = pytest.importorskip("uvloop")
        uvloop.run(whole())
    else:
        asyncio.run(whole())


async def flushed(log: Log, count: int = 1) -> None:
    lsn = append(log, count)
    await wait_until(lambda: log.durable_lsn >= lsn, "durable")


@pytest.mark.parametrize("loop_kind", ["asyncio", "uvloop"])
@pytest.mark.parametrize("mode", ["inline", "helper", "auto"])
def test_every_way_of_flushing_writes_the_same_log(tmp_path: Path, mode: str, loop_kind: str) -> None:
    async def main(log: Log) -> None:
        for _ in range(40):
            await flushed(log, 20)
        assert log.metrics.mode == ("inline" if mode == "inline" else "helper")
        assert log.metrics.segments_begun > 0, "the helper made a segment ready"
        await log.close()

    run(main, tmp_path, replace(QUICK, flush=mode), loop_kind)  # type: ignore[arg-type]
    assert read_all(None, 800, tmp_path) == list(range(1, 801))
    assert recover(tmp_path).unproven == []


@pytest.mark.parametrize("mode", ["inline", "helper", "attended"])
def test_every_acknowledged_record_survives_sigkill_at_random_moments(tmp_path: Path, mode: str) -> None:
    rng, durable, checkpointed = random.Random(7), 0, 0
    for life in range(100 if LONG else 12):
        writer = subprocess.Popen([sys.executable, str(WRITER), str(tmp_path), mode, str(checkpointed)], stdout=subprocess.PIPE)
        assert writer.stdout is not None
        helper = int(writer.stdout.readline().split()[1])
        lines = [writer.stdout.readline() for _ in range(rng.randrange(0, 120))]
        time.sleep(rng.random() * 0.005)
        writer.send_signal(signal.SIGKILL)
        lines += writer.stdout.readlines()
        writer.wait()
        writer.stdout.close()
        words = [line.split() for line in lines if line.endswith(b"\n")]
        assert all(word in (b"durable", b"checkpointed") for word, _ in words)
        durable = max([durable, *(int(lsn) for word, lsn in words if word == b"durable")])
        checkpointed = max([checkpointed, *(int(lsn) for word, lsn in words if word == b"checkpointed")])
        until(lambda: not is_alive(helper), "the helper ends with its parent")  # noqa: B023
        found = recover(tmp_path, proven_lsn=checkpointed)
        assert found.gaps == [] and found.last_lsn >= durable, f"life {life}"
        assert read_all(None, durable, tmp_path)[-1:] == ([durable] if durable else [])
    assert durable > (20 if mode == "attended" else 100)


def test_the_helper_is_small(tmp_path: Path) -> None:
    async def main(log: Log) -> None:
        for _ in range(20):
            await flushed(log)
        pid = log._flusher.helper_pid
        assert pid is not None and psutil.Process(pid).memory_info().rss <= 9 << 20

    run(main, tmp_path / "first", LogOptions(flush="helper"))  # The first may have had to compile its program.
    run(main, tmp_path / "log", LogOptions(flush="helper"))


def test_the_helper_has_no_descriptors_but_its_own(tmp_path: Path) -> None:
    lock = Lock.acquire(tmp_path / "lock")
    secret = os.open(tmp_path / "lock", os.O_RDONLY)
    os.set_inheritable(secret, True)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        log = Log.open(tmp_path / "log", replace(QUICK, flush="helper"), proven_lsn=0, loop=loop, inherit=(lock.fd,))
        try:
            await check(log)
            await log.close()
        finally:
            log.abandon()
        Lock.acquire(tmp_path / "lock").release()

    async def check(log: Log) -> None:
        await flushed(log)
        pid = log._flusher.helper_pid
        links = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd") if int(fd) > 2]
        assert links.count(str(tmp_path / "lock")) == 1, "the lock that was handed over, not the other descriptor"
        assert sum("socket" in link for link in links) == 2
        assert sum("memfd" in link for link in links) == 1
        assert len(links) <= 6
        lock.release()
        with pytest.raises(StorageError, match="in use"):
            Lock.acquire(tmp_path / "lock")

    asyncio.run(main())
    os.close(secret)


@pytest.mark.parametrize("mode", ["inline", "helper"])
def test_a_helper_that_dies_costs_nothing_and_comes_back(tmp_path: Path, mode: str) -> None:
    async def main(log: Log) -> None:
        failures: list[BaseException] = []
        log.on_failed = failures.append
        for _ in range(3):
            await wait_until(lambda: log._flusher.helper_pid is not None, "a helper")
            pid = log._flusher.helper_pid
            assert pid is not None
            append(log, 3)
            os.kill(pid, signal.SIGKILL)
            for _ in range(30):
                await flushed(log, 10)
            await wait_until(lambda: log._flusher.helper_pid not in (None, pid), "a new helper")  # noqa: B023
        for _ in range(30):
            await flushed(log, 10)
        assert failures == [] and log.metrics.helper_restarts == 3
        await log.close()

    run(main, tmp_path, replace(QUICK, flush=mode))  # type: ignore[arg-type]
    found = recover(tmp_path)
    assert read_all(None, found.last_lsn, tmp_path) == list(range(1, found.last_lsn + 1)) and found.last_lsn == 1209


def test_a_flush_whose_answer_died_with_the_helper_is_made_again(tmp_path: Path) -> None:
    async def main(log: Log) -> None:
        await flushed(log)
        pid = log._flusher.helper_pid
        assert pid is not None
        flushes: list[int] = []
        flush_fd = log._disk.flush_fd
        log._disk.flush_fd = lambda fd: (flushes.append(fd), flush_fd(fd))[1]  # type: ignore[method-assign]
        os.kill(pid, signal.SIGSTOP)
        lsn = append(log)
        await wait_until(lambda: log.pending_bytes == 0, "written")
        assert log.durable_lsn < lsn and flushes == []
        os.kill(pid, signal.SIGKILL)
        await wait_until(lambda: log.durable_lsn == lsn, "durable")
        assert flushes[0] == log._tail.fd

    run(main, tmp_path, replace(QUICK, flush="helper"))


def test_the_helper_ends_though_a_fork_of_its_parent_lives_on(tmp_path: Path) -> None:
    """The fork holds copies of the sockets, so they do not end."""
    program = (
        "import asyncio, os, sys, time\nfrom pathlib import Path\nfrom fusee_mp.log import Log, LogOptions\n"
        "async def main():\n"
        "    log = Log.open(Path(sys.argv[1]), LogOptions(reserve_bytes=0), proven_lsn=0, loop=asyncio.get_running_loop())\n"
        "    child = os.fork()\n"
        "    if not child: time.sleep(60); os._exit(0)\n"
        "    print(log._flusher.helper_pid, child, flush=True); time.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, env={"PYTHONPATH": str(WRITER.parents[2]), "PATH": ""},
    )
    assert parent.stdout is not None
    helper, child = map(int, parent.stdout.readline().split())
    try:
        parent.kill()
        parent.wait()
        until(lambda: not is_alive(helper), "the helper ends")
        assert is_alive(child)
    finally:
        os.kill(child, signal.SIGKILL)
        parent.stdout.close()


def test_auto_moves_inline_when_the_disk_has_shown_to_be_fast(tmp_path: Path) -> None:
    from fusee_mp.log.policy import FlushPolicy

    policy = FlushPolicy("auto")
    for _ in range(999):
        policy.observe(0.2)
    assert not policy.is_inline
    policy.observe(0.2)
    assert policy.is_inline
    policy.observe(19)
    assert policy.is_inline
    policy.observe(21)
    assert not policy.is_inline, "one flush over 20 ms"
    for _ in range(2):
        for at in range(1000):
            policy.observe(1.5 if at % 90 == 0 else 0.2)
        assert not policy.is_inline, "p99 is over 1 ms"
    for at in range(1000):
        policy.observe(1.5 if at % 110 == 0 else 0.2)
    assert policy.is_inline


def test_an_emulated_slow_disk_stays_with_the_helper_and_does_not_block_the_loop(tmp_path: Path) -> None:
    async def main(log: Log) -> None:
        lsn = append(log)
        turns = 0
        while log.durable_lsn < lsn:
            await asyncio.sleep(0)
            turns += 1
        assert turns > 20 and log.metrics.mode == "helper" and log.metrics.flush_latency.quantile_ms(0.5) > 40

    run(main, tmp_path, replace(QUICK, emulated_flush_ms=50))


def test_a_recovered_log_goes_on_in_the_segment_that_was_ready(tmp_path: Path) -> None:
    async def main(log: Log) -> None:
        await flushed(log, 5)
        await wait_until(lambda: log._supply.ready is not None, "a segment ready")
        await log.close()

    run(main, tmp_path, QUICK)
    ready = {path.name: path.stat().st_ino for path in tmp_path.iterdir()}

    async def again() -> None:
        log = Log.open(tmp_path, QUICK, proven_lsn=0, loop=asyncio.get_running_loop())
        assert log.last_lsn == 5 and log.recovery.torn is None and log.recovery.copied_batches == 0
        assert os.fstat(log._tail.fd).st_ino in ready.values()
        await log.close()

    asyncio.run(again())


def test_a_batch_larger_than_what_is_left_of_the_starter_waits_for_the_next_segment(tmp_path: Path) -> None:
    from fusee_mp.log import join_records

    async def main(log: Log) -> None:
        for _ in range(3):
            log.append(join_records([bytes(60_000)]), 1, 1)
        await wait_until(lambda: log.durable_lsn == 3, "durable")

    run(main, tmp_path, QUICK)
    assert recover(tmp_path).last_lsn == 3


def test_an_appender_faster_than_the_filler_never_waits_for_the_zeroes(tmp_path: Path) -> None:
    """A segment is taken as it stands; the writer outruns the filling of 256 KiB pieces ten times here."""
    options = replace(QUICK, segment_bytes=8 << 20, starter_bytes=1 << 20, append_bytes_max=1 << 20, batch_bytes_max=2 << 20)
    from fusee_mp.log import join_records

    async def main(log: Log) -> None:
        data = join_records([bytes(1_000_000)])
        for _ in range(40):
            lsn = log.append(data, 1, 1)
            await wait_until(lambda: log.durable_lsn >= lsn, "durable")  # noqa: B023
        assert log.metrics.segments_begun >= 4
        await log.close()

    run(main, tmp_path, options)
    found = recover(tmp_path)
    assert (found.last_lsn, found.gaps, found.torn) == (40, [], None)
