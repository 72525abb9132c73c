"""Durable steps a second: 1,000 parallel chains of 10 steps, one worker process, one shard process, over loopback TCP, and a client.

Bound: 40,000 steps/s on 2 cores. Starts and results of the runs are in the time.
"""
from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import uvloop

from benches.tree import ROOT, Tree, folder, server
from fusee_mp import Client, Ctx, Worker, step, workflow
from fusee_mp.runtime.collector import settle

CHAINS, STEPS, ROUNDS = 1000, 10, 7


@step
async def add_one(value: int) -> int:
    return value + 1


@workflow
async def chain(ctx: Ctx, steps: int) -> int:
    value = 0
    for _ in range(steps):
        value = await add_one(value)
    return value


async def work(address: str) -> None:
    async with Worker.connect(address, workflows=[chain]) as worker:
        settle()
        print("ready", flush=True)
        await worker.run(signals=True)


@contextlib.contextmanager
def worker(address: str) -> Iterator[psutil.Process]:
    """A worker process; it leaves in order."""
    process = subprocess.Popen([sys.executable, "-m", "benches.throughput", address], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait()


def cpu_s(tree: Tree, worker: psutil.Process) -> dict[str, float]:
    times = worker.cpu_times()
    return {"worker": times.user + times.system, "client": time.process_time(), **tree.cpu_s()}


async def measure(tree: Tree, worker: psutil.Process) -> list[float]:
    rates: list[float] = []
    async with Client.connect(tree.address) as client:
        settle()
        for steps in (STEPS,) * ROUNDS + (100,):
            before, began = cpu_s(tree, worker), time.perf_counter()
            runs = await asyncio.gather(*(client.start(chain, None, steps) for _ in range(CHAINS)))
            started = time.perf_counter()
            await asyncio.gather(*(run.result() for run in runs))
            took, n = time.perf_counter() - began, CHAINS * steps
            each = {kind: round((used - before[kind]) / n * 1e6, 1) for kind, used in cpu_s(tree, worker).items()}
            print(f"{CHAINS} chains of {steps:3}: {n / took:8,.0f} steps/s, all started after {(started - began) * 1e3:4.0f} of "
                  f"{took * 1e3:4.0f} ms; CPU us a step {each}")
            if steps == STEPS:
                rates.append(n / took)
    return rates


def main() -> int:
    with folder() as place, server(place / "data", 1) as tree, worker(tree.address) as process:
        rates = uvloop.run(measure(tree, process))
    middle = sorted(rates)[len(rates) // 2]
    print(f"median {middle:,.0f} steps/s, best {max(rates):,.0f} (bound 40,000)")
    return 0 if middle >= 40_000 else 1


if __name__ == "__main__":
    if len(sys.argv) > 1:
        uvloop.run(work(sys.argv[1]))
    else:
        sys.exit(main())
