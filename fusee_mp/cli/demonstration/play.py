# The demonstration from curtain to curtain.
"""`play`: bring up a shop, kill it piece by piece, prove that nothing was lost."""
from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Final

from fusee_mp.cli.demonstration.ledger import now_ms, read_ledger
from fusee_mp.cli.demonstration.proof import Proof, prove
from fusee_mp.cli.demonstration.show import Show
from fusee_mp.cli.demonstration.stage import SHARDS, WORKERS, Stage, StageError
from fusee_mp.cli.demonstration.traffic import Traffic
from fusee_mp.sdk.client import Client

# A kill happens when this share of the orders is done and all is well again after the kill before.
KILLS: Final = ((0.10, "worker"), (0.25, "shard"), (0.40, "keeper"), (0.55, "server"))
# Those after which a step may run again. A keeper only follows: its death disturbs nobody.
DISTURBING: Final = frozenset(("worker", "shard", "server"))
STALLED_S: Final = 20.0


async def play(orders: int, show: Show) -> dict[str, Any]:
    """Run the whole; the summary, whose `faults` are empty if every claim holds. Raises StageError when it cannot be played."""
    with Stage() as stage:
        show.say(f"starting a server with {SHARDS} shards and {WORKERS} worker processes in {stage.directory}")
        await stage.start_server()
        await stage.start_workers()
        async with Client.connect(stage.address) as client:
            traffic = Traffic(client, orders)
            show.say(f"running {orders:,} orders: 5 steps, a timer, a signal and a child on the other shard each")
            began = time.monotonic()
            async with show.progress("orders done", lambda: len(traffic.results), orders):
                kills = await _run(stage, traffic, show)
            took_s = time.monotonic() - began
            show.say(f"all {len(traffic.results):,} orders are done; comparing the journals with what the steps did")
            outages = [(kill["began_ms"], kill["ended_ms"]) for kill in kills if kill["what"] in DISTURBING]
            proof = await prove(client, read_ledger(stage.ledger), traffic.acknowledged, traffic.results, outages)
    return _summary(proof, traffic, kills, took_s)


async def _run(stage: Stage, traffic: Traffic, show: Show) -> list[dict[str, Any]]:
    try:
        async with asyncio.TaskGroup() as group:
            watch = group.create_task(_watch(stage, traffic))
            kills = group.create_task(_kill_everything(stage, traffic, show))
            await group.create_task(traffic.run())
            watch.cancel()
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return kills.result()


async def _watch(stage: Stage, traffic: Traffic) -> None:
    """Give up when nothing comes to an end any more."""
    done = -1
    while done != len(traffic.results):
        done = len(traffic.results)
        await asyncio.sleep(STALLED_S)
    raise StageError(f"no order has come to an end for {STALLED_S:.0f} s, {traffic.under_way} are under way. The logs end so:\n"
                     f"{stage.last_words()}")


async def _kill_everything(stage: Stage, traffic: Traffic, show: Show) -> list[dict[str, Any]]:
    kills = []
    acts = {"worker": stage.kill_worker, "shard": stage.kill_shard, "keeper": stage.kill_keeper, "server": stage.kill_server}
    for share, what in KILLS:
        while len(traffic.results) < share * traffic.orders or not traffic.under_way:
            await asyncio.sleep(0.01)
        began_ms, under_way = now_ms(), traffic.under_way
        victim = await acts[what]()
        ended_ms = now_ms()
        show.say(f"killed {victim} with {under_way} orders under way; all was well again after {(ended_ms - began_ms) / 1000:.1f} s")
        kills.append({"what": what, "under_way": under_way, "began_ms": began_ms, "ended_ms": ended_ms})
    traffic.may_end.set()
    return kills


def _summary(proof: Proof, traffic: Traffic, kills: list[dict[str, Any]], took_s: float) -> dict[str, Any]:
    return {
        "orders": proof.orders, "runs": 2 * proof.orders, "steps": proof.steps, "timers": proof.timers, "signals": proof.signals,
        "children_on_another_shard": proof.children, "seconds": round(took_s, 1), "steps_per_s": round(proof.steps / took_s),
        "step_ms": _quantiles(proof.step_ms), "start_ack_ms": _quantiles(traffic.ack_ms), "kills": kills,
        "starts_acknowledged": len(traffic.acknowledged), "starts_lost": len(traffic.acknowledged) - proof.orders,
        "steps_repeated_before_recorded": proof.repeated, "steps_repeated_after_recorded": proof.repeated_after_recorded,
        "faults": proof.faults,
    }


def _quantiles(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values) or [0.0]
    shares = (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
    return {name: round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 1) for name, share in shares}
