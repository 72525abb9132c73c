"""An embedded engine is killed at any moment, again and again. In the end: nothing acknowledged is missing, no reported result has
changed, no idempotency key was used for two inputs, and every run comes to its end."""
from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

DRIVER = Path(__file__).with_name("crash_driver.py")
ROOT = Path(__file__).parents[2]
ROUNDS = 200 if os.environ.get("FUSEE_LONG") else 30
LINES = 2  # directories that are worked on side by side


class Line:
    """One directory and what its clients were told."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.directory = directory
        self.drawn = random.Random(seed)
        self.notes = directory / "notes"
        self.begun: dict[str, None] = {}
        self.told: Counter[str] = Counter()
        self.results: dict[str, str] = {}
        self.faults: list[str] = []

    def command(self, last: str) -> list[str]:
        first = max((int(id[1:]) for id in self.begun), default=-1) + 1
        unfinished = [id for id in self.begun if id not in self.results]
        return [sys.executable, str(DRIVER), str(self.directory / "data"), str(self.notes), str(first), last, *unfinished]

    def round(self) -> None:
        """Start the engine, kill it, or first one of its helpers, at some moment."""
        with self.process("-") as process:
            reader = threading.Thread(target=self.read, args=(process,))
            reader.start()
            if self.drawn.random() < 0.8:
                self.wait_until_open(process)
            if self.drawn.random() < 0.3:
                time.sleep(self.drawn.uniform(0, 0.3))
                self.kill_a_helper(process)
            time.sleep(self.drawn.uniform(0, 0.5))
            self.told["killed while open" if self.is_open else "killed while opening"] += 1
            process.send_signal(signal.SIGKILL)
            process.wait()
            reader.join()

    def process(self, last: str) -> subprocess.Popen[str]:
        self.is_open = False
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.Popen(self.command(last), stdout=subprocess.PIPE, text=True, env=environment)

    def wait_until_open(self, process: subprocess.Popen[str]) -> None:
        deadline = time.monotonic() + 60
        while not self.is_open:
            assert process.poll() is None, "the engine does not open"
            assert time.monotonic() < deadline, "the engine takes too long to open"
            time.sleep(0.005)

    def kill_a_helper(self, process: subprocess.Popen[str]) -> None:
        try:
            helpers = psutil.Process(process.pid).children()
            self.drawn.choice(helpers).kill()
            self.told["helper killed"] += 1
        except (IndexError, psutil.Error):
            pass

    def read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if not line.endswith("\n"):
                return  # cut off by the kill
            self.hear(*line.split())

    def hear(self, what: str, id: str = "", *values: str) -> None:
        self.told[what] += 1
        if what == "open":
            self.is_open = True
        if what in ("started", "signalled"):
            self.begun[id] = None
        if what == "result":
            self.result(id, " ".join(values))

    def result(self, id: str, values: str) -> None:
        drawn, got, doubled, extra = values.split()
        if (got, extra) != (id[1:], "None") or int(doubled) != 2 * int(drawn):
            self.faults.append(f"{id} ended with {values}")
        if self.results.setdefault(id, values) != values:
            self.faults.append(f"{id} was reported as {self.results[id]}, then as {values}")

    def finish(self) -> None:
        """Drive what is left, without a kill, and ask for every result again."""
        known, before = self.results, list(self.begun)
        self.results = {}
        with self.process("0") as process:
            try:
                self.read(process)
                process.wait(120)
            finally:
                process.kill()
        assert process.returncode == 0, "the last engine did not end by itself"
        self.faults += [f"{id} was begun and never ended" for id in before if id not in self.results]
        self.faults += [f"{id} was reported as {known[id]}, at last as {self.results.get(id)}" for id in known
                        if self.results.get(id) != known[id]]

    def inputs(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for line in self.notes.read_text().splitlines():
            key, _, text = line.partition("\t")
            found.setdefault(key, set()).add(text)
        return found


def play(directory: Path, seed: int) -> Line:
    directory.mkdir()
    line = Line(directory, seed)
    for _ in range(ROUNDS // LINES):
        line.round()
    line.finish()
    return line


def test_an_engine_that_is_killed_at_any_moment_keeps_every_promise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ThreadPoolExecutor(LINES) as pool:
        lines = list(pool.map(lambda n: play(tmp_path / f"line{n}", seed=n), range(LINES)))
    told: Counter[str] = sum((line.told for line in lines), Counter())
    inputs = [inputs for line in lines for inputs in line.inputs().values()]
    two_inputs = [found for found in inputs if len(found) > 1]
    faults = [fault for line in lines for fault in line.faults]
    with capsys.disabled():
        print(f"\n{ROUNDS} rounds: {told['killed while open']} kills while open, {told['killed while opening']} while opening,"
              f" {told['helper killed']} of helpers; {told['started']} starts, {told['signalled']} signals, {told['result']} results told;"
              f" {len(inputs)} keys; faults: {len(faults)}, keys with two inputs: {len(two_inputs)}")
    assert faults == [] and two_inputs == []
    assert told["result"] > 10 * LINES and len(inputs) > 50 * LINES, "the rounds did some work"
