"""The demonstration: that it holds, that its proof would notice if it did not, and that it leaves nothing behind."""
from __future__ import annotations

import asyncio
import dataclasses
import io
import os
import signal
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import psutil
import pytest

from fusee_mp.cli.demonstration.ledger import Ledger, Line, read_ledger
from fusee_mp.cli.demonstration.proof import Proof, prove
from fusee_mp.cli.demonstration.shop import ORDER_STEPS, SHIPMENT_STEPS, Order
from fusee_mp.cli.demonstration.show import Show, bar
from fusee_mp.sdk.client import Client
from fusee_mp.sdk.types import JournalRecord, RunDetail
from tests.cli.harness import Running, until
from tests.processes import is_alive

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def test_the_demonstration_loses_nothing_while_everything_is_killed(tmp_path: Path) -> None:
    demo = Running("demo", "--orders=200", "--json", TMPDIR=str(tmp_path))
    answer = demo.end()
    assert (answer.code, answer.err) == (0, "")
    summary = answer.json
    assert summary["faults"] == [] and summary["starts_lost"] == summary["steps_repeated_after_recorded"] == 0
    assert summary["orders"] == summary["starts_acknowledged"] >= 200
    assert summary["steps"] == 5 * summary["orders"]
    assert [kill["what"] for kill in summary["kills"]] == ["worker", "shard", "keeper", "server"]
    assert all(kill["under_way"] > 0 for kill in summary["kills"]), summary["kills"]
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_ends_it_and_leaves_nothing(tmp_path: Path) -> None:
    demo = Running("demo", "--orders=100000", TMPDIR=str(tmp_path))
    while "orders:" not in demo.line():
        pass
    family = psutil.Process(demo.pid).children(recursive=True)
    assert len(family) > 5
    demo.process.send_signal(signal.SIGINT)
    assert demo.end().code == 130
    assert not any(map(is_alive, family))
    assert list(tmp_path.iterdir()) == []


def test_its_processes_do_not_outlive_it_when_it_is_killed(tmp_path: Path) -> None:
    demo = Running("demo", "--orders=100000", TMPDIR=str(tmp_path))
    while "orders:" not in demo.line():
        pass
    family = psutil.Process(demo.pid).children(recursive=True)
    demo.process.kill()
    demo.end()
    until(lambda: not any(map(is_alive, family)))


# The proof, on a story that is made up.


def run_of(id: str, shard: int, steps: tuple[str, ...], others: tuple[str, ...] = ()) -> RunDetail:
    kinds = [*(("step", name) for name in steps), *((kind, "") for kind in others)]
    journal = [
        JournalRecord(kind=kind, lsn=place, seq=place, name=name, at=BEGAN + timedelta(milliseconds=place),
                      fields={"op": str(place), "attempt": 1, "payload": f"{id}-{name}"} if kind == "step" else {})
        for place, (kind, name) in enumerate(kinds, 1)
    ]
    return RunDetail(id=id, number=7, workflow="order", status="ok", is_open=False, shard=shard, started=BEGAN, journal=journal)


class Story:
    """One order that went well; each test changes what it is about."""

    def __init__(self) -> None:
        self.runs = {"o": run_of("o", 0, ORDER_STEPS, ("fired", "signal", "child_done")), "s": run_of("s", 1, SHIPMENT_STEPS)}
        self.ledger = {
            f"{run.id}/7/{record.fields['op']}": [Line(1, record.fields["payload"], 1000)]
            for run in self.runs.values() for record in run.journal if record.kind == "step"
        }
        self.results = {"o": "o-confirm"}
        self.count_ = 1
        self.outages = [(500, 1500)]

    async def describe(self, id: str) -> RunDetail | None:
        return self.runs.get(id)

    async def count(self, where: dict[str, Any]) -> int:
        return self.count_

    def change(self, id: str, **changes: Any) -> None:
        self.runs[id] = dataclasses.replace(self.runs[id], **changes)

    def proof(self) -> Proof:
        return asyncio.run(prove(cast(Client, self), self.ledger, {"o": Order("o", "s")}, self.results, self.outages))


def test_the_proof_accepts_what_went_well_and_what_was_repeated_before_it_was_recorded() -> None:
    story = Story()
    story.ledger["o/7/2"].insert(0, Line(1, "done and then killed", 400))
    proof = story.proof()
    assert (proof.faults, proof.orders, proof.steps, proof.repeated, proof.repeated_after_recorded) == ([], 1, 5, 1, 0)


def again(story: Story) -> None:
    story.ledger["o/7/2"].append(Line(1, "once more", 1100))


def again_without_a_kill(story: Story) -> None:
    story.ledger["o/7/2"].insert(0, Line(1, "done and not killed", 900))
    story.outages = [(1200, 1500), (100, 800)]


def never(story: Story) -> None:
    del story.ledger["o/7/2"]


def other_attempt(story: Story) -> None:
    story.ledger["o/7/2"] = [Line(2, "o-charge", 1000)]


def forgotten(story: Story) -> None:
    story.ledger["o/7/99"] = [Line(1, "x", 1000)]


def lost(story: Story) -> None:
    del story.runs["o"]


def open_still(story: Story) -> None:
    story.change("s", status="running")


def step_left_out(story: Story) -> None:
    story.change("o", journal=[record for record in story.runs["o"].journal if record.name != "charge"])


def signal_twice(story: Story) -> None:
    story.change("o", journal=[*story.runs["o"].journal, *(record for record in story.runs["o"].journal if record.kind == "signal")])


def same_shard(story: Story) -> None:
    story.change("s", shard=0)


def wrong_answer(story: Story) -> None:
    story.results["o"] = "o-charge"


def one_more_run(story: Story) -> None:
    story.count_ = 2


@pytest.mark.parametrize(("spoil", "words"), [
    (again, "ran again after it had been recorded"), (again_without_a_kill, "though nothing was killed"),
    (never, "the ledger does not have"), (other_attempt, "attempt 1 is recorded"),
    (forgotten, "no journal has it"), (lost, "is lost"), (open_still, "is running"), (step_left_out, "should have recorded the steps"),
    (signal_twice, "one signal"), (same_shard, "another shard"), (wrong_answer, "another result"), (one_more_run, "there are 2 orders"),
])
def test_the_proof_notices(spoil: Callable[[Story], None], words: str) -> None:
    story = Story()
    spoil(story)
    assert words in " ".join(story.proof().faults)


# Its parts.


def test_the_ledger_keeps_every_line_in_order_also_from_two_writers(tmp_path: Path) -> None:
    async def write() -> list[str]:
        ledgers = [Ledger(tmp_path / "ledger") for _ in range(2)]
        entries = [await ledgers[number % 2].write("a/1/1", number + 1) for number in range(4)]
        entries += await asyncio.gather(*(ledgers[0].write(f"b/1/{number}", 1) for number in range(50)))
        for ledger in ledgers:
            ledger.close()
        return entries

    entries = asyncio.run(write())
    found = read_ledger(tmp_path / "ledger")
    assert [(line.attempt, line.entry) for line in found["a/1/1"]] == list(enumerate(entries[:4], 1))
    assert len(found) == 51 and len(set(entries)) == 54


def test_progress_is_plain_lines_where_there_is_no_terminal() -> None:
    out = io.StringIO()
    Show(out).say("something happened")
    assert out.getvalue().endswith("s  something happened\n") and "\033" not in out.getvalue()


def test_progress_is_a_living_line_on_a_terminal() -> None:
    ours, theirs = os.openpty()

    async def watch(out: Any) -> str:
        show, seen = Show(out), ""
        async with show.progress("orders", lambda: 30, 60):
            while "30 orders" not in seen:
                seen += await asyncio.to_thread(lambda: os.read(ours, 10_000).decode())
        show.say("done")
        while "done" not in seen:
            seen += os.read(ours, 10_000).decode()
        return seen

    with os.fdopen(theirs, "w") as out:
        seen = asyncio.run(watch(out))
    os.close(ours)
    assert f"\r\033[K{bar(30, 60)} 30 orders" in seen and seen.rstrip().endswith("done")


@pytest.mark.parametrize(("count", "filled"), [(0, 0), (30, 15), (60, 30), (90, 30)])
def test_the_bar_is_full_at_the_end_and_beyond(count: int, filled: int) -> None:
    assert bar(count, 60) == f"[{'#' * filled}{'.' * (30 - filled)}]"
