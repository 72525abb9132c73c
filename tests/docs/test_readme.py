"""The program of the README keeps what the README says of it."""
from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

from fusee_mp import FuseeError, Journal, export
from tests.cli.harness import running, serving

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60


def program(number: int) -> str:
    found: list[str] = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert len(found) == 2
    return found[number]


def begun(directory: Path) -> subprocess.Popen[str]:
    (directory / "first.py").write_text(program(0))
    return subprocess.Popen([sys.executable, "first.py"], cwd=directory, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True,
                            stdout=subprocess.PIPE)


def journals(directory: Path) -> list[Journal]:
    try:
        return export(directory / "data")
    except FuseeError:  # not there yet
        return []


def steps(found: list[Journal]) -> int:
    return sum(record.kind == "step" for journal in found for record in journal.records)


def test_it_goes_on_after_a_kill_and_gives_the_same_receipt_ever_after(tmp_path: Path) -> None:
    killed = begun(tmp_path)
    end = time.monotonic() + PATIENCE_S
    while not steps(journals(tmp_path)):
        assert killed.poll() is None and time.monotonic() < end
        time.sleep(0.02)
    killed.kill()
    assert killed.communicate(timeout=PATIENCE_S)[0] == ""  # It slept.
    for _ in range(2):
        again = begun(tmp_path)
        assert (again.communicate(timeout=PATIENCE_S)[0], again.returncode) == ("charged 10\n", 0)
    assert len(found := journals(tmp_path)) == 1 and steps(found) == 1


def test_its_client_runs_as_it_stands_beside_a_worker_of_the_examples(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as (_, address), running("worker", "approval", f"--address={address}", cwd=ROOT / "examples") as worker:
        assert worker.line()
        (tmp_path / "client.py").write_text(client := program(1).replace("127.0.0.1:7410", address))
        ended = subprocess.run([sys.executable, "client.py"], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True,
                               capture_output=True, timeout=PATIENCE_S, check=False)
        assert ended.stdout.strip() == client.split("# ")[1].split("\n")[0] != "", ended.stderr
