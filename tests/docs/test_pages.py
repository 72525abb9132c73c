"""The python blocks of the pages on features are whole programs: each runs as it stands, and what it asserts holds."""
from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FEATURES = ROOT / "docs" / "features"
INDEX = FEATURES / "README.md"
PAGES = sorted(page for page in FEATURES.glob("*.md") if page != INDEX)
PATIENCE_S = 60
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def programs() -> list[tuple[str, str]]:
    """Each block with the page and line where it begins."""
    found = []
    for page in PAGES:
        text = page.read_text("utf-8")
        found += [(f"{page.stem}:{text[:match.start()].count(chr(10)) + 1}", match[1]) for match in BLOCK.finditer(text)]
    return found


def test_there_are_programs_to_run() -> None:
    pages = {name.partition(":")[0] for name, _ in programs()}
    assert pages == {page.stem for page in PAGES} != set()


@pytest.mark.parametrize("program", [pytest.param(program, id=name) for name, program in programs()])
def test_a_block_runs_as_it_stands(program: str, tmp_path: Path) -> None:
    script = tmp_path / "block.py"
    script.write_text(program)
    ended = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", str(script)], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )
    assert ended.returncode == 0, ended.stderr


def test_the_index_lists_every_page_once_and_no_other() -> None:
    listed = re.findall(r"^\| \[[^]]+\]\(([\w-]+\.md)\) \|", INDEX.read_text("utf-8"), re.MULTILINE)
    assert sorted(listed) == [page.name for page in PAGES]
