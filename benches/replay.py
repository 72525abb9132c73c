"""Processor time of a replay per record: sequential steps in 100 to 50,000 records, and steps at once in 100 to 10,000.

More at once would not fit in a turn, which may take 2 s.

Bound: flat within 20 %: no length costs more a record than 1.2 times the cheapest one.
"""
from __future__ import annotations

import asyncio
import sys
import time

from fusee_mp import Ctx, Journal, Replayer, workflow
from fusee_mp.core import records as r
from fusee_mp.runtime.collector import settle

LENGTHS = {"chain": (100, 1_000, 10_000, 50_000), "fan": (100, 1_000, 10_000)}
ROUNDS = 5
RECORDS = 50_000  # at least so many in each round, so that short journals are measured as long as long ones


async def nothing(value: int) -> int:
    return value


@workflow
async def chain(ctx: Ctx, steps: int) -> int:
    for n in range(steps):
        await ctx.step("nothing", nothing, n)
    return steps


@workflow
async def fan(ctx: Ctx, steps: int) -> int:
    return len(await asyncio.gather(*(ctx.step("nothing", nothing, n) for n in range(steps))))


def journal(name: str, steps: int) -> Journal:
    """What a run of that length recorded."""
    ops = [str(n + 1) if name == "chain" else f"{n + 1}/1" for n in range(steps)]
    facts: list[r.RunRecord] = [r.Start(1, 1_000, "run", name, str(steps).encode(), seed=1)]
    facts += [r.StepDone(1, 1_001 + n, op, "nothing", 1, "ok", str(n).encode()) for n, op in enumerate(ops)]
    facts.append(r.Done(1, 1_002 + steps, "ok", str(steps).encode()))
    return Journal("run", 0, tuple(range(1, steps + 3)), tuple(facts))


def us_per_record(replayer: Replayer, replayed: Journal) -> float:
    times = max(1, RECORDS // len(replayed.facts))
    began = time.thread_time()
    for replay in replayer.replay_all([replayed] * times):
        assert replay.ok and replay.finished, replay.error
    return (time.thread_time() - began) / (times * len(replayed.facts)) * 1e6


def main() -> int:
    replayer, fine = Replayer(workflows=[chain, fan]), True
    for name, lengths in LENGTHS.items():
        journals = {length: journal(name, length) for length in lengths}
        settle()
        rounds = [{length: us_per_record(replayer, journals[length]) for length in lengths} for _ in range(ROUNDS)]
        best = {length: min(times[length] for times in rounds) for length in lengths}
        limit = 1.2 * min(best.values())
        print(f"{name:6} {'  '.join(f'{length:,}: {us:.2f} us' for length, us in best.items())}  (limit {limit:.2f})")
        fine &= all(us <= limit for us in best.values())
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
