"""docs/tutorial.md: the programs of each section run and print what the page says, its files are good, its commands work in their order.

A block that opens with a file's name is that file; the other blocks of a section are one program.
"""
from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fusee_mp import export

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tutorial.md").read_text("utf-8")
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
FILES = dict(re.findall(r"^```python\n# (\S+\.py)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
COMMANDS = re.findall(r"^    fusee-mp (.*)$", PAGE, re.MULTILINE)
CLI = ("-m", "fusee_mp.cli")
LOCAL = "127.0.0.1:7410"
PATIENCE_S = 60


def blocks(section: str, language: str) -> str:
    found = re.findall(rf"^```{language}\n(.*?)^```$", SECTIONS[section], re.MULTILINE | re.DOTALL)
    return "".join(block for block in found if not re.match(r"# \S+\.py\n", block))


PROGRAMS = {section: program for section in SECTIONS if (program := blocks(section, "python"))}


def write_files(folder: Path, address: str = LOCAL) -> None:
    for name, text in FILES.items():
        (folder / name).write_text(text.replace(LOCAL, address))


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **more}


def python(folder: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment(**more), capture_output=True, text=True, timeout=PATIENCE_S, check=False)


@contextmanager
def begun(folder: Path, *arguments: str, **more: str) -> Iterator[subprocess.Popen[str]]:
    """A process that is told to end, and has ended, at the end."""
    process = subprocess.Popen([sys.executable, *arguments], cwd=folder, env=environment(**more), stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_S)


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The page's server, on a port of its own, with the page's files for that address beside it."""
    with begun(folder, *CLI, *shlex.split(COMMANDS[0]), "--listen", "127.0.0.1:0", "--log-level", "error") as server:
        address = line_of(server).split(" ready on ")[1].split()[0]
        write_files(folder, address)
        yield address


@pytest.mark.parametrize("section", PROGRAMS)
def test_a_section_runs_and_prints_what_it_says(section: str, tmp_path: Path) -> None:
    (tmp_path / "block.py").write_text(PROGRAMS[section])
    ended = python(tmp_path, "-W", "error::ResourceWarning", "block.py")
    assert ended.returncode == 0, ended.stderr
    if section != "Kill it":  # what it shows is printed by first.py
        assert ended.stdout == blocks(section, "text")


def test_a_killed_first_program_goes_on_and_charges_once(tmp_path: Path) -> None:
    write_files(tmp_path)
    (tmp_path / "first.py").write_text(FILES["first.py"].replace('"10s"', '"2s"'))
    with begun(tmp_path, "first.py") as process:
        assert [line_of(process), line_of(process)] == ["the workflow's code runs\n", "charging the card\n"]
        while not any(record.kind == "step" for journal in export(tmp_path / "first-data") for record in journal.records):
            assert process.poll() is None
        process.send_signal(signal.SIGKILL)
    again = python(tmp_path, "first.py")
    assert (again.returncode, again.stdout) == (0, blocks("Kill it", "text")), again.stderr


def test_the_commands_work_in_their_order(tmp_path: Path) -> None:
    _, work, *lines = COMMANDS
    parts = [line.partition("    # exits with ") for line in lines]
    with serving(tmp_path) as address, begun(tmp_path, *CLI, *shlex.split(work), "--log-level", "error", FUSEE_ADDRESS=address) as worker:
        assert line_of(worker)
        ended = python(tmp_path, "-c", IN_ORDER, *(command for command, _, _ in parts), FUSEE_ADDRESS=address)
        assert ended.stderr.splitlines()[-1] == repr([int(code or 0) for _, _, code in parts]), ended.stdout + ended.stderr
        asked = python(tmp_path, "ask.py")
        assert asked.stdout.splitlines()[0] == "waits for approval" and "2 have ended well" in asked.stdout, asked.stderr


IN_ORDER = """
import shlex, sys
from fusee_mp.cli.main import main

def code_of(line):
    try:
        main(shlex.split(line))
    except SystemExit as ended:
        return ended.code or 0

print([code_of(line) for line in sys.argv[1:]], file=sys.stderr)
"""


def test_the_sealed_worker_reads_what_a_client_with_its_key_sent(tmp_path: Path) -> None:
    with serving(tmp_path) as address, begun(tmp_path, "sealed_worker.py", SHOP_KEY="ab" * 32):
        ended = python(tmp_path, "-c", SEALED.replace(LOCAL, address))
        assert (ended.returncode, ended.stdout) == (0, "Outcome(status='done', receipt='receipt for 3')\n"), ended.stderr
    assert not any(b"receipt for" in path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file())


SEALED = """
import asyncio
from fusee_mp import AesGcm, Client
from shop import APPROVED, Order, order

async def main():
    async with Client.connect("127.0.0.1:7410", codec=AesGcm({"2024": b"\\xab" * 32})) as client:
        run = await client.start(order, "o", Order("pen", 3))
        await run.signal(APPROVED, True)
        print(await run.result("30s"))

asyncio.run(main())
"""


def test_the_tests_of_the_page_pass_plainly_and_with_crashes(tmp_path: Path) -> None:
    write_files(tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    for option in ([], ["--crash-every-step"]):
        ended = python(tmp_path, "-m", "pytest", "-p", "fusee_mp.testing.plugin", "-p", "no:cacheprovider", "-q", "test_shop.py", *option,
                       PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
        assert ended.returncode == 0 and "2 passed" in ended.stdout, ended.stdout


def test_every_file_has_a_test() -> None:
    assert set(FILES) == {"first.py", "shop.py", "ask.py", "test_shop.py", "careless.py", "sealed_worker.py"}


def test_links_exist() -> None:
    targets = re.findall(r"\]\(([^)#:]+)\)", PAGE)
    assert targets and not [target for target in targets if not (ROOT / "docs" / target).exists()]


def test_the_index_of_features_points_at_sections() -> None:
    anchors = re.findall(r"tutorial\.md#([\w-]+)", (ROOT / "docs" / "features" / "README.md").read_text("utf-8"))
    assert anchors and set(anchors) <= {section.lower().replace(" ", "-") for section in SECTIONS}
