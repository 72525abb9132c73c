"""What the log expects of a disk, asked of the real one, of the one in memory, and of both lanes to the real one."""
from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from log_sim import SimDisk

from fusee_mp.log.disk import Disk, run_script
from fusee_mp.log.helper import Helper, InlineLane, Outcome, Script


def content(disk: Disk, name: str) -> bytes:
    fd = disk.open(name)
    try:
        return disk.read(fd, disk.size(fd), 0)
    finally:
        disk.close(fd)


def by_helper(disk: Disk) -> Callable[[Script], OSError | None]:
    def runner(script: Script) -> OSError | None:
        async def main() -> OSError | None:
            loop = asyncio.get_running_loop()
            outcome: asyncio.Future[Outcome] = loop.create_future()
            helper = Helper(Path(disk.directory), loop, lambda: None)
            try:
                helper.work.run(script, outcome.set_result)
                return (await asyncio.wait_for(outcome, 20)).error
            finally:
                helper.close()

        return asyncio.run(main())

    return runner


def by_lane(disk: Disk) -> Callable[[Script], OSError | None]:
    def runner(script: Script) -> OSError | None:
        outcomes: list[Outcome] = []
        InlineLane(disk, lambda: 0.0).run(script, outcomes.append)
        return outcomes[0].error

    return runner


@pytest.fixture(params=["real", "simulated", "helper"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Disk, Callable[[Script], OSError | None]]:
    disk = SimDisk() if request.param == "simulated" else Disk(str(tmp_path))
    return disk, by_helper(disk) if request.param == "helper" else by_lane(disk)


Run = tuple[Disk, Callable[[Script], OSError | None]]


def test_a_file_is_allocated_written_flushed_and_renamed(run: Run) -> None:
    disk, script = run
    steps = (
        ("allocate", "a", 5000), ("fill", "a", 5000), ("write", "a", b"hello", 4990), ("flush", "a"), ("rename", "a", "b"),
        ("flush_directory",),
    )
    assert script(steps) is None
    assert disk.names() == ["b"]
    assert content(disk, "b") == (bytes(4990) + b"hello").ljust(5000, b"\0")


def test_the_first_error_ends_a_script(run: Run) -> None:
    disk, script = run
    error = script((("allocate", "a", 512), ("flush", "missing"), ("rename", "a", "b")))
    assert error is not None and error.errno == errno.ENOENT
    assert disk.names() == ["a"]


def test_deleting_what_is_not_there_is_no_error(run: Run) -> None:
    disk, script = run
    assert script((("unlink", "a"), ("allocate", "a", 512), ("unlink", "a"), ("unlink", "a"))) is None
    assert disk.names() == []


def test_a_rename_replaces(run: Run) -> None:
    disk, script = run
    assert script((("allocate", "a", 512), ("write", "a", b"new", 0), ("allocate", "b", 512), ("rename", "a", "b"))) is None
    assert disk.names() == ["b"] and content(disk, "b")[:3] == b"new"


def test_asking_for_more_than_is_free_says_full(run: Run) -> None:
    disk, script = run
    error = script((("need_free", disk.free_bytes() * 2),))
    assert error is not None and error.errno == errno.ENOSPC
    assert script((("need_free", 1),)) is None


def test_an_unknown_step_is_refused(run: Run) -> None:
    error = run[1]((("system", "rm"),))
    assert error is not None and error.errno == errno.EINVAL


def test_a_fill_ends_when_somebody_asks_for_the_file(tmp_path: Path) -> None:
    disk = Disk(str(tmp_path))
    pauses: list[int] = []
    size = 4 << 20
    run_script(disk, (("allocate", "a", size), ("write", "a", b"x" * size, 0)))
    run_script(disk, (("fill", "a", size),), lambda: pauses.append(1) or len(pauses) == 3)  # type: ignore[func-returns-value]
    disk.let_go()
    assert content(disk, "a") == bytes(3 << 18) + b"x" * (size - (3 << 18))


def test_the_helper_answers_flushes_while_it_fills_and_hurries_when_told(tmp_path: Path) -> None:
    size = 64 << 20

    async def main() -> None:
        loop = asyncio.get_running_loop()
        helper = Helper(tmp_path, loop, lambda: None)
        order: list[str] = []
        done: asyncio.Future[None] = loop.create_future()
        try:
            (tmp_path / "s").write_bytes(b"x" * 512)
            filling = (("allocate", "a", size), ("fill", "a", size), ("rename", "a", "b"))
            helper.work.run(filling, lambda _: (order.append("fill"), done.set_result(None)))
            flush: asyncio.Future[Outcome] = loop.create_future()
            helper.flushes.run((("flush", "s"),), flush.set_result)
            assert (await asyncio.wait_for(flush, 20)).error is None
            order.append("flush")
            helper.work.hurry()
            helper.work.hurry()
            await asyncio.wait_for(done, 20)
            assert order == ["flush", "fill"] and os.listdir(tmp_path).count("b") == 1
            second: asyncio.Future[Outcome] = loop.create_future()
            helper.work.run((("unlink", "b"),), second.set_result)
            assert (await asyncio.wait_for(second, 20)).error is None, "the answers to the hurry are not taken for this one's"
        finally:
            helper.close()

    asyncio.run(main())


def test_reads_of_a_short_file_end_where_it_ends(tmp_path: Path) -> None:
    for disk in (Disk(str(tmp_path)), SimDisk()):
        fd = disk.open("a", create=True)
        disk.write_at(fd, b"abc", 10)
        assert (disk.size(fd), disk.read(fd, 100, 9), disk.read(fd, 100, 13)) == (13, b"\0abc", b"")
        disk.close(fd)
