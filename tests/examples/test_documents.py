"""What the documents print is true: their programs run, their commands parse, their paths and links exist."""
from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from fusee_mp.cli.main import commands

ROOT = Path(__file__).resolve().parent.parent.parent
DOCUMENTS = [ROOT / "README.md", *(ROOT / "docs" / name for name in ("architecture.md", "tour.md", "operating.md", "glossary.md"))]
IDS = [path.name for path in DOCUMENTS]


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)


def command_lines() -> Iterator[tuple[str, str]]:
    """Every line of a document, and of an example's docstring, that is a command of ours."""
    for path in [*DOCUMENTS, *sorted((ROOT / "examples").glob("*.py"))]:
        for line in re.findall(r"^ {4,}(?:bin/)?fusee-mp (.*)$", path.read_text(), re.MULTILINE):
            yield path.name, line.split("    #")[0].strip()


def test_the_first_program_of_the_readme_runs_and_again_repeats_nothing(tmp_path: Path) -> None:
    program = blocks(ROOT / "README.md", "python")[0]
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", program], check=False, cwd=tmp_path, capture_output=True, text=True, timeout=60,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert (done.returncode, done.stdout) == (0, "charged 10\n"), done.stderr


def test_there_are_commands_to_check() -> None:
    assert len(list(command_lines())) >= 10


@pytest.mark.parametrize(("document", "line"), list(command_lines()), ids=str)
def test_a_printed_command_is_one(document: str, line: str) -> None:
    name, *arguments = shlex.split(line)
    command = commands.get_command(click.Context(commands), name)
    assert command is not None, f"{document}: {line}"
    command.make_context(name, arguments, resilient_parsing=False)


@pytest.mark.parametrize("path", DOCUMENTS, ids=IDS)
def test_links_and_paths_exist(path: Path) -> None:
    text = path.read_text()
    for target in re.findall(r"\]\(([^)#:]+)[^)]*\)", text):
        assert (path.parent / target).exists(), target
    for target in re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)`", text):
        assert (ROOT / target).exists() or (ROOT / "fusee_mp" / target).exists(), target


@pytest.mark.parametrize("path", DOCUMENTS, ids=IDS)
def test_names_of_the_tour_are_in_the_code(path: Path) -> None:
    code = "\n".join(file.read_text() for file in (ROOT / "fusee_mp").rglob("*.py"))
    for owner, name in re.findall(r"`([A-Z]\w+)\.(\w+)`", path.read_text()):
        assert f"class {owner}" in code and re.search(rf"def {name}\b|\b{name}\b ?[=:(]", code), f"{owner}.{name}"
