"""Journals of every release replay on every Python."""
from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import fusee_mp
from fusee_mp import Journal, Replayer
from tests.histories.replay import HISTORIES
from tests.histories.workflows import WORKFLOWS

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
NEEDS = ("crc32c", "msgspec", "typing_extensions")
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fusee-mp-tests"
RUNNING = f"{sys.version_info.major}.{sys.version_info.minor}"


def test_this_release_has_a_journal_of_every_workflow() -> None:
    kept = {path.stem for path in HISTORIES if path.parents[1].name == fusee_mp.__version__}
    assert {definition.name for definition in WORKFLOWS} - {"small"} <= kept, "run python -m tests.histories.write"


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: f"{path.parents[1].name}/{path.parent.name}/{path.stem}")
def test_a_kept_journal_replays(path: Path) -> None:
    replay = Replayer(workflows=WORKFLOWS).replay(Journal.read(path))
    assert (replay.ok, replay.finished, replay.error) == (True, True, None)


def test_a_kept_journal_names_no_place_of_the_machine_that_wrote_it() -> None:
    for path in HISTORIES:
        assert 'File \\"/' not in path.read_text().replace('\\\\\\"', '\\"'), path


@pytest.mark.parametrize("seed", ["0", "1", "4711"])
def test_every_kept_journal_replays_whatever_the_order_of_sets(seed: str) -> None:
    """G01: in a fresh process, whose sets of tasks and of texts have another order than those of the process that wrote it."""
    done = replayed_by(sys.executable, PYTHONHASHSEED=seed)
    assert done.returncode == 0 and f"{len(HISTORIES)} journals, 0 differ" in done.stdout, done.stdout + done.stderr


def replayed_by(python: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, "-m", "tests.histories.replay"], check=False, cwd=ROOT, capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", **environment},
    )


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_every_kept_journal_replays_on_each_python_of_this_machine(version: str) -> None:
    if version == RUNNING:
        pytest.skip("it is the one that runs the tests")
    done = replayed_by(prepared(interpreter(version), version))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(HISTORIES)} journals, 0 differ, on {version}." in done.stdout


def interpreter(version: str) -> str:
    """A CPython of this version, on the path or where pyenv puts it; skips the test when there is none."""
    places = [shutil.which(f"python{version}"), *map(str, sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python")))]
    for place in filter(None, places):
        if works(place, f"import sys; sys.exit(sys.version[:{len(version) + 1}] != '{version}.')"):
            return place
    pytest.skip(f"no CPython {version} on this machine")


def prepared(python: str, version: str) -> str:
    """One that has what a replay needs, made in a cache folder at the first time; skips the test when that does not work."""
    imports = f"import {', '.join(NEEDS)}"
    if works(python, imports):
        return python
    home = CACHE / f"cpython-{version}"
    made = str(home / "bin" / "python")
    if works(made, imports):
        return made
    try:
        subprocess.run([python, "-m", "venv", "--clear", str(home)], check=True, capture_output=True, timeout=60)
        subprocess.run([made, "-m", "pip", "install", "-q", *NEEDS], check=True, capture_output=True, timeout=120)
    except (OSError, subprocess.SubprocessError) as e:
        shutil.rmtree(home, ignore_errors=True)
        pytest.skip(f"CPython {version} lacks one of {', '.join(NEEDS)}, and they could not be installed: {e}")
    return made


def works(python: str, program: str) -> bool:
    try:
        return subprocess.run([python, "-c", program], check=False, capture_output=True, timeout=60).returncode == 0
    except OSError:
        return False
