"""Which behaviours the tests have shown. A test that shows one begins its docstring with the number, and says more after a colon or a full
stop: `D12`, `A1, A3.`, `E1 to E15, E18: over a restart`. Numbers stand nowhere else in it, so that none is missed.

`pytest --behaviours` (so `bin/test --behaviours`) ends with a table of them.
"""
from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import pytest

LAST: Final = {"A": 32, "B": 47, "C": 52, "D": 44, "E": 25, "G": 20}
HOMES: Final = ("memory", "embedded", "server")

NUMBER: Final = re.compile(r"\b[A-G][0-9]+\b")
OPENING: Final = re.compile(rf"(?P<spans>{NUMBER.pattern}(?:(?:, | to ){NUMBER.pattern})*)(?:[.:]\s|[.:]?\s*\Z)")
BORNE: Final = pytest.StashKey[tuple[str, ...]]()


def named(letter: str, value: int) -> str:
    return f"{letter}{value:02}" if letter == "G" else f"{letter}{value}"


EVERY: Final = tuple(named(letter, value) for letter, last in LAST.items() for value in range(1, last + 1))


def borne(docstring: str | None) -> tuple[str, ...]:
    """The numbers that a docstring bears. ValueError when it has some that are not written as they are to be, or that there are not."""
    mentioned = NUMBER.findall(docstring or "")
    if not mentioned:
        return ()
    opening = OPENING.match(docstring or "")
    if opening is None or len(NUMBER.findall(opening["spans"])) != len(mentioned):
        raise ValueError(f'expected numbers at the beginning only, as "D12", "A1, A3: more" or "E1 to E15.", found {docstring!r}')
    found = [number for span in opening["spans"].split(", ") for number in _of_span(span)]
    if repeated := sorted({number for number in found if found.count(number) > 1}):
        raise ValueError(f"expected each number once, found {', '.join(repeated)} again in {docstring!r}")
    return tuple(found)


def _of_span(span: str) -> tuple[str, ...]:
    first, *others = span.split(" to ")
    last = others[-1] if others else first
    for end in (first, last):
        if end not in EVERY:
            there_are = (f"{named(letter, 1)} to {named(letter, last)}" for letter, last in LAST.items())
            raise ValueError(f"there is no behaviour {end}: they are {', '.join(there_are)}")
    found = EVERY[EVERY.index(first):EVERY.index(last) + 1]
    if len(others) > 1 or first[0] != last[0] or len(found) <= len(others):
        raise ValueError(f'expected two numbers of one letter in rising order, found "{span}"')
    return found


@dataclass
class Tally:
    """How the tests that bear one number ended."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    homes: set[str] = field(default_factory=set)

    def add(self, outcome: str, homes: set[str]) -> None:
        setattr(self, outcome, getattr(self, outcome) + 1)
        if outcome == "passed":
            self.homes |= homes


def tallies(reports: Iterable[pytest.TestReport]) -> dict[str, Tally]:
    """By number. A test is one, however many reports there are of it: it failed if any did, and was skipped if none passed its call."""
    ends: dict[str, str] = {}
    properties: dict[str, dict[str, object]] = {}
    for report in reports:
        properties[report.nodeid] = dict(report.user_properties)
        before = ends.get(report.nodeid, "passed")
        ends[report.nodeid] = max(before, report.outcome, key=("passed", "skipped", "failed").index)
    table: dict[str, Tally] = {}
    for test, outcome in ends.items():
        for number in str(properties[test].get("behaviours", "")).split():
            table.setdefault(number, Tally()).add(outcome, set(str(properties[test].get("homes", "")).split()))
    return table


def lines(table: dict[str, Tally]) -> Iterator[str]:
    yield f"{'':6}{'passed':>8}{'failed':>8}{'skipped':>8}  passed over"
    for number in EVERY:
        if tally := table.get(number):
            homes = ", ".join(home for home in HOMES if home in tally.homes)
            yield f"{number:6}{tally.passed:8}{tally.failed:8}{tally.skipped:8}  {homes}".rstrip()
    if missing := [number for number in EVERY if number not in table]:
        yield f"no test here bears {len(missing)} of {len(EVERY)}: {' '.join(missing)}"


# What pytest calls.


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--behaviours", action="store_true", help="end with a table of the numbered behaviours that the tests show")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Properties of a test travel with its reports, also between processes."""
    for item in items:
        try:
            numbers = borne(getattr(getattr(item, "function", None), "__doc__", None))
        except ValueError as error:
            raise pytest.UsageError(f"{item.nodeid}: {error}") from None
        if numbers:
            item.user_properties += [("behaviours", " ".join(numbers)), ("homes", " ".join(_homes(item)))]


def _homes(item: pytest.Item) -> set[str]:
    """Tests are made over homes by a parameter that is the name of one."""
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return {value for value in parameters if isinstance(value, str) and value in HOMES}


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.getoption("behaviours"):
        terminalreporter.section("behaviours")
        reports = (report for of_kind in terminalreporter.stats.values() for report in of_kind if isinstance(report, pytest.TestReport))
        for line in lines(tallies(reports)):
            terminalreporter.write_line(line)
