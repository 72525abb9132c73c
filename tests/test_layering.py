"""Dependencies point down only, and the pure core stays pure."""
from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "fusee_mp"

# From the ground up. A module may import from the rows below its own and from its own package; within a row only what is granted.
ROWS = (
    {"bounds", "checksum", "duration", "errors", "heap", "logs", "names"},
    {"core"},
    {"payload", "log", "store", "ring", "wire", "security", "check"},
    {"runtime"},
    {"router", "shardproc", "keeper"},
    {"sdk"},
    {"cli", "gateway", "testing"},
)
GRANTED = {
    ("duration", "bounds"), ("duration", "errors"), ("names", "bounds"), ("names", "errors"),  # The words that all others use.
    ("router", "shardproc"), ("shardproc", "keeper"),  # A process starts its children, and knows what to say to them.
    ("security", "wire"),  # Proofs travel in frames.
    ("cli", "gateway"),
}
ROW_OF = {name: row for row, names in enumerate(ROWS) for name in names}

# What would make the core see time, chance, threads or the outside.
IMPURE = {
    "asyncio", "concurrent", "io", "logging", "multiprocessing", "os", "pathlib", "random", "secrets", "select", "selectors", "shutil",
    "signal", "socket", "sqlite3", "subprocess", "tempfile", "threading", "time", "uvloop",
}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Every import, wherever it stands in the module, with its line: what holds for types only is a dependency too."""
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: write imports in full, not relative"
            assert node.module is not None
            if node.module == "fusee_mp":
                yield from ((node.lineno, f"fusee_mp.{alias.name}") for alias in node.names)
            else:
                yield node.lineno, node.module


def may_import(importer: str, imported: str) -> bool:
    return importer == imported or ROW_OF[imported] < ROW_OF[importer] or (importer, imported) in GRANTED


def test_there_are_files_to_check() -> None:
    found = {part_of(path) for path in modules()}
    assert {"core", "payload", "log", "runtime", "sdk"} <= found, f"expected the package in {PACKAGE}, found only {sorted(found)}"


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_imports_only_from_below(path: Path) -> None:
    importer = part_of(path)
    if importer == "__init__":
        return
    assert importer in ROW_OF, f'{path}: package "{importer}" has no row in ROWS; give it one'
    for line, name in imports(path):
        if not name.startswith("fusee_mp."):
            continue
        imported = name.split(".")[1]
        assert imported in ROW_OF, f"{path}:{line} imports {name}: import from the module that defines it, not from the package's surface"
        assert may_import(importer, imported), f'{path}:{line} imports {name}: "{importer}" stands below or beside "{imported}"'


@pytest.mark.parametrize("path", [path for path in modules() if part_of(path) == "core"], ids=lambda path: path.name)
def test_the_core_sees_no_time_no_chance_and_no_outside(path: Path) -> None:
    for line, name in imports(path):
        assert name.split(".")[0] not in IMPURE, f"{path}:{line} imports {name}: pass what the core needs as an argument"


@pytest.mark.parametrize(("importer", "imported", "allowed"), [
    ("core", "errors", True), ("runtime", "core", True), ("sdk", "sdk", True), ("shardproc", "keeper", True),
    ("core", "runtime", False), ("log", "wire", False), ("keeper", "shardproc", False), ("runtime", "sdk", False),
])
def test_the_rule_itself_tells_down_from_up(importer: str, imported: str, allowed: bool) -> None:
    assert may_import(importer, imported) is allowed
