"""What an exception says survives every journey, and its class whenever it can."""
from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
import zlib
from collections.abc import Callable
from decimal import Decimal
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pydantic
import pytest
from failure_kinds import Declined, Liar, Needy, OwnNew, Renamed, Slotted, Tree, Unspeakable, chained, in_context, raised
from hypothesis import given, settings
from hypothesis import strategies as st

from fusee_mp import bounds, errors
from fusee_mp.payload import facts
from fusee_mp.payload.classes import find, name_of, register_exception
from fusee_mp.payload.failure import decode_failure, encode_failure, rebuild_failure


def journey(error: BaseException, **about: Any) -> Any:
    return rebuild_failure(encode_failure(error), **about)


def test_a_class_with_keyword_only_arguments_comes_back_with_its_attributes() -> None:
    """G17"""
    error = journey(raised(chained))
    assert type(error) is Declined
    assert str(error) == "declined: limit" and error.args == ("declined: limit",)
    assert error.code == "limit" and error.amount == Decimal("1.50") and error.seen == (1, {"a"}) and error.status is HTTPStatus.NOT_FOUND
    assert not hasattr(error, "connection")  # It is no plain data; what it was is still told:
    assert "object" in decode_failure(encode_failure(raised(chained))).attributes["connection"]["value"]


def test_a_failed_step_has_itself_as_cause_and_its_own_cause_behind_it() -> None:
    error = journey(raised(chained), step="charge", attempts=3)
    assert type(error) is Declined
    cause = error.__cause__
    assert type(cause) is errors.StepFailed
    assert (cause.step, cause.attempts, cause.type_name) == ("charge", 3, "failure_kinds:Declined")
    assert str(cause) == 'step "charge" failed at attempt 3: failure_kinds:Declined: declined: limit'
    assert type(cause.__cause__) is ZeroDivisionError


def test_a_context_comes_back_and_stays_hidden_if_it_was() -> None:
    error = journey(raised(in_context))
    assert type(error.__context__) is KeyError and not error.__suppress_context__
    assert journey(raised(chained)).__suppress_context__


BUILTIN: list[tuple[Callable[[], Any], type[BaseException], dict[str, Any]]] = [
    (lambda: Path("/nowhere/x").read_text(), FileNotFoundError, {"errno": 2, "filename": "/nowhere/x"}),
    (lambda: b"\xff".decode(), UnicodeDecodeError, {"start": 0, "reason": "invalid start byte", "object": b"\xff"}),
    (lambda: json.loads("{x"), json.JSONDecodeError, {"pos": 1, "doc": "{x"}),
    (lambda: {}["k"], KeyError, {"args": ("k",)}),
    (lambda: zlib.decompress(b"x"), zlib.error, {}),
    (lambda: sqlite3.connect(":memory:").execute("no"), sqlite3.OperationalError, {"sqlite_errorname": "SQLITE_ERROR"}),
    (lambda: compile("a b", "f", "exec"), SyntaxError, {"lineno": 1, "filename": "f"}),
    (lambda: sys.exit(3), SystemExit, {"code": 3}),
    (lambda: __import__("no_such_module"), ModuleNotFoundError, {"name": "no_such_module"}),
    (lambda: next(iter(())), StopIteration, {"value": None}),
    (lambda: subprocess.run(["false"], check=True), subprocess.CalledProcessError, {"returncode": 1, "cmd": ["false"]}),
]


@pytest.mark.parametrize(("call", "kind", "attributes"), BUILTIN, ids=lambda part: getattr(part, "__name__", ""))
def test_exceptions_of_python_and_of_c_come_back_whole(
    call: Callable[[], Any], kind: type[BaseException], attributes: dict[str, Any]
) -> None:
    """G17"""
    before = raised(call)
    after = journey(before)
    assert type(after) is kind and str(after) == str(before) and after.args == before.args
    assert {name: getattr(after, name) for name in attributes} == attributes


@pytest.mark.parametrize("error", [
    Slotted(3), OwnNew(1, 2), Liar("x"), Unspeakable("x"), asyncio.CancelledError("why"), KeyboardInterrupt(),
])
def test_awkward_classes_come_back(error: BaseException) -> None:
    after = journey(error)
    assert type(after) is type(error)
    assert vars(BaseException)["args"].__get__(after) == vars(BaseException)["args"].__get__(error)
    assert getattr(after, "place", None) == getattr(error, "place", None)


def test_the_text_of_an_exception_that_cannot_be_shown_says_why() -> None:
    assert decode_failure(encode_failure(Unspeakable())).message == "<its str() raised RuntimeError>"


class Form(pydantic.BaseModel):
    size: int


def local_error() -> Exception:
    class Local(ValueError):
        pass

    return Local("from inside")


@pytest.mark.parametrize(("error", "type_name", "text"), [
    (local_error(), "test_payload_failure:local_error.<locals>.Local", "from inside"),
    (Needy(), "failure_kinds:Needy", "status 200"),
    (Renamed("x"), "failure_kinds:Elsewhere", "x"),
    (raised(lambda: Form.model_validate({})), "pydantic_core._pydantic_core:ValidationError", "1 validation error for Form"),
])
def test_a_class_that_cannot_be_rebuilt_arrives_as_step_failed_with_its_name(error: BaseException, type_name: str, text: str) -> None:
    after = journey(error, step="s", attempts=1)
    assert type(after) is errors.StepFailed
    assert after.type_name == type_name and (after.step, after.attempts) == ("s", 1)
    assert text in str(after)


def test_a_class_that_is_missing_here_arrives_as_step_failed_with_all_it_had() -> None:
    """G17"""
    data = encode_failure(raised(chained)).replace(b"failure_kinds:Declined", b"no_such_module:Declined")
    after = rebuild_failure(data)
    assert type(after) is errors.StepFailed and after.type_name == "no_such_module:Declined"
    assert after.fields["attributes"]["amount"] == Decimal("1.50")
    assert type(after.__cause__) is ZeroDivisionError
    again = rebuild_failure(encode_failure(after))
    assert isinstance(again, errors.StepFailed) and again.fields == after.fields


def test_a_registered_class_is_found_though_no_import_leads_to_it() -> None:
    error = local_error()
    register_exception(type(error))
    assert type(journey(error)) is type(error)


@pytest.mark.parametrize("name", ["os:system", "sys:modules", "builtins:int", "nope", "", ":", "a:b:c", "failure_kinds:raised"])
def test_a_name_that_leads_to_no_exception_runs_nothing_and_is_step_failed(name: str) -> None:
    data = encode_failure(ValueError("x")).replace(b"builtins:ValueError", name.encode())
    assert type(rebuild_failure(data)) is errors.StepFailed


def test_a_tree_of_groups_comes_back_and_can_be_split() -> None:
    """G17"""
    group = ExceptionGroup("all", [ValueError(1), ExceptionGroup("some", [Declined(code="x", amount=Decimal(1)), KeyError("k")])])
    after = journey(group)
    assert type(after) is ExceptionGroup
    declined, rest = after.split(Declined)
    assert declined.exceptions[0].exceptions[0].code == "x"
    assert [type(error) for error in (rest.exceptions[0], rest.exceptions[1].exceptions[0])] == [ValueError, KeyError]


def test_a_group_of_failure_and_cancellation_and_a_derived_group_keep_their_class() -> None:
    assert type(journey(BaseExceptionGroup("b", [asyncio.CancelledError(), ValueError()]))) is BaseExceptionGroup
    tree = journey(Tree("t", [ValueError(1)]))
    assert type(tree) is Tree and tree.message == "t"


def test_a_group_of_thousands_says_how_many_it_lost() -> None:
    group = ExceptionGroup("many", [ValueError(i) for i in range(5000)])
    failure = decode_failure(encode_failure(group))
    assert len(failure.members) == bounds.FAILURE_NODES_MAX - 1
    assert failure.lost == 5000 - len(failure.members)
    assert f"member 1 of {5000}:" in failure.text()


def test_the_text_shows_the_whole_tree() -> None:
    error = raised(chained)
    error.add_note("try again tomorrow")
    text = decode_failure(encode_failure(ExceptionGroup("g", [error, ValueError("v")]))).text()
    for part in ("builtins:ExceptionGroup: g", "member 1 of 2:", "failure_kinds:Declined: declined: limit", "try again tomorrow",
                 "in chained", "caused by:", "ZeroDivisionError: division by zero", "member 2 of 2:", "ValueError: v"):
        assert part in text


def test_notes_and_the_traceback_of_where_it_was_raised_survive_a_second_journey() -> None:
    error = raised(chained)
    error.add_note("noted")
    once = journey(error, step="a", attempts=1)
    twice = decode_failure(encode_failure(raised(lambda: rethrow(once))))
    assert twice.notes == ["noted"]
    assert "in chained" in twice.traceback and "in rethrow" in twice.traceback


def rethrow(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize("kind", errors.BY_CODE.values())
def test_errors_of_this_package_keep_code_and_fields(kind: type[errors.FuseeError]) -> None:
    error = kind("said", id="o-1", position=7, when=(1, 2))
    after = journey(error)
    assert type(after) is kind and after.code == kind.code and str(after) == "said" and after.fields == error.fields
    assert decode_failure(encode_failure(error)).code == kind.code


def test_fields_that_are_no_plain_data_become_words_and_the_others_stay() -> None:
    after = journey(errors.NotFound("no", id="x", handle=object()))
    assert after.fields["id"] == "x" and "object" in after.fields["handle"]


def test_text_that_is_too_long_is_cut_and_says_so() -> None:
    error = ValueError("x" * 100_000, "y" * 100_000)
    failure = decode_failure(encode_failure(error))
    assert len(failure.message) < bounds.FAILURE_MESSAGE_CHARS_MAX + 100 and "characters cut]" in failure.message
    assert all("characters cut]" in arg for arg in failure.args)


def test_a_huge_failure_stays_within_its_bound() -> None:
    error: Exception = ValueError("ä" * 50_000)
    for _ in range(200):
        cause, error = error, ValueError("\ud800" * 50_000)
        error.__cause__ = cause
        for i in range(200):
            setattr(error, f"attribute_{i}", "\u2028" * 5_000)
    data = encode_failure(error)
    assert len(data) <= bounds.FAILURE_BYTES_MAX
    assert isinstance(rebuild_failure(data), ValueError)


def test_exceptions_that_refer_to_each_other_end() -> None:
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    assert str(journey(first).__cause__) == "b"
    endless = ValueError()
    endless.args = (endless,)
    endless.me = endless  # type: ignore[attr-defined]
    assert type(journey(endless)) is ValueError


def test_endless_recursion_is_described() -> None:
    def deeper() -> None:
        deeper()

    assert type(journey(raised(deeper))) is RecursionError


SCRIPT = """
import sys
from fusee_mp.payload.failure import encode_failure, rebuild_failure
class Mine(Exception): pass
if __name__ == "__main__":
    if sys.argv[1] == "write":
        sys.stdout.buffer.write(encode_failure(Mine("hello")))
    else:
        print(type(rebuild_failure(sys.stdin.buffer.read())) is Mine)
"""


def run(arguments: list[str], directory: Path, **options: Any) -> bytes:
    path = f"{directory}:{Path(__file__).resolve().parents[2]}"
    return subprocess.run([sys.executable, *arguments], cwd=directory, env={"PYTHONPATH": path}, check=True, capture_output=True,
                          timeout=60, **options).stdout


def test_a_class_of_the_main_script_is_found_by_a_script_and_by_who_imports_it(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SCRIPT)
    written = run(["shop.py", "write"], tmp_path)
    assert b"shop:Mine" in written
    assert run(["shop.py", "read"], tmp_path, input=written) == b"True\n"
    importer = "import sys, shop; print(type(shop.rebuild_failure(sys.stdin.buffer.read())) is shop.Mine)"
    assert run(["-c", importer], tmp_path, input=written) == b"True\n"
    assert run(["-m", "shop", "read"], tmp_path, input=run(["-m", "shop", "write"], tmp_path)) == b"True\n"


def test_find_answers_none_for_a_module_that_raises_when_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "raising_module.py").write_text("raise SystemExit(3)")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert find("raising_module:E") is None
    assert find(name_of(Declined)) is Declined


@pytest.mark.parametrize("data", [
    b"", b"{", b"[]", b"3", b'{"type":1}', b"\xff", b'{"type":"a:B","message":"m","cause":3}', b"[" * 100_000,
])
def test_bytes_that_are_no_failure_raise_a_payload_error(data: bytes) -> None:
    with pytest.raises(errors.PayloadError, match="failure: expected the JSON of an exception"):
        rebuild_failure(data)


def test_a_fact_of_an_unknown_kind_makes_the_exception_generic() -> None:
    data = encode_failure(ValueError((1,))).replace(b'"$type":"tuple"', b'"$type":"later"')
    after = rebuild_failure(data)
    assert type(after) is errors.StepFailed and after.fields["args"] == [{"$type": "later", "value": [1]}]


FACTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary() | st.decimals(allow_nan=False)
    | st.uuids() | st.dates() | st.times() | st.datetimes() | st.timedeltas() | st.sampled_from(HTTPStatus)
    | st.just(Path("a/b")),
    lambda inner: st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple)
    | st.dictionaries(st.text() | st.integers(), inner, max_size=3) | st.frozensets(st.text(), max_size=3)
    | st.sets(st.integers(), max_size=3), max_leaves=6)


@settings(max_examples=300, deadline=None)
@given(st.lists(FACTS, max_size=3), st.dictionaries(st.sampled_from(["a", "b", "$type"]), FACTS))
def test_plain_data_always_survives(args: list[Any], attributes: dict[str, Any]) -> None:
    error = Slotted(0)
    error.args = tuple(args)
    vars(error).update(attributes)
    after = journey(error)
    assert after.args == error.args and {name: value for name, value in vars(after).items() if name in attributes} == attributes
    assert all(type(a) is type(b) for a, b in zip(after.args, error.args))


@settings(max_examples=200, deadline=None)
@given(st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(
    st.sampled_from(["$type", "value", "x"]),
    inner | st.sampled_from(["dict", "tuple", "enum", "decimal", "datetime", "repr", "set", "float"]))))
def test_altered_facts_raise_nothing_but_a_misfit(data: Any) -> None:
    try:
        facts.load(data)
    except facts.Misfit:
        pass
