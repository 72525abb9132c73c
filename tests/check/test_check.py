"""The static look: each kind of mistake is found where it stands, and what is right raises no alarm."""
from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest

from fusee_mp.check import RULES, Finding, check_module, check_source
from fusee_mp.errors import Rejected

ROOT = Path(__file__).resolve().parent.parent.parent
BAD = "import time\nfrom fusee_mp import workflow\n@workflow\nasync def f(c): time.time()\n"
HEAD = "import asyncio\nfrom fusee_mp import Ctx, step, workflow\n"


def look(body: str, imports: str = "", around: str = "") -> list[Finding]:
    """Findings of a workflow with this body; their lines count from its first."""
    before = HEAD + imports + "\n" + textwrap.dedent(around) + "\n@workflow\nasync def flow(ctx: Ctx, order):\n"
    found = check_source(before + textwrap.indent(textwrap.dedent(body).strip("\n"), "    "))
    return [Finding(f.file, f.line - before.count("\n"), f.column, f.rule, f.message, f.instead, f.breaks) for f in found]


def rules(body: str, imports: str = "", around: str = "") -> list[str]:
    return [found.rule for found in look(body, imports, around)]


@pytest.mark.parametrize(("parameters", "is_found"), [
    ("ctx", False), ("ctx, order", False), ("ctx, order=None", False), ("ctx, /, order, *, kept=1", False), ("ctx, **more", False),
    ("", True), ("ctx, order, count", True), ("ctx, *orders", True), ("ctx, *, order", True),
])
def test_a_workflow_of_other_than_a_context_and_one_input_is_found_where_it_cannot_be_imported(parameters: str, is_found: bool) -> None:
    text = f"{HEAD}\n@workflow\nasync def flow({parameters}):\n    return 1\n"
    found = check_source(text)
    assert [(each.rule, each.line) for each in found] == [("inputs", 5)] * is_found
    assert not is_found or "one dataclass" in str(found[0])
    if is_found:
        with pytest.raises(Rejected, match="at most one input"):
            exec(text, {})
    else:
        exec(text, {})


@pytest.mark.parametrize(("rule", "imports", "code"), [
    ("clock", "import time", "time.time()"),
    ("clock", "import time as t", "t.monotonic_ns()"),
    ("clock", "from time import perf_counter as pc", "pc()"),
    ("clock", "import datetime", "datetime.datetime.now(datetime.UTC)"),
    ("clock", "import datetime as dt", "dt.date.today()"),
    ("clock", "from datetime import datetime as D", "D.utcnow()"),
    ("clock", "from datetime import datetime\nnow = datetime.now", "now()"),
    ("clock", "import time", "time.strftime('%Y')"),
    ("clock", "import time", "await ctx.wait_until(lambda: time.time() > order)"),
    ("clock", "import time", "await ctx.step('x', len, time.time())"),
    ("clock", "import time", "f'{time.time()}'"),
    ("sleep", "import time", "time.sleep(1)"),
    ("random", "import random", "random.choice([1])"),
    ("random", "from random import shuffle", "shuffle(order)"),
    ("random", "import random", "random.Random()"),
    ("random", "import uuid", "uuid.uuid4()"),
    ("random", "import secrets", "secrets.token_hex()"),
    ("random", "import os", "os.urandom(3)"),
    ("random", "import numpy as np", "np.random.rand()"),
    ("environment", "import os", "os.environ['X']"),
    ("environment", "import os", "os.environ.get('X')"),
    ("environment", "from os import environ as env", "env['X']"),
    ("environment", "import os", "os.getenv('X')"),
    ("environment", "import socket", "socket.gethostname()"),
    ("io", "", "open('x')"),
    ("io", "import requests", "requests.get('http://x')"),
    ("io", "import httpx", "httpx.AsyncClient()"),
    ("io", "import socket", "socket.create_connection(('x', 1))"),
    ("io", "from pathlib import Path", "Path('x').read_text()"),
    ("io", "from pathlib import Path", "Path('x').exists()"),
    ("io", "import subprocess as sp", "sp.run(['x'])"),
    ("io", "", "await asyncio.create_subprocess_exec('x')"),
    ("input", "", "input()"),
    ("thread", "import threading", "threading.Thread(target=len)"),
    ("thread", "", "await asyncio.to_thread(len, [])"),
    ("thread", "", "await asyncio.get_running_loop().run_in_executor(None, len, [])"),
    ("thread", "from concurrent.futures import ThreadPoolExecutor", "ThreadPoolExecutor()"),
    ("loop", "", "asyncio.run(order)"),
    ("hash", "", "hash('x')"),
    ("print", "", "print('x')"),
])
def test_a_call_that_a_replay_cannot_repeat_is_found(rule: str, imports: str, code: str) -> None:
    found = look(f"x = 1\n{code}", imports)
    assert [(f.rule, f.line) for f in found] == [(rule, 2)]
    assert found[0].instead == RULES[rule] and found[0].breaks == (rule != "print")


@pytest.mark.parametrize(("imports", "code"), [
    ("", "ctx.now(); ctx.random().choice([1]); ctx.uuid4()"),
    ("import random", "random.Random(7).random()"),
    ("import time", "time.gmtime(order.at)"),
    ("", "time = order.clock\ntime.time()"),
    ("import random", "random = ctx.random()\nrandom.choice([1])"),
    ("import uuid", "uuid.UUID('0' * 32); uuid.uuid5(uuid.NAMESPACE_DNS, 'x')"),
    ("import os", "os.path.join('a', 'b')"),
    ("import datetime", "datetime.datetime.fromisoformat('2024-01-01'); datetime.timedelta(1)"),
    ("import time", "await ctx.step('t', time.time)"),
    ("import time", "await ctx.step('t', lambda: time.time())"),
    ("import time", "await ctx.step(name='t', fn=lambda: time.time())"),
    ("import time, functools", "await ctx.step('t', functools.partial(time.sleep, 1))"),
    ("import time, functools", "await ctx.step('t', functools.partial(lambda n: time.sleep(n), 1))"),
    ("import time", "await step(lambda: time.time())()"),
    ("import os", "await ctx.completion('c', lambda token: os.system(token), returns=int)"),
    ("import requests", "await ctx.step('get', requests.get, order.url)"),
    ("", "await asyncio.gather(*[ctx.sleep(1) for _ in range(3)])"),
    ("", "async with asyncio.timeout(1):\n    await asyncio.sleep(2)"),
    ("", "order.input(1); order.open(); order.hash()"),
    ("", "id = order.id\nopen = order.open\nopen(id)"),
    ("import socket", "raise socket.SomeError('x')"),
    ("", "loop = asyncio.get_running_loop()\nloop.time()"),
    ("", "seen = {id(order): order}"),
])
def test_what_is_right_raises_no_alarm(imports: str, code: str) -> None:
    assert look(code, imports) == []


@pytest.mark.parametrize(("expected", "code"), [
    (["set-order"], "for x in {1, 2}:\n    await ctx.sleep(x)"),
    (["set-order"], "names = set(order)\nfor x in names:\n    await ctx.sleep(x)"),
    (["set-order"], "names = set(order) | {'x'}\nfor i, x in enumerate(list(names)):\n    await ctx.sleep(x)"),
    (["set-order"], "names = frozenset(order)\nawait ctx.all(ctx.sleep(x) for x in names)"),
    (["set-order"], "await asyncio.gather(*(ctx.sleep(x) for x in set(order)))"),
    (["set-order"], "await asyncio.gather(*{ctx.sleep(1), ctx.sleep(2)})"),
    (["set-order"], "[await ctx.sleep(x) for x in {y for y in order}]"),
    (["set-order"], "names = set(order)\nwhile names:\n    await ctx.sleep(names.pop())"),
    (["set-order"], "async with asyncio.TaskGroup() as tg:\n    for x in set(order):\n        tg.create_task(ctx.sleep(x))"),
    ([], "for x in sorted({1, 2}):\n    await ctx.sleep(x)"),
    ([], "for x in {1, 2}:\n    order.total += x"),
    ([], "names = sorted(set(order))\nfor x in names:\n    await ctx.sleep(x)"),
    ([], "names = set(order)\nif 'x' in names:\n    await ctx.sleep(len(names))"),
    ([], "for x in dict.fromkeys(order):\n    await ctx.sleep(x)"),
    ([], "tasks = set()\ntasks.add(asyncio.create_task(ctx.sleep(1)))\nfor t in tasks:\n    await t"),
    ([], "tasks: set[asyncio.Task] = set()\nfor t in tasks:\n    await t"),
    ([], "done, rest = await asyncio.wait({asyncio.create_task(ctx.sleep(x)) for x in order})\nfor t in done:\n    await t"),
    (["wait-set"], "await asyncio.wait({ctx.sleep(x) for x in order})"),
    ([], "await asyncio.wait([asyncio.create_task(ctx.sleep(x)) for x in order])"),
    (["as-completed"], "for f in asyncio.as_completed([ctx.sleep(x) for x in order]):\n    await f"),
    (["as-completed"], "waits = [ctx.sleep(x) for x in order]\nfor f in asyncio.as_completed(waits):\n    await f"),
    ([], "for f in asyncio.as_completed([asyncio.create_task(ctx.sleep(x)) for x in order]):\n    await f"),
])
def test_the_order_of_sets_matters_only_where_it_decides_what_is_done(expected: list[str], code: str) -> None:
    assert rules(code) == expected


@pytest.mark.parametrize(("annotation", "expected"), [
    ("set[str]", 1), ("'set[str]'", 1), ("frozenset", 1), ("list[str]", 0), ("set[asyncio.Task]", 0),
])
def test_parameters_that_are_sets_are_seen_as_such(annotation: str, expected: int) -> None:
    around = f"async def each(names: {annotation}):\n    for name in names:\n        await asyncio.sleep(1)\n"
    assert rules("await each(order.names)", around=around) == ["set-order"] * expected


@pytest.mark.parametrize(("expected", "code"), [
    (["swallow"], "try:\n    await ctx.sleep(1)\nexcept BaseException:\n    pass"),
    (["swallow"], "try:\n    await ctx.sleep(1)\nexcept:\n    order = None"),
    (["swallow"], "try:\n    async with order:\n        pass\nexcept (ValueError, BaseException) as e:\n    order.log(e)"),
    ([], "try:\n    await ctx.sleep(1)\nexcept BaseException:\n    await ctx.sleep(2)\n    raise"),
    ([], "try:\n    await ctx.sleep(1)\nexcept BaseException as e:\n    raise ValueError from e"),
    ([], "try:\n    await ctx.sleep(1)\nexcept Exception:\n    pass"),
    ([], "try:\n    order.check()\nexcept BaseException:\n    pass"),
    (["forgotten-await"], "ctx.sleep(1)"),
    (["forgotten-await"], "ctx.step('x', len, [])"),
    (["forgotten-await"], "asyncio.sleep(1)"),
    (["forgotten-await"], "charge(order)"),
    (["forgotten-await"], "charge.with_(timeout=1)(order)"),
    (["forgotten-await"], "helper()"),
    ([], "await charge(order)\nt = asyncio.create_task(helper())\nawait t"),
    ([], "ctx.set_attributes(a=1)\nctx.on_query('q', len)\nctx.patched('x')"),
    ([], "order.step('x')\norder.sleep(1)"),
    (["global-write"], "CACHE['x'] = 1"),
    (["global-write"], "CACHE.setdefault('x', []).append(1)"),
    (["global-write"], "SEEN.add(1)"),
    (["global-write"], "del CACHE['x']"),
    (["global-write"], "global COUNT\nCOUNT += 1"),
    (["global-write"], "asyncio.something = 1"),
    ([], "CACHE = {}\nCACHE['x'] = 1"),
    ([], "CACHE.get('x')\nlen(SEEN)\nx = COUNT"),
    ([], "order.items.append(1)\norder.total = 3"),
])
def test_flow_that_harms_a_run_is_found(expected: list[str], code: str) -> None:
    around = "CACHE = {}\nSEEN = set()\nCOUNT = 0\n@step\nasync def charge(order): ...\nasync def helper(): ...\n"
    assert rules(code, around=around) == expected


def test_functions_that_a_workflow_calls_are_looked_at_and_named() -> None:
    found = check_source(HEAD + textwrap.dedent("""
        import time
        def inner():
            return time.time()
        async def outer(ctx):
            return inner()
        def unused():
            return time.time()
        @workflow("orders")
        async def flow(ctx):
            return await outer(ctx)
    """), "orders.py")
    assert [(f.file, f.line, f.column, f.rule) for f in found] == [("orders.py", 6, 12, "clock")]
    assert found[0].message == 'time.time reads a clock: another time in every replay (in "inner", which workflow "orders" runs)'
    assert str(found[0]).startswith("orders.py:6:12: clock: time.time reads")


def test_functions_that_run_as_steps_are_left_alone() -> None:
    around = """
        import time, functools, fusee_mp as fm
        @step
        def a(): return time.time()
        @step(retry=None)
        async def b(): return time.time()
        @fm.step()
        def c(): return time.time()
        def d(): return time.time()
        class Shop:
            @step
            def e(self): return time.time()
    """
    body = """
        await a(); await b(); await c()
        await ctx.step("d", d)
        await ctx.step("d", functools.partial(d))
        @step
        def f(): return time.time()
        def g(): return time.time()
        def h(): return time.time()
        await f()
        await ctx.step("g", g)
        await ctx.step("h", functools.partial(h, 1))
    """
    assert look(body, around=around) == []


def test_code_inside_a_workflow_is_workflow_code() -> None:
    body = """
        async def look_up(item):
            def deeper(): return time.time()
            return deeper()
        ctx.on_update("u", handler, validator=check)
        await ctx.all(map(look_up, order))
        undo = [lambda: time.time()]
    """
    around = "import time\ndef handler(value): time.time()\ndef check(value): time.time()\n"
    assert rules(body, around=around) == ["clock"] * 4


@pytest.mark.parametrize("head", [
    "from fusee_mp import workflow\n@workflow\nasync def f(c):",
    "from fusee_mp import workflow as w\n@w('x', version=2)\nasync def f(c):",
    "import fusee_mp\n@fusee_mp.workflow()\nasync def f(c):",
    "import fusee_mp as fm\n@fm.workflow\nasync def f(c):",
    "from fusee_mp import *\n@workflow\nasync def f(c):",
    "if True:\n  from fusee_mp.sdk.definitions import workflow\n@workflow\nasync def f(c):",
])
def test_workflows_are_found_in_every_form(head: str) -> None:
    assert [f.rule for f in check_source(f"import time\n{head}\n    time.time()\n    c.sleep(1)\n")] == ["clock", "forgotten-await"]


def test_a_function_made_a_workflow_by_a_call_is_one() -> None:
    text = "import time\nfrom fusee_mp import workflow\nasync def f(c): time.time()\nflow = workflow('flow')(f)\n"
    assert [f.message[-20:] for f in check_source(text)] == [' (in workflow "flow")'[-20:]]


def test_a_decorator_of_another_library_is_none_of_ours() -> None:
    assert check_source("import time\nfrom prefect import workflow\n@workflow\nasync def f(): time.time()\n") == []


def test_a_comment_with_a_reason_allows_a_rule_on_its_line() -> None:
    body = """
        a = time.time()  # fusee: allow(clock) only for the log
        b = [time.time(),
             time.time()]  # fusee: allow(clock, random) as above
        c = time.time()  # fusee: allow(random) not this one
    """
    assert [(f.rule, f.line) for f in look(body, "import time")] == [("clock", 2), ("clock", 4)]


def test_a_comment_that_allows_wrongly_is_told_so() -> None:
    found = look("a = time.time()  # fusee: allow(clokc) typo\nb = time.time()  # fusee: allow(clock)", "import time")
    assert [(f.rule, f.line, f.breaks) for f in found] == [("clock", 1, True), ("allow", 1, False), ("clock", 2, True), ("allow", 2, False)]
    assert any('no rule "clokc"' in f.message for f in found) and any("says why" in f.message for f in found)


def test_a_text_that_looks_like_a_comment_allows_nothing() -> None:
    assert rules("a = (time.time(), '# fusee: allow(clock) no')", "import time") == ["clock"]


def test_long_data_is_no_obstacle_and_a_deep_workflow_is_refused_by_name() -> None:
    long = "x = " + " + ".join(["order"] * 700) + "\n"
    assert [f.rule for f in check_source(f"order = 1\n{long}{BAD}")] == ["clock"]
    with pytest.raises(Rejected, match="nested too deeply"):
        look(long)


def test_recursion_between_functions_comes_to_an_end() -> None:
    around = "import time\ndef a(): b()\ndef b(): a(); time.time()\n"
    assert rules("a(); b()", around=around) == ["clock"]


def test_names_that_stand_for_themselves_come_to_an_end() -> None:
    assert rules("x = x\nfor y in x | x:\n    await ctx.sleep(y)\ny = z\nz = y\nz()\n") == []


PROGRAMS = sorted([*ROOT.glob("examples/*.py"), *ROOT.glob("tests/typing/programs/*.py")])


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.name)
def test_our_own_examples_raise_no_alarm(path: Path) -> None:
    assert [str(found) for found in check_module(path) if found.breaks] == []


def test_files_directories_modules_and_packages_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "shop_to_check"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('a look imports nothing')\n")
    (package / "orders.py").write_text(BAD)
    (tmp_path / "alone_to_check.py").write_text(BAD)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    for module in (package, str(package / "orders.py"), "shop_to_check", "shop_to_check.orders", "alone_to_check"):
        assert [found.rule for found in check_module(module)] == ["clock"], module
    assert "shop_to_check" not in sys.modules


@pytest.mark.parametrize("module", ["no_such_module", "no/such/file.py", "sys", "json.nothing", "", "a..b"])
def test_a_module_that_is_not_there_is_refused(module: str) -> None:
    with pytest.raises(Rejected, match="expected the path"):
        check_module(module)


@pytest.mark.parametrize("content", [b"def f(:\n", b"\xff\xfe\x00", b"# coding: nonsense\n", b"x = '\x00'\n"])
def test_a_file_that_is_no_python_is_refused_with_its_name(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad.py").write_bytes(content)
    with pytest.raises(Rejected, match="bad.py.*expected Python"):
        check_module(tmp_path / "bad.py")
