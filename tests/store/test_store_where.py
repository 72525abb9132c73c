"""The filter language, and that SQL means what the predicate means."""
from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_records import attributes as attributes_set
from store_records import done, folded, quiet, start

from fusee_mp.core.where import OPERATORS, STATUSES, matches, parse
from fusee_mp.errors import Rejected
from fusee_mp.store import Store, select
from fusee_mp.store import attributes as attributes_index
from fusee_mp.store.schema import INDEXED_CHARS

# SQLite cuts JSON text at NUL and reads the last digit of long fractions as it likes: neither is worth a rule.
SHORT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=4)
# The index has only the beginning of such.
LONG = st.builds(lambda n, c, end: c * n + end, st.integers(INDEXED_CHARS - 2, INDEXED_CHARS + 1), st.sampled_from("aé"), SHORT)
TEXT = st.one_of(SHORT, LONG)
INTEGERS = st.one_of(st.integers(-3, 3), st.sampled_from([1 << 53, (1 << 53) + 1, (1 << 63) - 1, -(1 << 63), 1 << 70]))
FLOATS = st.one_of(st.integers(-12, 12).map(lambda n: n / 4), st.sampled_from([2.0**53, 2.0**63, 1e300, -0.0]))
POOL = [
    None, True, False, 0, 1, -1, 1.0, 0.5, 1 << 53, (1 << 53) + 1, 2.0**53, (1 << 63) - 1, 1 << 63, 1 << 70, -0.0,
    "", "a", "ab", "b", "é", "1",
]
SCALARS = st.one_of(st.sampled_from(POOL), st.none(), st.booleans(), INTEGERS, FLOATS, TEXT)
NAMES = st.sampled_from(["a", "x'y", "n" * (INDEXED_CHARS + 1)])
ATTRIBUTES = st.dictionaries(NAMES, st.one_of(SCALARS, st.just([1]), st.just({"a": 1})), max_size=2)
INSTANTS = st.integers(0, 4)


@st.composite
def wheres(draw: st.DrawFn) -> dict[str, Any]:
    return draw(st.dictionaries(
        st.one_of(NAMES, st.sampled_from(["type", "status", "id", "started", "finished"])), st.nothing() | st.just(None), max_size=2,
    ).flatmap(lambda keys: st.fixed_dictionaries({key: term_for(key) for key in keys})))


def term_for(key: str) -> st.SearchStrategy[Any]:
    if key == "status":
        return operators(st.sampled_from(["open", *STATUSES]), ["eq", "ne", "in"])
    if key in ("type", "id"):
        return operators(st.sampled_from(["t0", "t1", "i0", "i1", "i", "z"]), ["eq", "ne", "in", "gt", "gte", "lt", "lte", "prefix"])
    if key in ("started", "finished"):
        return operators(INSTANTS, ["eq", "ne", "in", "gt", "gte", "lt", "lte", "exists"])
    return operators(SCALARS, ["eq", "ne", "in", "gt", "gte", "lt", "lte", "prefix", "exists"])


def operators(values: st.SearchStrategy[Any], names: list[str]) -> st.SearchStrategy[Any]:
    ordered = values.filter(lambda value: value is not None and not isinstance(value, bool))
    of = {"in": st.lists(values, max_size=3), "prefix": TEXT, "exists": st.booleans()} | dict.fromkeys(("gt", "gte", "lt", "lte"), ordered)
    term = st.sampled_from(names).flatmap(lambda name: st.fixed_dictionaries({name: of.get(name, values)}))
    return st.one_of(values, term, st.tuples(term, term).map(lambda two: two[0] | two[1]))


@settings(max_examples=500, deadline=None)
@given(
    runs=st.lists(st.tuples(ATTRIBUTES, INSTANTS, st.integers(0, 5), st.none() | ATTRIBUTES), min_size=1, max_size=7), where=wheres(),
    bounds=st.tuples(*[st.sampled_from([0, 1, 2, 1000])] * 3), limit=st.integers(1, 3),
)
def test_lists_and_counts_find_exactly_what_the_predicate_matches(
    runs: list[tuple[dict[str, Any], int, int, dict[str, Any] | None]], where: dict[str, Any], bounds: tuple[int, int, int], limit: int
) -> None:
    """G16: whichever way the rows are found: by the index on attributes in order or sorted, by type and status, or one after another."""
    records = []
    for run, (attributes, at, state, later) in enumerate(runs, start=1):
        text = json.dumps(attributes, ensure_ascii=False).encode()
        records.append(start(run, f"i{run % 3}", type=f"t{run % 2}", at=at, attributes=text if state else None))
        if later is not None:
            records.append(attributes_set(run, json.dumps(later, ensure_ascii=False).encode()))
        if state > 3:
            records.append(done(run, "failed" if state == 4 else "ok", at=at + 1))
        elif state > 1:
            records.append(quiet(run, parked=state == 3))
    store = folded(*records)
    lines = store.read("list", ())
    expected = [line.run for line in lines if matches(parse(where), reserved_of(line), json.loads(line.attributes))]
    with patched_bounds(*bounds):
        assert [line.run for line in store.read("list", (where,))] == expected
        assert list(paged(store, where, limit)) == expected
        assert store.read("count", (where,)) == len(expected)
    store.close()


@contextmanager
def patched_bounds(counted: int, sorted_: int, branches: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(select, "COUNTED_MAX", counted)
        patch.setattr(select, "SORTED_MAX", sorted_)
        patch.setattr(select, "BRANCHES_MAX", branches)
        patch.setattr(attributes_index, "STRETCHES_MAX", branches)
        yield


def paged(store: Store, where: dict[str, Any], limit: int) -> Iterator[int]:
    after = None
    while page := store.read("list", (where, limit, after)):
        yield from (line.run for line in page)
        after = page[-1].cursor


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("name", ["a", "a.b", "é", "$", "a[0]", "x'y", "?", "#"])
def test_every_operator_means_the_same_for_every_pair_of_values(operator: str, name: str) -> None:
    values: list[Any] = [*POOL, [1], {"a": 1}, "a" * INDEXED_CHARS, "a" * INDEXED_CHARS + "b"]
    store = folded(start(999, "none"), *(start(n, f"i{n}", attributes=json.dumps({name: v}).encode()) for n, v in enumerate(values)))
    for operand in ([True, False] if operator == "exists" else [[v] for v in POOL] if operator == "in" else POOL):
        if operator in ("gt", "gte", "lt", "lte") and (operand is None or isinstance(operand, bool)):
            continue
        if operator == "prefix" and not isinstance(operand, str):
            continue
        where = parse({name: {operator: operand}})
        expected = {n for n, value in enumerate(values) if matches(where, {}, {name: value})} | {999 for _ in [0] if matches(where, {}, {})}
        for bounds in ((0, 0, 0), (1000, 1000, 1000)):
            with patched_bounds(*bounds):
                assert {line.run for line in store.read("list", ({name: {operator: operand}},))} == expected, operand
                assert store.read("count", ({name: {operator: operand}},)) == len(expected), operand
    store.close()


def reserved_of(line: Any) -> dict[str, Any]:
    return {"type": line.type, "id": line.id, "status": line.status, "started": line.started, "finished": line.finished}


@pytest.mark.parametrize(("where", "attributes", "expected"), [
    ({"n": 1}, {"n": 1.0}, True), ({"n": 1}, {"n": True}, False), ({"n": True}, {"n": 1}, False), ({"n": "1"}, {"n": 1}, False),
    ({"n": None}, {}, False), ({"n": None}, {"n": None}, True), ({"n": {"ne": 1}}, {}, True), ({"n": {"exists": True}}, {"n": None}, True),
    ({"n": {"gte": 60, "lt": 200}}, {"n": 60}, True), ({"n": {"gte": 60, "lt": 200}}, {"n": 200}, False),
    ({"n": {"gt": "a"}}, {"n": "b"}, True), ({"n": {"gt": "a"}}, {"n": 5}, False), ({"n": {"lt": 5}}, {"n": False}, False),
    ({"n": {"in": [1, "x"]}}, {"n": "x"}, True), ({"n": {"in": []}}, {"n": "x"}, False), ({"n": {"prefix": "ab"}}, {"n": "abc"}, True),
    ({"n": 1, "m": 2}, {"n": 1}, False), ({}, {}, True),
])
def test_the_meaning_of_terms(where: dict[str, Any], attributes: dict[str, Any], expected: bool) -> None:
    assert matches(parse(where), {}, attributes) is expected


@pytest.mark.parametrize(("where", "message"), [
    ([1], "a filter is a mapping"), ({1: 2}, "keys are names"), ({"": 2}, "keys are names"), ({'a"b': 1}, "quote, backslash"),
    ({"a": {}}, "empty mapping"), ({"a": {"like": "x"}}, "operator 'like': there are eq, ne"), ({"a": {1: "x"}}, "operator 1"),
    ({"status": "done"}, "names 'done': there are open, running"), ({"status": {"gt": "ok"}}, "only with eq, ne, in"),
    ({"status": {"in": ["ok", "nope"]}}, "names 'nope'"), ({"type": 5}, "it takes text"), ({"started": "yesterday"}, "ISO 8601"),
    ({"started": "2026-01-01T00:00:00"}, "with a zone"), ({"started": True}, "ISO 8601"), ({"a": {"gt": None}}, "needs a number or text"),
    ({"a": {"lt": True}}, "needs a number or text"), ({"a": {"in": 5}}, "give a list"), ({"a": {"in": list(range(1001))}}, "at most 1000"),
    ({f"a{n}": {"in": list(range(1000))} for n in range(6)}, "at most 5,000 values, this one 6,000"),
    ({"a": {"prefix": 1}}, "a prefix is text"), ({"a": {"exists": 1}}, "say true or false"), ({"a": [1]}, "compared with list"),
    ({"a": float("nan")}, "NaN"), ({"a": "x\0"}, "without NUL"), ({"a": "\ud800"}, "lone surrogates"), ({"a": "x" * 5000}, "5000 bytes"),
    ({f"a{i}": 1 for i in range(65)}, "at most 64"),
])
def test_a_wrong_filter_is_rejected_with_what_is_allowed(where: Any, message: str) -> None:
    with pytest.raises(Rejected, match=message):
        parse(where)


def test_a_filter_may_name_as_many_values_as_its_bound() -> None:
    attributes = {n: json.dumps({f"a{m}": n for m in range(4)} | {"t": f"t{n}"}).encode() for n in range(1, 50)}
    store = folded(*(start(n, f"i{n}", attributes=given) for n, given in attributes.items()))
    where: dict[str, Any] = {f"a{m}": {"in": [m, "x", None, *range(100, 1097)]} for m in range(3)}
    where |= {"t": {"in": [f"t{n}" for n in range(1, 1001)]}, "id": {"in": [f"i{n}" for n in range(1, 1001)]}}
    for bounds in ((0, 0, 0), (1000, 1000, 1000)):
        with patched_bounds(*bounds):
            assert store.read("count", (where,)) == 0
            where["a0"] = where["a1"] = where["a2"] = {"in": [7, "x", None, *range(100, 1097)]}
            assert [line.run for line in store.read("list", (where,))] == [7]
            where["a0"] = {"in": [8]}


def test_instants_may_be_datetimes_texts_or_milliseconds() -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    milliseconds = 1767323045000
    for given_as in (moment, moment.isoformat(), milliseconds, "2026-01-02T04:04:05+01:00"):
        assert matches(parse({"started": {"gte": given_as, "lte": given_as}}), {"started": milliseconds}, {})


def test_names_and_values_are_never_text_of_a_statement() -> None:
    store = folded(start(attributes=b'{"x\'y":"\'; drop table run --"}'))
    for where in ({"x'y": "'; drop table run --"}, {"x') or 1=1 --": 1}, {"type": "' or 1=1 --"}):
        assert store.read("count", (where,)) == ("x'y" in where)


def test_a_page_continues_behind_its_last_line_and_newcomers_do_not_disturb_it() -> None:
    store = Store.open(":memory:")
    folded(*(start(run, f"i{run}", type=f"t{run % 3}") for run in range(1, 31)), store=store)
    seen, after = [], None
    while page := store.read("list", ({"status": "open"}, 7, after)):
        seen += [line.run for line in page]
        after = page[-1].cursor
        folded(start(100 + len(seen), "new"), store=store)
    assert seen == list(range(30, 0, -1))


@pytest.mark.parametrize("after", ["", "5", "rxyz", "r" + "f" * 30, "r" + "f" * 16, "r-1", "r1_0"])
def test_a_cursor_that_no_list_made_is_rejected(after: str) -> None:
    with pytest.raises(Rejected, match="was not made by a list"):
        folded(start()).read("list", (None, 10, after))


@pytest.mark.parametrize(("method", "args", "message"), [
    ("drop", (), "there are state"), ("find", (), "takes 1 to 1 arguments, not 0"), ("find", (5,), "Expected `str`"),
    ("list", (None, 0), "1 to 100000 entries"), ("due", (5, 10, "x"), "Expected"), ("fetch", (1, 2), "not 2"),
])
def test_a_wrong_question_is_rejected(method: str, args: tuple[Any, ...], message: str) -> None:
    with pytest.raises(Rejected, match=message):
        folded(start()).read(method, args)
