"""SIGKILL while runs continue as new and are reset: every acknowledged signal counts once, whichever run it came to."""
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
DRIVER = Path(__file__).with_name("chain_driver.py")


def driver(directory: Path, first: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(DRIVER), str(directory), str(first)],
        stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def test_no_acknowledged_signal_is_lost_or_counted_twice_over_crashes(tmp_path: Path) -> None:
    acknowledged = 0
    for lines in (1, 40, 3, 90, 17):
        with driver(tmp_path / "data", acknowledged) as process:
            assert process.stdout is not None
            for _ in range(lines):
                acknowledged = int(process.stdout.readline()) + 1
            process.kill()
            for line in process.stdout:
                acknowledged = int(line) + 1
    last = driver(tmp_path / "data", -1)
    out, _ = last.communicate(timeout=60)
    chained, reset = map(int, out.split())
    # One that was under way at a kill came again, with its request ID, from the next process; that of the last kill did not.
    assert acknowledged <= chained <= acknowledged + 1 and acknowledged + 1 <= reset <= acknowledged + 2
