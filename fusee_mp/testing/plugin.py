"""The pytest plugin: the fixture `fusee_engine`, `async def` tests that use it, and `--crash-every-step`.

It is loaded with pytest wherever the package is installed, so it imports the rest of it only for tests that need it.
"""
from __future__ import annotations

import asyncio
import inspect
from collections.abc import Generator
from typing import Any

import pytest

FIXTURE = "fusee_engine"
OTHERS = ("asyncio", "anyio", "trio")  # marks of plugins that run coroutines their own way
SHOWN_MAX = 10
CRASHED = "crashes, runs"  # a property of a test: how many, in how many


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("fusee-mp").addoption(
        "--crash-every-step", action="store_true",
        help="crash each run of each test's engine after each of its records, and demand that it comes to the same end",
    )


@pytest.fixture
def fusee_engine() -> Any:
    """`testing.engine`: `async with fusee_engine(workflows=[..]) as engine`. An `async def` test that uses it needs no other plugin."""
    from fusee_mp import testing

    return testing.engine


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine test that uses the fixture and has no mark that gives it to another plugin."""
    if FIXTURE not in pyfuncitem.fixturenames or not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    if any(pyfuncitem.get_closest_marker(mark) for mark in OTHERS):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    asyncio.run(pyfuncitem.obj(**arguments))
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    if not item.config.getoption("crash_every_step"):
        return (yield)
    from fusee_mp.testing.crashes import crash_everywhere, cuts, watching

    with watching() as seen:
        result = yield
    runs = [journal for _, journals in seen for journal in journals]
    item.user_properties.append((CRASHED, [sum(len(cuts(journal)) for journal in runs), len(runs)]))
    differences = [said for workflows, journals in seen for said in crash_everywhere(workflows, journals)]
    if differences:
        more = f"\nand {len(differences) - SHOWN_MAX} more" if len(differences) > SHOWN_MAX else ""
        shown = "\n".join(differences[:SHOWN_MAX])
        pytest.fail(f"a crash would have changed what this test's workflows do:\n{shown}{more}", pytrace=False)
    return result


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """How often it crashed what; the counts come with the reports, so also from the processes of pytest-xdist."""
    if not config.getoption("crash_every_step"):
        return
    found = [value for reports in terminalreporter.stats.values() for report in reports
             if getattr(report, "when", "") == "call" for name, value in report.user_properties if name == CRASHED]
    crashes, runs = (sum(value[i] for value in found) for i in (0, 1))
    terminalreporter.write_line(f"--crash-every-step: {crashes} crash{'es' * (crashes != 1)} in {runs} run{'s' * (runs != 1)}")
