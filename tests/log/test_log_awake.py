"""Who waits for a single record's flush stays awake: the helper that attends, and the poll in place of an idle processor."""
from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from log_sim import append, read_all
from test_log_processes import QUICK, flushed, run, until, wait_until

from fusee_mp import bounds
from fusee_mp.log import Log, disk, idle_poll, page
from fusee_mp.log.attended import AttendedFlushes
from fusee_mp.log.awake import IdlePoll
from fusee_mp.log.disk import ASKED, DONE, ERRNO_BITS, SEGMENT, UNTIL, Disk
from fusee_mp.log.helper import Helper, Outcome
from fusee_mp.log.page import Page
from fusee_mp.log.policy import AttendPolicy, Histogram
from fusee_mp.log.segment import segment_name
from tests.processes import is_alive

FOR_EVER = 2**63


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that has proved itself at its first flush, and processors enough; no flush counts as slow."""
    monkeypatch.setattr(bounds, "LOG_INLINE_AFTER_FLUSHES", 1)
    monkeypatch.setattr(bounds, "LOG_INLINE_WORST_MS", 60_000)
    monkeypatch.setattr("fusee_mp.core.worth.AWAKE_ROUND", 1 << 30)
    monkeypatch.setattr("fusee_mp.log.flusher._processors", lambda: 64)


class Idle(Disk):
    """Ends its own page's wait after some flushes, one of which fails."""

    def __init__(self, directory: Path, words: memoryview, then: Callable[[int], None]) -> None:
        super().__init__(str(directory))
        self.words, self.flushes, self._then = words, 0, then

    def flush_fd(self, fd: int) -> None:
        self.flushes += 1
        self._then(self.flushes)


def test_constants_that_cannot_be_imported_are_equal() -> None:
    assert disk.PAGE_BYTES == idle_poll.PAGE_BYTES == page.PAGE_BYTES


def test_attending_flushes_once_for_each_request_and_ends_with_another_segment(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    shared = Page("test")
    words = shared.words

    def then(flushes: int) -> None:
        if flushes < 3:
            words[ASKED] += 1
        else:
            words[SEGMENT] = 8

    idle = Idle(tmp_path, words, then)
    words[SEGMENT], words[ASKED], words[UNTIL] = 7, 1, FOR_EVER
    idle.attend("a", 7, words)
    assert idle.flushes == 3 and words[DONE] == 3 << ERRNO_BITS
    idle.let_go()
    shared.close()


def test_attending_answers_a_failed_flush_with_its_errno(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    shared = Page("test")
    words = shared.words

    def then(flushes: int) -> None:
        words[UNTIL] = 0
        raise OSError(errno.EIO, "the disk is gone")

    words[SEGMENT], words[ASKED], words[UNTIL] = 7, 5, FOR_EVER
    idle = Idle(tmp_path, words, then)
    idle.attend("a", 7, words)
    assert words[DONE] == 5 << ERRNO_BITS | errno.EIO
    idle.let_go()
    shared.close()


def test_attended_flushes_are_answered_in_order_over_segments_and_pauses(tmp_path: Path) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        for number in (1, 2):
            (tmp_path / segment_name(number)).write_bytes(bytes(512))
        helper = Helper(tmp_path, loop, lambda: None)
        assert helper.words is not None
        attended = AttendedFlushes(helper.flushes, helper.words, loop)
        try:
            for number in (1, 1, 1, 2, 2, 1, 2):
                await one(attended, number)
            await wait_until(lambda: attended._attended is None, "the helper goes to sleep")
            await one(attended, 2)
            await wait_until(lambda: attended._attended is None, "the helper goes to sleep")
            for number in (3, 3):
                outcome = await one(attended, number, fails=True)
                assert isinstance(outcome.error, FileNotFoundError)
        finally:
            helper.close()

    async def one(attended: AttendedFlushes, number: int, fails: bool = False) -> Outcome:
        answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        attended.flush(number, answer.set_result)
        outcome = await asyncio.wait_for(answer, 20)
        assert fails or outcome.error is None and not outcome.lost and outcome.elapsed_s > 0
        return outcome

    asyncio.run(main())


def test_a_request_that_came_as_the_helper_went_to_sleep_is_made_again(tmp_path: Path) -> None:
    """The script has ended, and its answer has not been read: the request finds nobody until it is."""
    async def main() -> None:
        loop = asyncio.get_running_loop()
        (tmp_path / segment_name(1)).write_bytes(bytes(512))
        helper = Helper(tmp_path, loop, lambda: None)
        assert helper.words is not None
        attended = AttendedFlushes(helper.flushes, helper.words, loop)
        try:
            for _ in range(20):
                answer: asyncio.Future[Outcome] = loop.create_future()
                attended.flush(1, answer.set_result)
                await asyncio.wait_for(answer, 20)
                helper.words[UNTIL] = 0
                until(lambda: psutil.Process(helper.pid).status() == psutil.STATUS_SLEEPING, "asleep")
                late: asyncio.Future[Outcome] = loop.create_future()
                attended.flush(1, late.set_result)
                assert (await asyncio.wait_for(late, 20)).error is None
        finally:
            helper.close()

    asyncio.run(main())


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("loop_kind", ["asyncio", "uvloop"])
def test_single_records_are_flushed_by_an_awake_helper_and_many_inline(tmp_path: Path, loop_kind: str) -> None:
    async def main(log: Log) -> None:
        modes = set()
        for count in (1, *[1, 2, 20] * 100):
            await flushed(log, count)
            modes.add((count, log.metrics.mode))
        assert modes - {(1, "helper")} == {(1, "attended"), (2, "attended"), (20, "inline")}
        assert log.metrics.segments_begun > 0
        await log.close()

    run(main, tmp_path, QUICK, loop_kind)
    assert read_all(None, 2301, tmp_path) == list(range(1, 2302))


@pytest.mark.usefixtures("fast")
def test_an_attended_flush_whose_answer_died_with_the_helper_is_made_again_with_all_that_followed(tmp_path: Path) -> None:
    async def main(log: Log) -> None:
        for kills in range(1, 4):
            await wait_until(lambda: log._flusher.helper_pid is not None, "a helper")
            pid = log._flusher.helper_pid
            assert pid is not None
            await flushed(log)
            await flushed(log)
            os.kill(pid, signal.SIGSTOP)
            append(log)
            await wait_until(lambda: log.pending_bytes == 0, "written")
            lsn = append(log, 5)
            os.kill(pid, signal.SIGKILL)
            await wait_until(lambda: log.durable_lsn == lsn, "durable")  # noqa: B023
            assert log.metrics.helper_restarts == kills
        await log.close()

    run(main, tmp_path, QUICK)


def test_what_waits_behind_a_flush_that_died_with_the_helper_is_written_too(tmp_path: Path) -> None:
    async def main(log: Log) -> None:
        await flushed(log)
        pid = log._flusher.helper_pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        append(log)
        await wait_until(lambda: log.pending_bytes == 0, "written")
        lsn = append(log)
        os.kill(pid, signal.SIGKILL)
        await wait_until(lambda: log.durable_lsn == lsn, "durable")

    run(main, tmp_path, replace(QUICK, flush="helper"))


def test_attended_flushes_pause_where_a_quarter_is_slow_and_come_back() -> None:
    now, usual = 0.0, Histogram()
    usual.add(0.0001)
    policy = AttendPolicy(lambda: now)

    def round_of(slow: int, of: int = bounds.AWAKE_ROUND) -> bool:
        for at in range(of):
            if not policy.is_wanted(usual):
                return False
            policy.observe(0.001 if at < slow else 0.0001)
        return True

    quarter = bounds.AWAKE_ROUND // 4
    assert round_of(quarter) and round_of(quarter)
    assert not round_of(quarter + 2)
    for pause in (1, 2, 4):
        now += pause * bounds.AWAKE_PAUSE_S - 0.01
        assert not policy.is_wanted(usual)
        now += 0.01
        assert policy.is_wanted(usual) and not round_of(quarter + 2)
    now += bounds.AWAKE_PAUSE_MAX_S
    assert round_of(0) and not round_of(quarter + 2)
    now += bounds.AWAKE_PAUSE_S
    assert policy.is_wanted(usual), "a good round makes the next pause a short one"


def test_the_idle_poll_runs_at_the_idle_priority_beside_the_thread_and_ends_with_close() -> None:
    poll = IdlePoll()
    poll.extend()
    assert poll.pid is not None
    ours = os.sched_getaffinity(0)
    try:
        pinned = {min(ours)}
        os.sched_setaffinity(0, pinned)

        def is_beside() -> bool:
            poll.extend()
            return os.sched_getaffinity(poll.pid) == pinned

        until(lambda: os.sched_getscheduler(poll.pid) == os.SCHED_IDLE, "the idle priority")
        until(is_beside, "on the processor of the thread that flushes")
    finally:
        os.sched_setaffinity(0, ours)
    pid = poll.pid
    until(lambda: psutil.Process(pid).status() == psutil.STATUS_SLEEPING, "asleep when nothing is flushed")
    poll.close()
    poll.extend()
    assert not is_alive(pid) and poll.pid is None


def test_an_idle_poll_that_ended_is_not_tried_again() -> None:
    poll = IdlePoll()
    poll.extend()
    pid = poll.pid
    assert pid is not None
    until(lambda: os.sched_getscheduler(pid) == os.SCHED_IDLE, "it runs")
    os.kill(pid, signal.SIGKILL)
    poll._page.words[idle_poll.ASLEEP] = 1
    until(lambda: not is_alive(pid), "it is gone")
    until(lambda: poll.extend() or poll.pid is None, "that is noticed")  # type: ignore[func-returns-value]
    poll.extend()
    assert poll.pid is None


def test_the_idle_poll_ends_when_its_parent_is_killed() -> None:
    program = (
        "import time; from fusee_mp.log.awake import IdlePoll; poll = IdlePoll(); poll.extend(); print(poll.pid, flush=True)\n"
        "time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    until(lambda: os.sched_getscheduler(pid) == os.SCHED_IDLE, "it runs")
    parent.kill()
    parent.wait()
    parent.stdout.close()
    until(lambda: not is_alive(pid), "it ends")
