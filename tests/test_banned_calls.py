"""Calls that have a better replacement here. Each ban says what to write in its place."""
from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "fusee_mp"
# What a simulator drives: nothing here may ask the machine for time or chance.
GIVEN = ("core", "runtime", "log", "payload")


@dataclass(frozen=True)
class Ban:
    """call: a dotted name; a last part of * stands for any. within: packages, all if empty. besides: files that are the replacement."""

    call: str
    instead: str
    within: tuple[str, ...] = ()
    besides: tuple[str, ...] = ()


CLOCK = "take the time as an argument (a `clock` parameter, or `at`); the simulator gives another"
CHANCE = "take the draw as an argument (a `draw` or `salt` parameter); the simulator gives another"
# The real disk and the processes that help with it, which share the machine's clock: what a log is given.
REAL_DISK = ("log/disk.py", "log/helper.py", "log/flusher.py", "log/attended.py", "log/awake.py", "log/idle_poll.py")
BANS = (
    *(Ban(f"time.{name}", CLOCK, GIVEN, REAL_DISK) for name in
      ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "sleep", "clock_gettime", "clock_gettime_ns")),
    *(Ban(f"datetime.datetime.{name}", CLOCK, GIVEN) for name in ("now", "today")),
    Ban("datetime.date.today", CLOCK, GIVEN),
    Ban("random.*", CHANCE, GIVEN),
    # The default of a log's `salt` parameter; the identity of a directory, given to it once when it is made.
    Ban("secrets.*", CHANCE, GIVEN, ("log/log.py", "log/data.py", "log/directory.py")),
    Ban("os.urandom", CHANCE, GIVEN),
    Ban("uuid.uuid1", CHANCE, GIVEN),
    Ban("uuid.uuid4", CHANCE, GIVEN, ("runtime/steps.py",)),  # The key of the stand-in that `current_step` gives outside a step.
    Ban("datetime.datetime.utcnow", "datetime.now(UTC): the other has no zone and compares wrongly"),
    Ban("datetime.datetime.utcfromtimestamp", "datetime.fromtimestamp(.., UTC): the other has no zone and compares wrongly"),
    Ban("pickle.*", "payload.converter for values, payload.failure for exceptions: a pickle runs what a peer wrote into it"),
    # The helper imports almost nothing, and talks to its parent only: one interpreter at both ends.
    Ban("marshal.*", "payload.converter or msgspec: marshal changes with the interpreter", besides=("log/helper.py", "log/disk.py")),
    Ban("eval", "a table or a function"),
    Ban("exec", "a table or a function", besides=("payload/forms.py",)),
    Ban("os.system", "subprocess with a list of arguments"),
    Ban("os.popen", "subprocess with a list of arguments"),
    Ban("os.fork", "a new interpreter: a fork copies locks, loops and connections that others hold"),
    Ban("multiprocessing.*", "a new interpreter with what it needs in its arguments and descriptors"),
    Ban("tempfile.mktemp", "tempfile.mkstemp or mkdtemp: another may take the name first"),
    Ban("asyncio.get_event_loop", "asyncio.get_running_loop(), or the loop as an argument"),
    Ban("asyncio.set_event_loop_policy", "asyncio.Runner(loop_factory=..): a policy changes loops that are not ours"),
    Ban("sqlite3.connect", "the store: all SQL stands there", besides=("store/",)),
    Ban("hash", "core.placement for shards, zlib.crc32 else: hash() of text differs in every process"),
    Ban("struct.pack_into", "memoryview.cast: pack_into clears the bytes first, and the other side sees it", ("ring",)),
    Ban("print", "logging, or cli for what a command answers", ("core", "payload", "log", "store", "ring", "wire", "runtime", "sdk")),
)


def calls(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every call by the full dotted name of what is called, through the module's imports, outside of `__hash__` methods."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.split(".")[0]
                names[alias.asname or first] = alias.name if alias.asname else first
        elif isinstance(node, ast.ImportFrom):
            names.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
    hashes = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "__hash__"]
    excused = {id(inner) for method in hashes for inner in ast.walk(method)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and id(node) not in excused:
            name = dotted(node.func)
            if name is not None:
                first, _, rest = name.partition(".")
                yield node.lineno, ".".join(filter(None, (names.get(first, first), rest)))


def dotted(node: ast.expr) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        owner = dotted(node.value)
        return None if owner is None else f"{owner}.{node.attr}"
    return None


def violations(source: str, file: str) -> list[str]:
    package = file.split("/")[0]
    found = []
    for line, name in calls(ast.parse(source)):
        for ban in BANS:
            concerns = (not ban.within or package in ban.within) and not file.startswith(ban.besides or ("\0",))
            if concerns and (name == ban.call or (ban.call.endswith(".*") and name.startswith(ban.call[:-1]))):
                found.append(f"{file}:{line} calls {name}; use {ban.instead}")
    return found


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_makes_no_banned_call(path: Path) -> None:
    assert violations(path.read_text(), str(path.relative_to(PACKAGE))) == []


@pytest.mark.parametrize(("source", "file", "count"), [
    ("import time\ntime.monotonic()", "core/a.py", 1),
    ("from time import monotonic as now\nnow()", "runtime/a.py", 1),
    ("import datetime as dt\ndt.datetime.now(dt.UTC)", "log/a.py", 1),
    ("import time\ndef f(clock=time.monotonic): return clock()", "log/a.py", 0),
    ("import time\ntime.monotonic()", "log/disk.py", 0),
    ("import time\ntime.monotonic()", "shardproc/a.py", 0),
    ("import random\nrandom.Random(3).random()", "core/a.py", 1),
    ("import pickle\npickle.loads(b'')", "cli/a.py", 1),
    ("hash('x')", "sdk/a.py", 1),
    ("class A:\n def __hash__(self): return hash(1)", "sdk/a.py", 0),
])
def test_the_check_itself_sees_through_imports(source: str, file: str, count: int) -> None:
    assert len(violations(source, file)) == count
