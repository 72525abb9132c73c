"""Children and signals from shard to shard while the workers that run them are killed, frozen and cut off at random moments.

Every result is right, every body ran once for its recorded attempt (see torture_checks.py), every signal was taken once.

300 children and 300 signals in 15 s; with FUSEE_LONG=1 10,000 of each in 10 minutes. The seed of a run is printed, and FUSEE_SEED=
takes it again.
"""
from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from fusee_mp import Client, FuseeError, RunDetail, shard_of
from tests.crash.tormenting import Tormentor, background, harried
from tests.crash.torture_checks import faults_of_bodies, late_bodies, recorded_attempts, unexcused
from tests.crash.torture_worker import bodies
from tests.server.loopback import id_on
from tests.server.tree import Tree, serving

SHARDS: Final = 4
WORKERS: Final = 3
IS_LONG: Final = bool(os.environ.get("FUSEE_LONG"))
COUNT: Final = 10_000 if IS_LONG else 300
DURATION_S: Final = 600.0 if IS_LONG else 15.0
FAULT_EVERY_S: Final = 1.0 if IS_LONG else 0.5
REVOKE_S: Final = 5.0 if IS_LONG else 1.5
LIVENESS: Final = {} if IS_LONG else {"ping_ms": 250, "revoke_ms": 1_500}
NOTES_EACH: Final = 50
PATIENCE_S: Final = 60.0


@dataclass
class Plan:
    """A caller, the child and the ledger that it speaks with, each on another shard than its own, and the value it passes on."""

    caller: str
    child: str
    ledger: str
    value: int


class Load:
    """Ledgers that wait, and callers that are started at an even pace."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.ledgers = {id_on(number % SHARDS, SHARDS, "ledger"): list[int]() for number in range(-(-COUNT // NOTES_EACH))}
        self.plans = list(self._plan())
        self.wrong: list[str] = []

    def _plan(self) -> Iterator[Plan]:
        ledgers = list(self.ledgers)
        for value in range(COUNT):
            ledger = ledgers[value % len(ledgers)]
            self.ledgers[ledger].append(value)
            caller = id_on(set(range(SHARDS)) - {shard_of(ledger, SHARDS)}, SHARDS, "caller")
            yield Plan(caller, id_on(set(range(SHARDS)) - {shard_of(caller, SHARDS)}, SHARDS, "child"), ledger, value)

    async def run(self) -> None:
        """All of it; returns when every result is there."""
        for ledger, values in self.ledgers.items():  # a note to a run that is not there yet would be dropped
            await self._client.start("ledger", ledger, len(values))
        async with asyncio.TaskGroup() as group:
            for ledger, values in self.ledgers.items():
                group.create_task(self._expect(self._client.handle(ledger).result(), ledger, values, sorted))
            for plan in self.plans:
                group.create_task(self._expect(self._called(plan), plan.caller, [plan.value, 2 * plan.value]))
                await asyncio.sleep(DURATION_S / COUNT)

    async def _called(self, plan: Plan) -> Any:
        return await self._client.execute("caller", plan.caller, [plan.child, plan.ledger, plan.value])

    async def _expect(self, result: Coroutine[Any, Any, Any], id: str, expected: list[int], order: Callable[[Any], Any] = list) -> None:
        try:
            async with asyncio.timeout(DURATION_S + PATIENCE_S):
                found = await result
        except (FuseeError, TimeoutError) as e:
            self.wrong.append(f"{id}: {e!r}")
        else:
            if order(found) != expected:
                self.wrong.append(f"{id}: expected {expected}, found {found}")

    @property
    def ids(self) -> list[str]:
        return [*self.ledgers, *(plan.caller for plan in self.plans), *(plan.child for plan in self.plans)]


def test_whatever_happens_to_workers_every_message_between_shards_counts_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seed = int(os.environ.get("FUSEE_SEED", time.time_ns() % 1_000_000))
    with capsys.disabled():
        print(f"\nseed {seed}")
    path = tmp_path / "bodies"
    with serving(tmp_path / "data", shards=SHARDS, **LIVENESS) as tree:
        load, faults, thaws, runs = asyncio.run(torture(tree, path, random.Random(seed)))
    found = bodies(path)
    records = {attempt: lsn for run in runs for attempt, lsn in recorded_attempts(run).items()}
    broken, late = faults_of_bodies(found, records), late_bodies(found)
    repeated = messages_repeated(runs)
    with capsys.disabled():
        print(f"faults: {', '.join(f'{kind} {count}' for kind, count in sorted(faults.items()))};", end=" ")
        print(f"leases {len({(body.shard, body.epoch) for body in found})}; children {COUNT}; signals {COUNT};", end=" ")
        print(f"bodies {len(found)} of {len(records)} recorded attempts; faults of bodies {len(broken)};", end=" ")
        print(f"wrong results {len(load.wrong)}; repeated messages {len(repeated)};", end=" ")
        print(f"bodies seen after the next lease began {len(late)}; slowest run {slowest(runs):.1f} s")
    assert len(records) > 3 * COUNT and sum(faults.values()) > DURATION_S / FAULT_EVERY_S / 4, "this was too little to show anything"
    assert not (load.wrong or broken or repeated), (load.wrong[:5], broken[:5], repeated[:5])
    assert not unexcused(late, thaws), (late, thaws)


class Tortured(NamedTuple):
    load: Load
    faults: Counter[str]
    thaws: list[tuple[int, float]]
    runs: list[RunDetail]


async def torture(tree: Tree, path: Path, draw: random.Random) -> Tortured:
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client.connect(tree.address))
        workers = await stack.enter_async_context(harried(WORKERS, tree.address, path, "tests.crash.torture_worker"))
        tormentor, load = Tormentor(workers, draw, every_s=FAULT_EVERY_S, most_s=2 * REVOKE_S), Load(client)
        async with background(tormentor.torment()):
            await load.run()
        return Tortured(load, tormentor.done, [thaw for worker in workers for thaw in worker.surprised], await described(client, load.ids))


async def described(client: Client, ids: list[str]) -> list[RunDetail]:
    runs = []
    for id in ids:
        run = await client.describe(id)
        assert run is not None, f"{id} is missing"
        runs.append(run)
    return runs


def slowest(runs: list[RunDetail]) -> float:
    """Of those that wait for nobody but each other."""
    return max((run.finished - run.started).total_seconds() for run in runs if run.finished is not None and run.workflow != "ledger")


def messages_repeated(runs: list[RunDetail]) -> list[str]:
    """Runs that took a message twice: callers have one child, ledgers each value once."""
    found = []
    for run in runs:
        kinds = Counter(record.kind for record in run.journal)
        notes = [record.fields["payload"] for record in run.journal if record.kind == "signal"]
        if kinds["child_done"] > 1 or kinds["child"] > 1 or len(set(notes)) < len(notes):
            found.append(f"{run.id}: {dict(kinds)}")
    return found
