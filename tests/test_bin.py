"""The programs in bin/ make .venv once, repair it, and say what is missing. A stand-in for Python records what it is asked to do."""
from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Answers as an interpreter would, by what it is asked; a copy of it becomes the interpreter of the .venv that it makes.
STAND_IN = f"""#!/bin/sh
case "$*" in
    *version_info*3,\\ 11*) exit "${{TOO_OLD:-0}}" ;;
    *base_prefix*) echo "$STAND_IN_PREFIX" ;;
    *ensurepip*) exit "${{NO_VENV:-0}}" ;;
    *flock*) exec {sys.executable} "$@" ;;
    *"venv --clear"*) echo venv >> "$JOURNAL"; rm -rf "$4"; mkdir -p "$4/bin"; cp "$0" "$4/bin/python"
        printf '#!/bin/sh\\necho "ran $*"\\n' > "$4/bin/fusee-mp"; chmod +x "$4/bin/fusee-mp" ;;
    *"pip --version"*) ;;
    *"pip install"*) echo install >> "$JOURNAL"; sleep 0.2; exit "${{PIP_FAILS:-0}}" ;;
    *) echo "unexpected: $*" >&2; exit 9 ;;
esac
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "bin", tmp_path / "bin")
    shutil.copy(ROOT / "setup.cfg", tmp_path)
    (tmp_path / "python").write_text(STAND_IN)
    (tmp_path / "python").chmod(0o755)
    (tmp_path / "journal").touch()
    return tmp_path


def start(checkout: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    given = {"PATH": os.environ["PATH"], "PYTHON": str(checkout / "python"), "JOURNAL": str(checkout / "journal"), "STAND_IN_PREFIX": "one"}
    return subprocess.Popen([checkout / "bin" / "fusee-mp", *arguments], env=given | environment, text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE)


def run(checkout: Path, *arguments: str, **environment: str) -> tuple[int, str, str]:
    process = start(checkout, *arguments, **environment)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def done_in(checkout: Path) -> list[str]:
    return (checkout / "journal").read_text().split()


def test_the_first_run_makes_the_venv_and_the_second_starts_at_once(checkout: Path) -> None:
    assert run(checkout, "version", "a b")[:2] == (0, "ran version a b\n")
    assert done_in(checkout) == ["venv", "install"]
    assert run(checkout, "version") == (0, "ran version\n", "")
    assert done_in(checkout) == ["venv", "install"]


def test_two_that_start_together_make_it_once(checkout: Path) -> None:
    both = [start(checkout, "version") for _ in range(2)]
    assert [process.communicate(timeout=60)[0] for process in both] == ["ran version\n"] * 2
    assert done_in(checkout) == ["venv", "install"]


def test_it_works_from_any_directory_and_through_a_path_with_spaces(checkout: Path) -> None:
    spaced = checkout / "a checkout"
    spaced.mkdir()
    for name in ("bin", "setup.cfg", "python"):
        (checkout / name).rename(spaced / name)
    assert run(spaced, "x", JOURNAL=str(checkout / "journal"))[:2] == (0, "ran x\n")


def test_new_requirements_and_another_interpreter_are_noticed(checkout: Path) -> None:
    run(checkout)
    with (checkout / "setup.cfg").open("a") as settings:
        settings.write("# changed\n")
    run(checkout)
    assert done_in(checkout) == ["venv", "install", "install"]
    (checkout / "other").write_text(STAND_IN.replace('echo "$STAND_IN_PREFIX"', "echo two"))
    (checkout / "other").chmod(0o755)
    run(checkout, PYTHON=str(checkout / "other"))
    assert done_in(checkout) == ["venv", "install", "install", "venv", "install"]


def test_a_broken_or_half_made_venv_is_repaired(checkout: Path) -> None:
    status, _, err = run(checkout, PIP_FAILS="1")
    assert status == 1 and "apt install gcc python3-dev" in err
    assert run(checkout)[0] == 0
    assert done_in(checkout) == ["venv", "install", "install"]
    (checkout / ".venv" / "bin" / "python").unlink()
    assert run(checkout)[0] == 0
    assert done_in(checkout)[3:] == ["venv", "install"]


@pytest.mark.parametrize(("environment", "said"), [
    ({"PYTHON": "/nowhere/python"}, "PYTHON=/nowhere/python is not CPython 3.11 or newer"),
    ({"TOO_OLD": "1"}, "is not CPython 3.11 or newer"),
    ({"NO_VENV": "1"}, "apt install python3-venv"),
])
def test_what_is_missing_is_said_with_what_to_install(checkout: Path, environment: dict[str, str], said: str) -> None:
    status, out, err = run(checkout, **environment)
    assert status == 1 and out == "" and said in err
    assert done_in(checkout) == []


def test_without_any_python_the_message_names_the_package(checkout: Path) -> None:
    tools = checkout / "tools"
    tools.mkdir()
    for name in ("sh", "dirname", "basename", "cat", "cksum"):
        (tools / name).symlink_to(shutil.which(name) or "")
    status, _, err = run(checkout, PATH=str(tools), PYTHON="")
    assert status == 1 and "apt install python3 python3-venv" in err
