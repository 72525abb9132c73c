"""The watch over what tests leave behind sees each kind of it."""
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def session(directory: Path, body: str) -> subprocess.CompletedProcess[str]:
    """Run one test in a session of its own, under the very conftest of this project."""
    tests = directory / "tests"
    tests.mkdir()
    for name in ("conftest.py", "leaks.py", "behaviours.py"):
        source = (ROOT / "tests" / name).read_text().replace("PATIENCE_SECONDS = 10.0", "PATIENCE_SECONDS = 0.2")
        (tests / name).write_text(source)
    (tests / "test_it.py").write_text(f"import os, subprocess, sys, tempfile\nkept = []\ndef test_it():\n    {body}\n")
    (directory / "setup.cfg").write_text("[tool:pytest]\npythonpath = .\n")
    temporary = directory / "temporary"
    temporary.mkdir()
    return subprocess.run([sys.executable, "-m", "pytest", "-q", "tests"], cwd=directory, env={**os.environ, "TMPDIR": str(temporary)},
                          capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(("body", "said"), [
    ("subprocess.Popen(['sleep', '60'])", "process"),
    ("subprocess.run(['sh', '-c', 'setsid sleep 60 > /dev/null 2>&1 &'])", "sleep 60"),
    ("kept.append(os.memfd_create('fusee-test'))", "shared memory"),
    ("tempfile.mkdtemp()", "file"),
])
def test_a_session_that_leaves_something_behind_fails_and_says_what(tmp_path: Path, body: str, said: str) -> None:
    done = session(tmp_path, body)
    assert done.returncode == 1, done.stdout
    assert "the tests left behind" in done.stdout
    assert said in done.stdout


def test_a_session_that_tidies_up_passes_and_leaves_no_directory(tmp_path: Path) -> None:
    done = session(tmp_path, "assert subprocess.run(['true']).returncode == 0; os.close(os.memfd_create('fusee-test'))")
    assert done.returncode == 0, done.stdout
    assert list((tmp_path / "temporary").iterdir()) == []
