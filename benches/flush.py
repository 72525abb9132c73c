"""The time from an append until it is durable, alone on the log, inline and through the helper process, against the bare disk.

    python benches/flush.py [--dir DIR] [--rounds N] [--json]

The bare disk is pwrite and fdatasync of one block on a file of zeroes. The three take turns in short rounds, so that a disk that is
slow for a while is slow for all of them; what counts is the ratio.
"""
from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from fusee_mp.log import Log, LogOptions, join_records

FLUSHES_PER_ROUND = 200
RECORD = join_records([bytes(200)])
BLOCK_BYTES = 512
BARE_BYTES = 16 << 20


@dataclass
class Series:
    """Latencies of one way, in µs."""

    name: str
    us: list[float] = field(default_factory=list)

    def quantile(self, part: float) -> float:
        ordered = sorted(self.us)
        return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


class BareDisk:
    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.pwrite(self._fd, bytes(BARE_BYTES), 0)
        os.fsync(self._fd)
        self._offset = 0

    def flush_one(self) -> None:
        os.pwrite(self._fd, RECORD.ljust(BLOCK_BYTES, b"\0"), self._offset)
        os.fdatasync(self._fd)
        self._offset = (self._offset + BLOCK_BYTES) % BARE_BYTES

    def close(self) -> None:
        os.close(self._fd)


class OneAtATime:
    """A log whose every append waits for the one before."""

    def __init__(self, directory: Path, flush: str) -> None:
        self._loop = asyncio.get_running_loop()
        self.log = Log.open(directory, LogOptions(flush=flush), proven_lsn=0, loop=self._loop)  # type: ignore[arg-type]
        self.log.on_durable = self._durable
        self._left = 0
        self._started = 0.0
        self._us: list[float] = []
        self._done: asyncio.Future[None] | None = None

    async def round(self, us: list[float]) -> None:
        self._left, self._us, self._done = FLUSHES_PER_ROUND, us, self._loop.create_future()
        self._append()
        await self._done

    def _append(self) -> None:
        self._started = time.perf_counter()
        self.log.append(RECORD, 1, 1)

    def _durable(self, lsn: int) -> None:
        self._us.append((time.perf_counter() - self._started) * 1e6)
        self._left -= 1
        if self._left:
            self._loop.call_soon(self._append)
        elif self._done is not None:
            self._done.set_result(None)


async def measure(directory: Path, rounds: int) -> list[Series]:
    bare, inline, helper = Series("bare pwrite + fdatasync"), Series("inline"), Series("helper process")
    disk = BareDisk(directory / "bare")
    logs = [OneAtATime(directory / "inline", "inline"), OneAtATime(directory / "helper", "helper")]
    await asyncio.sleep(4)  # The helpers fill the next segments meanwhile.
    for _ in range(rounds):
        for _ in range(FLUSHES_PER_ROUND):
            started = time.perf_counter()
            disk.flush_one()
            bare.us.append((time.perf_counter() - started) * 1e6)
        for log, series in zip(logs, (inline, helper), strict=True):
            await log.round(series.us)
    disk.close()
    for log in logs:
        await log.log.close()
    return [bare, inline, helper]


def report(series: list[Series]) -> list[dict[str, float | str]]:
    bare = series[0]
    return [
        {
            "way": one.name, "flushes": len(one.us), "p50_us": round(one.quantile(0.5), 1), "p99_us": round(one.quantile(0.99), 1),
            "p50_ratio": round(one.quantile(0.5) / bare.quantile(0.5), 3), "p99_ratio": round(one.quantile(0.99) / bare.quantile(0.99), 3),
        }
        for one in series
    ]


def runner() -> Callable[..., list[Series]]:
    with contextlib.suppress(ImportError):
        import uvloop

        return uvloop.run
    return asyncio.run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, help="where to write; the disk that is measured")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.dir) as directory:
        rows = report(runner()(measure(Path(directory), arguments.rounds)))
    if arguments.json:
        print(json.dumps(rows))
        return
    for row in rows:
        print(
            f"{row['way']:26s} {row['flushes']:6d} flushes  p50 {row['p50_us']:7.1f} us ({row['p50_ratio']:.2f})"
            f"  p99 {row['p99_us']:7.1f} us ({row['p99_ratio']:.2f})"
        )


if __name__ == "__main__":
    main()
