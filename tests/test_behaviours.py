"""The table of behaviours: what numbers a docstring bears, and how the tests that bear them ended."""
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.behaviours import EVERY, borne

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize(("docstring", "numbers"), [
    (None, ""), ("", ""), ("Says nothing of it.", ""), ("D12", "D12"), ("D12.", "D12"), ("D1, G04: signals go on.", "D1 G04"),
    ("A2. The rule is part of the format.", "A2"), ("E9 to E11, A1: on\n    two lines", "E9 E10 E11 A1"), ("Sends 12 to D of UTF8.", ""),
    ("G08 to G10:\n    after a line", "G08 G09 G10"), ("C52\n", "C52"),
])
def test_numbers_open_a_docstring(docstring: str | None, numbers: str) -> None:
    assert " ".join(borne(docstring)) == numbers


@pytest.mark.parametrize(("docstring", "said"), [
    ("Shows D12.", "at the beginning only"), ("D12 and D13", "at the beginning only"), ("D1, as D2 says", "at the beginning only"),
    ("D1: as D2", "at the beginning only"), ("D12 over a restart", "at the beginning only"), ("(D12)", "at the beginning only"),
    ("D1,D2", "at the beginning only"), ("D1; D2", "at the beginning only"), ("D12, embedded", "at the beginning only"),
    ("D45", "no behaviour D45"), ("D0", "no behaviour D0"), ("D01", "no behaviour D01"), ("G4", "no behaviour G4"),
    ("F1", "no behaviour F1"),
    ("A32 to A33", "no behaviour A33"), ("A1 to B3", "rising order"), ("A3 to A1", "rising order"), ("A3 to A3", "rising order"),
    ("A1 to A2 to A3", "rising order"), ("A1, A1", "A1 again"), ("A1 to A3, A2", "A2 again"),
])
def test_numbers_that_would_be_missed_or_are_none_are_refused(docstring: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        borne(docstring)


def test_each_number_is_there_once() -> None:
    assert len(set(EVERY)) == len(EVERY) == 220
    assert all(borne(number) == (number,) for number in EVERY)


SEVERAL = '''
import pytest

@pytest.fixture(params=["memory", "embedded", "server"])
def home(request):
    if request.param == "server":
        pytest.skip("not here")
    yield request.param
    assert request.param != "embedded", "trouble at the end"

def test_over_homes(home):
    """D1, G04: over all."""

@pytest.mark.parametrize("what", ["sugar", "memory"])
def test_of_something(what):
    """D1"""

def test_that_fails():
    """G05"""
    raise ValueError
'''


def session(directory: Path, tests: str, *options: str) -> subprocess.CompletedProcess[str]:
    (directory / "tests").mkdir()
    (directory / "tests" / "behaviours.py").write_text((ROOT / "tests" / "behaviours.py").read_text())
    (directory / "tests" / "test_several.py").write_text(tests)
    return subprocess.run([sys.executable, "-m", "pytest", "-p", "tests.behaviours", "-p", "no:cacheprovider", *options], cwd=directory,
                          env={**os.environ, "PYTHONPATH": str(directory)}, capture_output=True, text=True, timeout=60)


def test_the_table_counts_tests_by_their_worst_end_and_names_the_homes_they_passed_over(tmp_path: Path) -> None:
    done = session(tmp_path, SEVERAL, "--behaviours")
    rows = [line.split() for line in done.stdout.partition(" behaviours ")[2].splitlines()]
    assert ["D1", "3", "1", "1", "memory"] in rows
    assert ["G04", "1", "1", "1", "memory"] in rows
    assert ["G05", "0", "1", "0"] in rows
    (missing,) = (row for row in rows if row[:1] == ["no"])
    assert {"D1", "G04", "G05"}.isdisjoint(missing) and missing.count("D2") == 1 and missing[4] == "217"


def test_without_the_option_there_is_no_table(tmp_path: Path) -> None:
    assert "no test here bears" not in session(tmp_path, SEVERAL).stdout


def test_a_wrong_number_stops_the_session_and_names_its_test(tmp_path: Path) -> None:
    done = session(tmp_path, 'def test_it():\n    """D45"""\n')
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "tests/test_several.py::test_it: there is no behaviour D45: they are A1 to A32, " in done.stderr
