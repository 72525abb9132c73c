"""Cost of folding and of reading, with few and with many runs in the store.

    python benches/store.py [RUNS] [DIRECTORY]

Folds RUNS runs (default 1,000,000) with random IDs, nine in ten of them finished, and prints the cost of a record by kind of work at
both ends, then the time of reads. Figures are wall time of one process on an otherwise idle machine; the disk counts, so name a
directory on the disk that matters.
"""
from __future__ import annotations

import random
import resource
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from time import perf_counter
from typing import Any

from fusee_mp.core import records as r
from fusee_mp.store import Store

BATCH = 64
ROUND = 40_000


class Load:
    """Makes records, batch by batch, and folds them as a keeper does."""

    def __init__(self, store: Store) -> None:
        self.store, self.lsn, self.run, self.at = store, 0, 0, 1_700_000_000_000
        self.rng = random.Random(1)

    def fold(self, label: str, records: Iterable[list[r.RunRecord]]) -> None:
        batches = [list(map(r.encode, batch)) for batch in records]
        count = sum(map(len, batches))
        begun = perf_counter()
        for batch in batches:
            self.store.fold_records(self.lsn + 1, batch)
            self.lsn += len(batch)
            if self.store.is_full:
                self.store.commit()
        self.store.commit()
        if label:
            us = (perf_counter() - begun) / count * 1e6
            print(f"  {label:58s} {us:6.1f} us a record, {us * count / sum(map(len, batches)) * self.per_run:6.1f} us a run", flush=True)

    per_run = 1

    def starts(self, runs: int, make: Callable[[int, str], list[r.RunRecord]]) -> Iterable[list[r.RunRecord]]:
        batch: list[r.RunRecord] = []
        for _ in range(runs):
            self.run += 1
            self.at += 1
            batch += make(self.run, f"order-{self.rng.getrandbits(64):016x}")
            if len(batch) >= BATCH:
                yield batch
                batch = []
        yield batch

    def start(self, run: int, id: str) -> r.Start:
        attributes = f'{{"customer":"c{run % 1000}","amount":{run % 500}}}'.encode()
        return r.Start(run=run, at=self.at, id=id, type=f"type-{run % 5}", input=b'{"n":1}', request=f"q-{id}", attributes=attributes)

    def step(self, run: int) -> r.StepDone:
        return r.StepDone(run=run, at=self.at, op="1", name="charge", attempt=1, status="ok", payload=b'{"ok":true,"id":"ch_12345"}')

    def done(self, run: int) -> r.Done:
        return r.Done(run=run, at=self.at, status="failed" if run % 1000 == 0 else "ok", payload=b'{"ok":true}')

    def quiet(self, run: int) -> r.Quiet:
        return r.Quiet(run=run, at=self.at, due=self.at + 86_400_000)

    def whole(self, run: int, id: str) -> list[r.RunRecord]:
        steps: list[r.RunRecord] = [self.step(run) for _ in range(3)]
        return [self.start(run, id), *steps, self.done(run)]

    def sleeper(self, run: int, id: str) -> list[r.RunRecord]:
        return [self.start(run, id), self.step(run), self.quiet(run)]

    def later(self, runs: Iterable[int], make: Callable[[int], list[r.RunRecord]]) -> Iterable[list[r.RunRecord]]:
        batch: list[r.RunRecord] = []
        for run in runs:
            batch += make(run)
            if len(batch) >= BATCH:
                yield batch
                batch = []
        yield batch


def folding(load: Load) -> None:
    load.per_run = 5
    load.fold("whole runs (start, 3 steps, end)", load.starts(ROUND // 5, load.whole))
    load.per_run = 3
    first = load.run + 1
    load.fold("sleepers (start, step, quiet)", load.starts(ROUND // 3, load.sleeper))
    load.per_run = 2
    half = (first + load.run) // 2
    load.fold("their wake and end, in order", load.later(range(first, half), lambda run: [load.step(run), load.done(run)]))
    load.per_run = 1
    shuffled = list(range(half, load.run))
    load.rng.shuffle(shuffled)
    load.fold("single steps of runs in random order", load.later(shuffled, lambda run: [load.step(run)]))
    long = [load.rng.choice(shuffled) for _ in range(20)]
    load.fold("steps of 20 busy runs", load.later((load.rng.choice(long) for _ in range(ROUND)), lambda run: [load.step(run)]))


def fill(load: Load, runs: int) -> None:
    begun, before = perf_counter(), load.run
    load.per_run = 1
    for left in range(runs, 0, -ROUND):
        amount = min(ROUND, left)
        load.fold("", load.starts(amount * 9 // 10, load.whole))
        load.fold("", load.starts(amount - amount * 9 // 10, load.sleeper))
    seconds = perf_counter() - begun
    print(f"{load.run - before} more runs in {seconds:.0f} s, {seconds / max(1, load.run - before) * 1e6:.1f} us each", flush=True)


def random_ends(load: Load) -> None:
    sleepers = [run for (run,) in load.store.db.execute("select run from run where status = 2 order by random() limit 10000")]
    load.per_run = 2
    load.fold("wake and end of sleepers all over the store", load.later(sleepers, lambda run: [load.step(run), load.done(run)]))


def reading(load: Load) -> None:
    store = load.store
    ids = [id for (id,) in store.db.execute("select id from run order by random() limit 1000")]
    runs = [load.rng.randrange(1, load.run) for _ in range(1000)]
    keys = [f"q-{id}" for id in ids]
    timed("find", [("find", (id,)) for id in ids], store)
    timed("find, unknown ID", [("find", (f"x{i}",)) for i in range(1000)], store)
    timed("request", [("request", (key,)) for key in keys], store)
    timed("fetch", [("fetch", (run,)) for run in runs], store)
    timed("due, first page of 1,000", [("due", (1 << 60,))], store)
    timed("open_runs, first page of 1,000", [("open_runs", ())], store)
    middle = f"r{load.run // 2:x}"
    wheres: list[Any] = [
        None, {"type": "type-3"}, {"status": "ok"}, {"status": "failed"}, {"status": "open"}, {"status": "suspended", "type": "type-1"},
        {"type": "none"}, {"id": ids[0]}, {"customer": "c7"}, {"amount": {"gte": 100, "lt": 101}, "status": "failed"}, {"customer": "none"},
    ]
    for where in wheres:
        timed(f"list 100, {where}", [("list", (where, 100))], store)
    timed("list 100, from the middle", [("list", (None, 100, middle))], store)
    for where in [None, {"status": "failed"}, {"type": "type-3", "status": "ok"}, {"customer": "c7"}]:
        timed(f"count, {where}", [("count", (where,))], store)


def timed(label: str, questions: list[tuple[str, tuple[Any, ...]]], store: Store) -> None:
    times = []
    for method, args in questions:
        begun = perf_counter()
        store.read(method, args)
        times.append((perf_counter() - begun) * 1e6)
    times.sort()
    print(f"  {label:58s} {times[len(times) // 2]:9.0f} us", flush=True)


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory(dir=sys.argv[2] if len(sys.argv) > 2 else None) as directory:
        store = Store.open(Path(directory) / "store.db")
        load = Load(store)
        print("folding into an empty store")
        folding(load)
        fill(load, runs - load.run)
        print(f"folding into a store of {load.run} runs")
        folding(load)
        random_ends(load)
        begun = perf_counter()
        store.commit(full=True)
        print(f"  checkpoint {(perf_counter() - begun) * 1e3:.1f} ms, WAL {store.wal_bytes() >> 20} MiB")
        print(f"reading a store of {load.run} runs, {Path(store.path).stat().st_size >> 20} MiB")
        reading(load)
        begun = perf_counter()
        store.close()
        store = Store.open(Path(directory) / "store.db")
        print(f"  open again {(perf_counter() - begun) * 1e3:.0f} ms, {len(store.filter)} IDs in {store.filter.layers} layers")
        store.close()
    print(f"largest memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MiB")


main()
