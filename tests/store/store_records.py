"""Records for the tests of the store, and what a store holds in a form that two stores can be compared by."""
from __future__ import annotations

import random
from typing import Any

from fusee_mp.core import records as r
from fusee_mp.core.idfilter import key
from fusee_mp.core.schedule import Schedule, ScheduleRule
from fusee_mp.core.schedule_changes import ScheduleChange
from fusee_mp.core.timing import Every
from fusee_mp.store import Store
from fusee_mp.store.write import CHAIN, unpack_lsns

_TABLES = ("type", "request", "outbox", "peer", "schedule", "window", "event", "windows", "answer")
PARENT = r.Parent(2, "parent", 9, "1/4")


def start(run: int = 1, id: str = "order-1", **fields: Any) -> r.Start:
    return r.Start(**{"run": run, "at": 1000 + run, "id": id, "type": "checkout", "input": b"{}", **fields})


def step(run: int = 1, **fields: Any) -> r.StepDone:
    return r.StepDone(**{"run": run, "at": 2000, "op": "1", "name": "charge", "attempt": 1, "status": "ok", "payload": b"1", **fields})


def quiet(run: int = 1, due: int | None = 5000, **fields: Any) -> r.Quiet:
    return r.Quiet(run=run, at=3000, due=due, **fields)


def done(run: int = 1, status: r.FinalStatus = "ok", **fields: Any) -> r.Done:
    return r.Done(**{"run": run, "at": 4000, "status": status, "payload": b'"result"', **fields})


def attributes(run: int, values: bytes) -> r.Attributes:
    return r.Attributes(run=run, at=2500, op="2", values=values)


def folded(*records: r.Record, store: Store | None = None) -> Store:
    """A store in memory (or the given one) with these records after what it holds, committed as one batch."""
    store = store or Store.open(":memory:")
    store.fold_records(store.applied_lsn + 1, map(r.encode, records))
    store.commit()
    return store


def contents(store: Store) -> dict[str, Any]:
    """Everything that must not depend on how the log was cut: all rows, journals instead of chunks, IDs that the filter must know."""
    db = store.db
    columns = [row[1] for row in db.execute("pragma table_info(run)") if row[1] != "chunk"]
    runs = db.execute(f"select {', '.join(columns)} from run order by run").fetchall()
    return {
        "runs": runs,
        "attributes": db.execute("select name, value, run from attribute").fetchall(),
        "journals": [_journal(store, row[0]) for row in runs],
        "chunks of no run": db.execute("select run from chunk where run not in (select run from run)").fetchall(),
        "tally": db.execute("select * from tally where n <> 0 order by type, status").fetchall(),
        "meta": db.execute("select applied_lsn, epoch, next_run, strays, stray_lsn from meta").fetchone(),
        "unknown IDs": [row for row in db.execute("select id from run") if not store.filter.maybe(key(row[0]))],
    } | {table: db.execute(f"select * from {table} order by 1, 2").fetchall() for table in _TABLES}


def _journal(store: Store, run: int) -> tuple[list[int], bytes]:
    chunks = store.db.execute(CHAIN, (run,)).fetchall()
    return [lsn for _, first, offsets, _ in chunks for lsn in unpack_lsns(first, offsets)], b"".join(chunk[3] for chunk in chunks)


def history(seed: int, length: int) -> list[r.Record]:
    """A log as a shard might write it, with some records that it should not: of every kind, over a few runs."""
    return [record for record in _History(random.Random(seed)).make(length) if record is not None]


class _History:
    def __init__(self, rng: random.Random) -> None:
        self.rng, self.runs, self.at = rng, 0, 1000
        self.sent: dict[int, int] = {}
        self.taken: dict[int, int] = {}
        self.windows: list[str] = []

    def make(self, length: int) -> list[r.Record | None]:
        actions = [self.begin, self.of_run, self.of_run, self.of_run, self.of_shard]
        return [self.rng.choice(actions)() for _ in range(length)]

    def tick(self) -> int:
        self.at += self.rng.randrange(3)
        return self.at

    def source(self) -> r.Source | None:
        if self.rng.random() < 0.5:
            return None
        return self.next_source()

    def next_source(self) -> r.Source:
        shard = self.rng.randrange(3)
        self.taken[shard] = self.taken.get(shard, 0) + 1
        return r.Source(shard, self.taken[shard])

    def message(self) -> dict[str, int]:
        to = self.rng.randrange(3)
        self.sent[to] = self.sent.get(to, 0) + 1
        return {"to": to, "no": self.sent[to]}

    def request(self) -> str:
        return self.rng.choice(["", f"q{self.rng.randrange(1000)}"])

    def begin(self) -> r.Record:
        if self.rng.random() < 0.9 or not self.runs:
            self.runs += 1
        return start(
            self.runs, f"id-{self.rng.randrange(6)}", at=self.tick(), type=f"t{self.rng.randrange(3)}", request=self.request(),
            source=self.source(), attributes=self.rng.choice([None, b'{"a":1,"b":null}']), parent=self.rng.choice([None, PARENT]),
        )

    def of_run(self) -> r.Record:
        run, at, rng = self.rng.randrange(self.runs + 2), self.tick(), self.rng
        makers = [
            lambda: step(run, at=at), lambda: step(run, at=at),
            lambda: quiet(run, rng.choice([None, at, at + 5]), parked=rng.random() < 0.3),
            lambda: quiet(run, at + 9), lambda: r.Attempt(run, at, "1", "n", 1, b"f", at + 10), lambda: r.Timer(run, at, "1", "t", at + 20),
            lambda: r.Fired(run, at, "1"), lambda: r.Signal(run, at, "go", b"1", self.request(), self.source()),
            lambda: r.Child(run, at, "3", id="kid", type="t", input=b"", **self.message()),
            lambda: r.ChildDone(run, at, "3", "ok", b"", self.source()),
            lambda: r.Send(run, at, "4", kind="signal", id="other", **self.message()),
            lambda: r.CancelRequested(run, at, "why", self.request(), self.source()),
            lambda: r.Update(run, at, "add", f"u-{at}", b"5", self.request()),
            lambda: r.UpdateDone(run, at, "u1/1", "add", "u-1", "ok", b"5"),
            lambda: r.Heartbeat(run, at, "1", "n", 1, b"1"), lambda: r.Awaiting(run, at, "6", "n", 1),
            lambda: r.Completed(run, at, "6", "n", 1, "ok", b"1", self.request()), lambda: r.Paused(run, at, "why", "1", self.request()),
            lambda: r.Resumed(run, at, self.request()),
            lambda: done(run, rng.choice(["ok", "failed", "reset"]), at=at, request=self.request(), source=self.source()),
            lambda: done(run, "cancelled", at=at, parent=PARENT, **self.message()),
            lambda: r.Quarantined(run, at, "nondeterminism", "asked for other", 3), lambda: r.Unquarantined(run, at),
            lambda: r.Deleted(run, at, self.request(), rng.random() < 0.5), lambda: r.Patched(run, at, "p"),
            lambda: r.Inherited(run, at, "kid", "t", "cancel", 1, "3"), lambda: r.Child(run, at, "3", -1, 0, "kid", "t", b"", started_by=1),
            lambda: done(run, "ok", at=at, request=self.request(), history=False),
            lambda: attributes(run, rng.choice([b'{"a":2}', b'{"c":"x"}', b'{"a":null}'])),
        ]
        return rng.choice(makers)()

    def of_shard(self) -> r.Record:
        to = self.rng.randrange(3)
        return self.rng.choice([
            lambda: r.Grant(self.tick(), self.rng.randrange(9), "w"), lambda: r.Skipped(self.tick(), self.next_source(), "gone"),
            lambda: r.Acked(to, self.rng.randrange(self.sent.get(to, 0) + 1)),
            lambda: r.Refused(self.tick(), "kid", parent=PARENT, failure=b"", source=self.next_source(), **self.message()),
            lambda: r.StartAsked(self.tick(), id="kid@5", type="t", input=b"1", **self.message()),
            self.of_schedule, self.of_schedule, self.of_window, self.of_window, self.of_window,
        ])()

    def of_schedule(self) -> r.Record:
        id, at, rng = f"s{self.rng.randrange(2)}", self.tick(), self.rng
        begins = [r.Begin(instant=at, **self.message()) for _ in range(rng.randrange(2))]
        ends = [r.End(instant=at - 1, kind="cancel", **self.message()) for _ in range(rng.randrange(2))]
        change = ScheduleChange(at, False, at, 0, None, [at], [at - 1], [], [(at, at)], [at - 1], [])
        return rng.choice([
            lambda: r.ScheduleSet(at, id, "t", b"1", "UTC", Schedule(id, ScheduleRule(Every(1)), at).now, begins, ends, self.request(),
                                  b"x"),
            lambda: r.ScheduleMoved(at, id, change, begins, ends, self.request(), b"y", self.source()),
            lambda: r.ScheduleMoved(at, id, change, begins), lambda: r.ScheduleMoved(at, id, change),
            lambda: r.ScheduleDeleted(at, id, self.request()),
        ])()

    def of_window(self) -> r.Record:
        at, rng = self.tick(), self.rng
        if self.windows and rng.random() < 0.3:
            return r.WindowsClosed(at, [r.Closing(self.windows.pop(), **self.message())])
        kind = rng.choice(["debounce", "batch"])
        known = [window for window in self.windows if window.startswith(kind)]
        window = rng.choice(known) if known and rng.random() < 0.7 else f"{kind}@{at}"
        closed = []
        if rng.random() < 0.2:
            closed = [r.Closing(window, **self.message())]
            self.windows = [other for other in self.windows if other != window]
        elif window not in self.windows:
            self.windows.append(window)
        return r.Gathered(at, kind, "t", kind, window, at + 9, b"%d" % at, rng.choice(["", f"e{at}"]), closed, self.request(), b"z")
