"""Every command that a page or a message names is one: whoever is told to use it can."""
from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from fusee_mp.cli.main import COMMANDS, commands

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))]
SOURCES = sorted((ROOT / "fusee_mp").rglob("*.py"))
NAMED = re.compile(r"\bfusee-mp ((?:schedule )?[a-z][a-z-]*)")
# Where a page shows what is typed: between backticks, in a fence, or set in.
TYPED = re.compile(r"^```.*?^```$|`[^`\n]+`|^    .*$", re.MULTILINE | re.DOTALL)
# What may follow the name without meaning a command.
PROSE = frozenset({"client", "connection", "peer", "protocol"})


def typed(page: Path) -> Iterator[str]:
    return (match[0] for match in TYPED.finditer(page.read_text("utf-8")))


def messages(source: Path) -> Iterator[str]:
    """The texts of a module; its docstrings are for readers of the code and are none."""
    tree = ast.parse(source.read_text("utf-8"))
    docs = {id(node.body[0].value) for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and node.body and isinstance(node.body[0], ast.Expr)}
    return (node.value for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs)


def is_command(words: str) -> bool:
    group, _, name = words.partition(" ")
    if group not in COMMANDS:
        return False
    schedule = commands.get_command(click.Context(commands), "schedule")
    return not name or (isinstance(schedule, click.Group) and name in schedule.commands)


def unknown(texts: Iterator[str]) -> list[str]:
    return [match[0] for text in texts for match in NAMED.finditer(text)
            if not is_command(match[1]) and match[1] not in PROSE]


@pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES])
def test_a_page_names_no_command_that_is_none(page: Path) -> None:
    assert unknown(typed(page)) == []


def test_no_message_names_a_command_that_is_none() -> None:
    found = {str(source.relative_to(ROOT)): names for source in SOURCES if (names := unknown(messages(source)))}
    assert found == {}


def test_commands_are_found_where_they_are_named() -> None:
    assert sum(len(NAMED.findall(text)) for page in PAGES for text in typed(page)) > 40
    assert sum(len(NAMED.findall(text)) for source in SOURCES for text in messages(source)) > 10
    assert unknown(iter(["use `fusee-mp top`", "fusee-mp schedule shift x", "fusee-mp schedule create x", "fusee-mp reshard d 3"])) == [
        "fusee-mp top", "fusee-mp schedule shift", "fusee-mp reshard"]


def test_the_changelog_names_every_command() -> None:
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    listed = text[text.index("**Command line.**"):text.index("**Testing.**")]
    assert {name for name in COMMANDS if not re.search(rf"`{name}( \.\.)?`", listed)} == set()
