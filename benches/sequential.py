"""Latency of a sequential async step: embedded and through a TCP server, as a ratio to the bare flush of the same disk in the same run.

Bound: p50 at most 1.5 times the bare pwrite + fdatasync embedded, at most 2 times through the server.
"""
from __future__ import annotations

import sys
import time
from pathlib import Path

import uvloop

from benches.tree import bare_flush_us, folder, quantile, server
from fusee_mp import Config, Ctx, Engine, Worker, step, workflow

STEPS = 3000
WARM_UP = 1500  # the flush policy decides after 1,000 flushes
began: list[float] = []


@step
async def add_one(value: int) -> int:
    began.append(time.perf_counter())
    return value + 1


@workflow
async def chain(ctx: Ctx, steps: int) -> int:
    value = 0
    for _ in range(steps):
        value = await add_one(value)
    return value


def gaps_us() -> list[float]:
    gaps = [(after - before) * 1e6 for before, after in zip(began, began[1:])]
    began.clear()
    return gaps


async def embedded(directory: Path) -> list[float]:
    async with Engine.open(Config(dir=directory), workflows=[chain]) as engine:
        await engine.execute(chain, None, WARM_UP)
        began.clear()
        await engine.execute(chain, None, STEPS)
    return gaps_us()


async def served(address: str) -> list[float]:
    async with Worker.connect(address, workflows=[chain]) as worker:
        await worker.engine.execute(chain, None, WARM_UP)
        began.clear()
        await worker.engine.execute(chain, None, STEPS)
    return gaps_us()


def report(name: str, times: list[float], bare: float, bound: float) -> bool:
    p50 = quantile(times, 0.5)
    print(f"{name:10} p50 {p50:6.0f} us  p90 {quantile(times, 0.9):6.0f}  p99 {quantile(times, 0.99):6.0f}  "
          f"ratio {p50 / bare:.2f} (bound {bound})")
    return p50 / bare <= bound


def main() -> int:
    fine = True
    for _ in range(3):
        with folder() as place:
            before = bare_flush_us(place)
            on_engine = uvloop.run(embedded(place / "embedded"))
            with server(place / "served", 1) as tree:
                on_server = uvloop.run(served(tree.address))
            bare = quantile(before + bare_flush_us(place), 0.5)
        print(f"bare       p50 {bare:6.0f} us")
        fine = report("embedded", on_engine, bare, 1.5) & report("server", on_server, bare, 2.0)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
