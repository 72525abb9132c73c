"""What the benches share: a server tree in a folder of its own, the bare disk, and quantiles."""
from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parent.parent


def quantile(values: Sequence[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[int((len(ordered) - 1) * part)]


def bare_flush_us(directory: Path, rounds: int = 2000, size: int = 4096) -> list[float]:
    """Times of pwrite + fdatasync on written blocks of this disk, in microseconds."""
    path = directory / "bare.flush"
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        os.pwrite(fd, bytes(rounds * size), 0)
        os.fsync(fd)
        data, times = b"x" * size, []
        for index in range(rounds):
            began = time.perf_counter()
            os.pwrite(fd, data, index * size)
            os.fdatasync(fd)
            times.append((time.perf_counter() - began) * 1e6)
        return times
    finally:
        os.close(fd)
        path.unlink()


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="fusee-bench-") as name:
        yield Path(name)


class Tree:
    """A server's processes."""

    def __init__(self, process: subprocess.Popen[str], address: str) -> None:
        self.process = process
        self.address = address

    def members(self) -> list[psutil.Process]:
        parent = psutil.Process(self.process.pid)
        return [parent, *parent.children(recursive=True)]

    def cpu_s(self) -> dict[str, float]:
        """CPU seconds so far, by the kind of process."""
        used: dict[str, float] = {}
        for member in self.members():
            with contextlib.suppress(psutil.Error):
                times = member.cpu_times()
                used[kind_of(member)] = used.get(kind_of(member), 0.0) + times.user + times.system
        return used


def kind_of(process: psutil.Process) -> str:
    line = " ".join(process.cmdline())
    return next((kind for kind in ("shardproc", "keeper", "serve") if kind in line), "helper")


@contextlib.contextmanager
def server(directory: Path, shards: int, *options: str) -> Iterator[Tree]:
    """A running server on a free port; stopped at the end."""
    command = [sys.executable, "-m", "fusee_mp.cli", "serve", str(directory), "--shards", str(shards), "--listen", "127.0.0.1:0", *options]
    log = open(directory.parent / "serve.log", "w")  # noqa: SIM115  # the server keeps it open
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        address = next((word for word in line.split() if word.startswith("127.0.0.1:")), "")
        if not address:
            raise SystemExit(f"the server did not start: {line!r}, see {log.name}")
        yield Tree(process, address)
    finally:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
        process.kill()
        process.wait()
        log.close()
