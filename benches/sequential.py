"""Latency of a sequential async step: embedded and through a TCP server, as a ratio to the bare flush of the same disk in the same run.

Bound: p50 at most 1.5 times the bare pwrite + fdatasync embedded, at most 2 times through the server. --tls: beside them through a server
with TLS and tokens, without a bound.
"""
from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import uvloop

from benches.certificates import Secured
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


async def served(address: str, given: Mapping[str, Any]) -> list[float]:
    async with Worker.connect(address, workflows=[chain], **given) as worker:
        await worker.engine.execute(chain, None, WARM_UP)
        began.clear()
        await worker.engine.execute(chain, None, STEPS)
    return gaps_us()


def through_server(place: Path, secured: Secured | None) -> list[float]:
    with server(place / ("secured" if secured else "served"), 1, *(secured.options if secured else ())) as tree:
        return uvloop.run(served(tree.address, secured.given if secured else {}))


def report(name: str, times: list[float], bare: float, bound: float) -> bool:
    p50 = quantile(times, 0.5)
    print(f"{name:10} p50 {p50:6.0f} us  p90 {quantile(times, 0.9):6.0f}  p99 {quantile(times, 0.99):6.0f}  "
          f"ratio {p50 / bare:.2f} (bound {bound})")
    return p50 / bare <= bound


def main() -> int:
    fine, has_tls = True, "--tls" in sys.argv[1:]
    for _ in range(3):
        with folder() as place:
            before = bare_flush_us(place)
            on_engine = uvloop.run(embedded(place / "embedded"))
            on_server = through_server(place, None)
            on_secured = through_server(place, Secured(place)) if has_tls else []
            bare = quantile(before + bare_flush_us(place), 0.5)
        print(f"bare       p50 {bare:6.0f} us")
        fine = report("embedded", on_engine, bare, 1.5) & report("server", on_server, bare, 2.0)
        if has_tls:
            report("TLS", on_secured, bare, math.inf)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
