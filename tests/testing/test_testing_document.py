"""docs/testing.md: its programs are tests that pass, its commands are commands."""
from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from fusee_mp.cli.main import commands
from fusee_mp.testing.clock import GRACE_S, STUCK_S
from fusee_mp.testing.crashes import CRASHES_MAX

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "testing.md").read_text()
FILES = dict(re.findall(r"^```python\n# (\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
LINES = re.findall(r"^    fusee-mp (.*)$", PAGE, re.MULTILINE)


@pytest.mark.parametrize("option", [[], ["--crash-every-step"]], ids=["plain", "crashing"])
def test_every_program_passes(tmp_path: Path, option: list[str]) -> None:
    assert set(FILES) == {"orders.py", "test_orders.py", "test_crashes.py", "test_replay.py"}
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [
        sys.executable, "-m", "pytest", "-p", "fusee_mp.testing.plugin", "-p", "no:cacheprovider", "-q",
        f"--basetemp={tmp_path / 'temporary'}",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run([*command, *option], check=False, cwd=tmp_path, capture_output=True, text=True, timeout=60, env=environment)
    if option:  # the one that is careless on purpose fails now
        assert done.returncode == 1 and "1 failed, 5 passed" in done.stdout and "test_a_crash_would_show" in done.stdout, done.stdout
    else:
        assert done.returncode == 0 and "6 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("line", LINES)
def test_every_command_is_one(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("data", "journals"):
        (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path)
    name, *arguments = shlex.split(line)
    command = commands.get_command(click.Context(commands), name)
    assert command is not None
    command.make_context(name, arguments)


def test_the_page_and_the_bounds_agree() -> None:
    assert f"after {STUCK_S:g} s" in PAGE and f"every {GRACE_S:g} s" in PAGE and f"more than {CRASHES_MAX:,} records" in PAGE
    assert len(LINES) == 3
