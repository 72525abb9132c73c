# What the demonstration claims, and how each claim is checked against the ledger and the journals.
#
# The ledger is the outside world: a line for every time a step did its work. The journals are what fusee-mp recorded. A step returns the
# number of its line, so a journal names the line that counted. From that:
#
# 1. A step whose recorded line is the last one of its key was never run again after it was recorded: a later run would have left a
#    later line. If it has earlier lines, those were done and not recorded; and that only where something that runs or records steps
#    was killed between one line and the next.
# 2. A step whose recorded line is not in the ledger never happened.
# 3. A key of the ledger that no journal has was done and forgotten.
"""`prove`: compare what happened with what was recorded."""
from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, TypeAlias

from fusee_mp.cli.demonstration.ledger import Line
from fusee_mp.cli.demonstration.shop import ORDER_STEPS, SHIPMENT_STEPS, Order
from fusee_mp.sdk.client import Client
from fusee_mp.sdk.types import JournalRecord, RunDetail

Lines: TypeAlias = Mapping[str, Sequence[Line]]
Outages: TypeAlias = Sequence[tuple[int, int]]
READERS: Final = 32


@dataclass
class Proof:
    """What was found. `faults` is empty when every claim holds."""

    outages: Outages
    orders: int = 0
    steps: int = 0
    repeated: int = 0
    repeated_after_recorded: int = 0
    timers: int = 0
    signals: int = 0
    children: int = 0
    step_ms: list[float] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


async def prove(
    client: Client, ledger: Lines, acknowledged: Mapping[str, Order], results: Mapping[str, str], outages: Outages,
) -> Proof:
    """Check every acknowledged order, its shipment, and that there is nothing else. `outages`: from each kill until all was well, in ms."""
    proof = Proof(outages=outages)
    unread = iter(acknowledged.values())
    seen: set[str] = set()
    await asyncio.gather(*(_check_orders(proof, client, ledger, unread, results, seen) for _ in range(READERS)))
    proof.faults += [f"{key} was done ({len(ledger[key])} times), and no journal has it" for key in ledger.keys() - seen]
    for kind in ("order", "shipment"):
        found = await client.count({"type": kind})
        if found != len(acknowledged):
            proof.faults.append(f"there are {found} {kind}s, and {len(acknowledged)} were acknowledged")
    return proof


async def _check_orders(
    proof: Proof, client: Client, ledger: Lines, unread: Iterator[Order], results: Mapping[str, str], seen: set[str],
) -> None:
    for order in unread:
        order_run, shipment_run = await client.describe(order.id), await client.describe(order.shipment_id)
        for id, run, steps in ((order.id, order_run, ORDER_STEPS), (order.shipment_id, shipment_run, SHIPMENT_STEPS)):
            if run is None or run.status != "ok":
                proof.faults.append(f"{id} should be there and ok, and is {run.status if run else 'lost'}")
            else:
                seen |= _check_steps(proof, run, steps, ledger)
        if order_run is not None and shipment_run is not None:
            _check_order(proof, order_run, shipment_run, results.get(order.id))


def _check_steps(proof: Proof, detail: RunDetail, steps: Sequence[str], ledger: Lines) -> set[str]:
    recorded = [record for record in detail.journal if record.kind == "step"]
    if tuple(record.name for record in recorded) != tuple(steps):
        found = [record.name for record in recorded]
        proof.faults.append(f"{detail.id} should have recorded the steps {', '.join(steps)}, and has {found}")
    keys = {f"{detail.id}/{detail.number}/{record.fields['op']}": record for record in recorded}
    for key, record in keys.items():
        _check_step(proof, key, record, ledger.get(key, ()))
    return set(keys)


def _check_step(proof: Proof, key: str, record: JournalRecord, lines: Sequence[Line]) -> None:
    proof.steps += 1
    entry, attempt = record.fields["payload"], record.fields["attempt"]
    if entry not in [line.entry for line in lines]:
        proof.faults.append(f"{key} is recorded with entry {entry}, which the ledger does not have")
    elif lines[-1].entry != entry:
        proof.repeated_after_recorded += 1
        proof.faults.append(f"{key} ran again after it had been recorded: entry {entry} is recorded, {lines[-1].entry} came later")
    elif lines[-1].attempt != attempt:
        proof.faults.append(f"{key} was done in attempt {lines[-1].attempt}, and attempt {attempt} is recorded")
    elif len(lines) > 1:
        proof.repeated += 1
        _check_repeats(proof, key, lines)


def _check_repeats(proof: Proof, key: str, lines: Sequence[Line]) -> None:
    for before, after in pairwise(lines):
        if not any(before.at_ms <= end_ms and after.at_ms >= begin_ms for begin_ms, end_ms in proof.outages):
            proof.faults.append(f"{key} ran again ({before.entry}, then {after.entry}) though nothing was killed meanwhile")


def _check_order(proof: Proof, order: RunDetail, shipment: RunDetail, result: str | None) -> None:
    kinds = [record.kind for record in order.journal]
    proof.orders += 1
    proof.timers += kinds.count("fired")
    proof.signals += kinds.count("signal")
    proof.children += order.shard != shipment.shard
    if (kinds.count("fired"), kinds.count("signal"), kinds.count("child_done")) != (1, 1, 1) or order.shard == shipment.shard:
        proof.faults.append(f"{order.id} should have one timer, one signal and one child on another shard, and has {kinds}")
    steps = [record for record in order.journal if record.kind == "step"]
    if not steps or steps[-1].fields["payload"] != result:
        proof.faults.append(f"{order.id} answered {result!r}, and has recorded another result")
    if len(steps) >= 2:
        proof.step_ms.append((steps[1].at - steps[0].at).total_seconds() * 1000)
