"""Every example runs as it is, and says what it should."""
from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
EXAMPLES = ROOT / "examples"


def run(name: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments], check=False, capture_output=True, text=True, timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_checkout_undoes_what_cannot_be_finished() -> None:
    lines = [line.split() for line in run("checkout.py").splitlines()]
    assert [line[0] for line in lines] == [
        "order-1:", "reserve", "charge", "ship", "done",
        "order-2:", "reserve", "refund", "release", "undone",
        "order-3:", "reserve", "charge", "refund", "release", "undone",
    ]


def test_the_checkout_repeats_no_step_when_it_is_run_again(tmp_path: Path) -> None:
    run("checkout.py", str(tmp_path / "data"))
    again = [line.split()[0] for line in run("checkout.py", str(tmp_path / "data")).splitlines()]
    assert again == ["order-1:", "done", "order-2:", "undone", "order-3:", "undone"]


def test_the_approval_is_given_or_expires_over_a_server() -> None:
    out = run("approval.py")
    assert "request-1: Outcome(status='approved', reminders=0)" in out
    assert "request-2: Outcome(status='expired', reminders=3)" in out
    assert out.count("to bob: still waiting") == 3


def test_the_agent_asks_a_person_and_repeats_nothing_when_it_is_run_again(tmp_path: Path) -> None:
    said = ["search: lamps", "ann agrees to pay: lamp, 39.90", "pay: lamp, 39.90", "search: delivery", "The lamp comes on Tuesday."]
    assert [line.strip() for line in run("agent.py", str(tmp_path / "data")).splitlines()] == said
    assert run("agent.py", str(tmp_path / "data")) == said[-1] + "\n"


def test_the_fan_out_has_a_result_although_items_fail() -> None:
    assert run("fanout.py") == "180 prices, 1786000 in all; unknown: 20 items, the first of them item-107\n"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_an_example_says_how_to_run_it_and_has_a_test(path: Path) -> None:
    document = ast.get_docstring(ast.parse(path.read_text())) or ""
    assert f"python examples/{path.name}" in document
    assert f'"{path.name}"' in Path(__file__).read_text()
