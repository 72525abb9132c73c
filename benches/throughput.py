"""Durable steps a second: 1,000 parallel chains of 10 steps, one worker, one shard process, over loopback TCP.

Bound: 40,000 steps/s on 2 cores. Starts and results of the runs are in the time.
"""
from __future__ import annotations

import asyncio
import gc
import sys
import time

import uvloop

from benches.tree import Tree, folder, server
from fusee_mp import Client, Ctx, Worker, step, workflow

CHAINS, STEPS = 1000, 10


@step
async def add_one(value: int) -> int:
    return value + 1


@workflow
async def chain(ctx: Ctx, steps: int) -> int:
    value = 0
    for _ in range(steps):
        value = await add_one(value)
    return value


async def measure(tree: Tree, rounds: int) -> list[float]:
    rates: list[float] = []
    async with Worker.connect(tree.address, workflows=[chain]) as worker, Client.connect(tree.address) as client:
        gc.collect()
        gc.freeze()
        for steps in (STEPS,) * rounds + (100,):
            cpu, own, began = tree.cpu_s(), time.process_time(), time.perf_counter()
            runs = await asyncio.gather(*(client.start(chain, None, steps) for _ in range(CHAINS)))
            started = time.perf_counter()
            await asyncio.gather(*(run.result() for run in runs))
            took, n = time.perf_counter() - began, CHAINS * steps
            each = {kind: round((used - cpu.get(kind, 0)) / n * 1e6, 1) for kind, used in tree.cpu_s().items()}
            print(f"{CHAINS} chains of {steps:3}: {n / took:8,.0f} steps/s, starts {CHAINS / (started - began):7,.0f}/s; "
                  f"CPU us a step: worker and client {(time.process_time() - own) / n * 1e6:.1f}, {each}")
            if steps == STEPS:
                rates.append(n / took)
        assert worker.held
    return rates


def main() -> int:
    with folder() as place, server(place / "data", 1) as tree:
        rates = uvloop.run(measure(tree, 5))
    best, middle = max(rates), sorted(rates)[len(rates) // 2]
    print(f"median {middle:,.0f} steps/s, best {best:,.0f} (bound 40,000)")
    return 0 if middle >= 40_000 else 1


if __name__ == "__main__":
    sys.exit(main())
