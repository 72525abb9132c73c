"""What a test session may not leave behind: processes, shared memory, descriptors of it, temporary files."""
from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

MARK = "FUSEE_TEST_SESSION"
PATIENCE_SECONDS = 10.0


class Watch:
    """Looks once at the start, and again at the end. Processes are known by a mark in their environment, which all descendants inherit,
    also those that lost their parent."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._memory = set(_shared_memory())
        self._mark = f"{os.getpid()}-{time.time_ns()}"
        os.environ[MARK] = self._mark

    def leftovers(self) -> list[str]:
        """What is still there after a while for what was just ending."""
        found: list[str] = []
        for look in (self._processes, self._new_memory, self._files):
            found += _once_empty(look)
        return found

    def _processes(self) -> list[str]:
        return [f"process {process.pid}: {' '.join(process.cmdline())}" for process in self._marked()]

    def _marked(self) -> Iterator[psutil.Process]:
        for process in psutil.process_iter():
            try:
                if process.pid != os.getpid() and self._is_ours(process):
                    yield process
            except psutil.Error:
                continue

    def _is_ours(self, process: psutil.Process) -> bool:
        if process.status() == psutil.STATUS_ZOMBIE:  # It has no environment left; it is ours if it is a child.
            return process.ppid() == os.getpid()
        return process.environ().get(MARK) == self._mark

    def _new_memory(self) -> list[str]:
        gc.collect()
        return [f"shared memory {name}" for name in set(_shared_memory()) - self._memory]

    def _files(self) -> list[str]:
        return [f"file {path}" for path in self._directory.iterdir() if path.name != "pytest"]

    def end_processes(self) -> None:
        """Kill what was left, after it was reported: the next session shall not suffer from it."""
        for process in self._marked():
            try:
                process.kill()
            except psutil.Error:
                continue


def _shared_memory() -> Iterator[str]:
    """Names in /dev/shm that say that they are of this project, and memory files that this process has open."""
    for path in Path("/dev/shm").glob("*fusee*"):
        yield str(path)
    for path in Path("/proc/self/fd").glob("*"):
        target = os.readlink(path) if path.is_symlink() else ""
        if target.startswith("/memfd:"):
            yield f"{path} -> {target}"


def _once_empty(look: Callable[[], list[str]]) -> list[str]:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (found := look()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found
