"""The types of the public surface: five whole programs and the examples are accepted, 57 wrong uses are refused, by mypy and by pyright.

A checker runs once for all files.
"""
from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fusee_mp

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PROGRAMS = sorted(path.stem for path in (HERE / "programs").glob("*.py"))
EXAMPLES = sorted(f"example_{path.stem}" for path in (ROOT / "examples").glob("*.py"))
CHECKERS = ("mypy", "pyright")


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("typing")
    for path in (*(HERE / "programs").glob("*.py"), HERE / "wrong_uses.py"):
        (directory / path.name).write_text(path.read_text())
    for path in (ROOT / "examples").glob("*.py"):
        (directory / f"example_{path.name}").write_text(path.read_text())
    (directory / "pyrightconfig.json").write_text(json.dumps({
        "typeCheckingMode": "strict", "reportUnusedVariable": False, "extraPaths": [str(ROOT)], "pythonVersion": "3.11"}))
    return directory


@pytest.fixture(scope="session")
def complaints(project: Path) -> dict[str, dict[str, dict[int, str]]]:
    """By checker, by file, by line."""
    return {"mypy": mypy(project), "pyright": pyright(project)}


def mypy(project: Path) -> dict[str, dict[int, str]]:
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--config-file", "", "--python-version", "3.11",
               "--cache-dir", str(ROOT / ".mypy_cache" / "typing"), *files(project)]
    done = subprocess.run(command, cwd=project, env={"MYPYPATH": str(ROOT)}, capture_output=True, text=True, timeout=300)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return by_file(re.findall(r"^(\w+)\.py:(\d+): error: (.*)$", done.stdout, re.MULTILINE))


def pyright(project: Path) -> dict[str, dict[int, str]]:
    if cannot_run_pyright():
        return {}
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, *files(project)]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=300)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return by_file(re.findall(r"(\w+)\.py:(\d+):\d+ - error: (.*)$", done.stdout, re.MULTILINE))


def cannot_run_pyright() -> str:
    """Why not, or nothing."""
    try:
        done = subprocess.run([sys.executable, "-m", "pyright", "--version"], capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        return "pyright did not start within 2 minutes; it may be trying to download itself"
    return "" if done.returncode == 0 else f"pyright needs node.js: {(done.stderr or done.stdout).strip()[-200:]}"


def files(project: Path) -> list[str]:
    return sorted(path.name for path in project.glob("*.py"))


def by_file(found: list[tuple[str, str, str]]) -> dict[str, dict[int, str]]:
    told: dict[str, dict[int, str]] = {}
    for file, line, message in found:
        told.setdefault(file, {})[int(line)] = message
    return told


@pytest.mark.parametrize("checker", CHECKERS)
@pytest.mark.parametrize("program", [*PROGRAMS, *EXAMPLES])
def test_a_whole_program_is_accepted(complaints: dict[str, dict[str, dict[int, str]]], checker: str, program: str) -> None:
    skip_without(checker)
    assert complaints[checker].get(program, {}) == {}


@pytest.mark.parametrize("checker", CHECKERS)
def test_every_wrong_use_is_refused_and_nothing_else(complaints: dict[str, dict[str, dict[int, str]]], checker: str) -> None:
    skip_without(checker)
    told = dict(complaints[checker]["wrong_uses"])
    missed = []
    for line, text in enumerate((HERE / "wrong_uses.py").read_text().split("\n"), 1):
        if text.endswith("# wrong above"):
            seen = [told.pop(near, None) for near in (line - 1, line)]
        elif text.endswith("# wrong"):
            seen = [told.pop(line, None)]
        else:
            continue
        if not any(seen):
            missed.append(f"{line}: {text.strip()}")
    assert missed == []
    assert told == {}


def skip_without(checker: str) -> None:
    reason = cannot_run_pyright() if checker == "pyright" else ""
    if reason:
        pytest.skip(reason)


def test_there_are_five_programs_and_57_wrong_uses() -> None:
    assert PROGRAMS == ["agent", "approval", "fanout", "nightly", "saga"]
    assert len(re.findall(r"  # wrong( above)?$", (HERE / "wrong_uses.py").read_text(), re.MULTILINE)) == 57


def test_the_public_names_for_checkers_are_those_at_run_time() -> None:
    tree = ast.parse((ROOT / "fusee_mp" / "__init__.py").read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    for_checkers = {alias.asname: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert for_checkers == fusee_mp._HOME_OF
    for name in fusee_mp.__all__:  # Duration is a union, which has no name.
        assert getattr(getattr(fusee_mp, name), "__name__", name) == name
