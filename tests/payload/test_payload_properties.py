"""For any type and any value: it comes back the same, or it is refused. And the fast way and the slow way cannot be told apart."""
from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta, timezone
from decimal import Decimal
from functools import reduce
from operator import or_
from typing import Any, Literal

import msgspec
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from payload_types import Cat, Color, Dog, Level, Line, Movie, Node, Order, Pair, Place, Point, Right, same

from fusee_mp.errors import PayloadError
from fusee_mp.payload.converter import Codec, codec_of


@dataclass(frozen=True)
class Typed:
    """An annotation and a strategy for values that fit it."""

    annotation: Any
    values: st.SearchStrategy[Any]
    is_hashable: bool = True


ZONES = st.none() | st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes))) | st.timezones()
WHOLE = st.integers(-(2**70), 2**70)
SCALARS = [
    Typed(None, st.none()), Typed(bool, st.booleans()), Typed(int, WHOLE), Typed(float, st.floats()), Typed(str, st.text()),
    Typed(bytes, st.binary()), Typed(Decimal, st.decimals(allow_nan=False, allow_infinity=False)), Typed(st.uuids, st.uuids()),
    Typed(st.dates, st.dates()), Typed(st.times, st.times()), Typed(timedelta, st.timedeltas()),
    Typed(st.datetimes, st.datetimes(timezones=ZONES)), Typed(Color, st.sampled_from(Color)), Typed(Level, st.sampled_from(Level)),
    Typed(Right, st.integers(0, 3).map(Right)), Typed(Literal["a", 1, True], st.sampled_from(["a", 1, True])),
]
TYPES = {st.uuids: "uuid.UUID", st.dates: "datetime.date", st.times: "datetime.time", st.datetimes: "datetime.datetime"}


def _named(typed: Typed) -> Typed:
    name = TYPES.get(typed.annotation)
    if name is None:
        return typed
    module, _, attribute = name.partition(".")
    return Typed(getattr(__import__(module), attribute), typed.values)


SCALARS = [_named(typed) for typed in SCALARS]
TEXT, REAL = st.text(), st.floats(allow_nan=False)
RECORDS = [
    Typed(Order, st.builds(Order, TEXT, st.decimals(allow_nan=False, allow_infinity=False), REAL), False),
    Typed(Line, st.builds(Line, TEXT, st.none() | st.datetimes(), st.frozensets(TEXT))),
    Typed(Node[int], st.builds(Node, WHOLE, st.none() | st.builds(Node, WHOLE)), False), Typed(Cat, st.builds(Cat, TEXT), False),
    Typed(Dog, st.builds(Dog, TEXT), False), Typed(Pair, st.builds(Pair, WHOLE, REAL), False),
    Typed(Point, st.builds(Point, WHOLE, WHOLE), False),
    Typed(Movie, st.fixed_dictionaries({"title": TEXT}, optional={"year": WHOLE}), False),
    Typed(Place, st.builds(Place, WHOLE, st.binary())),
]
PLAIN = st.recursive(
    st.none() | st.booleans() | WHOLE | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=8)
ANYTHING = Typed(Any, PLAIN, False)


@st.composite
def typed(draw: st.DrawFn, depth: int = 2) -> Typed:
    if depth == 0 or draw(st.booleans()):
        return draw(st.sampled_from([*SCALARS, *RECORDS, ANYTHING]))
    return draw(st.sampled_from([_list, _tuple, _pair, _set, _frozenset, _dict, _union]))(draw, depth - 1)


def _list(draw: st.DrawFn, depth: int) -> Typed:
    item = draw(typed(depth))
    return Typed(list[item.annotation], st.lists(item.values, max_size=4), False)


def _tuple(draw: st.DrawFn, depth: int) -> Typed:
    item = draw(typed(depth))
    return Typed(tuple[item.annotation, ...], st.lists(item.values, max_size=4).map(tuple), item.is_hashable)


def _pair(draw: st.DrawFn, depth: int) -> Typed:
    first, second = draw(typed(depth)), draw(typed(depth))
    is_hashable = first.is_hashable and second.is_hashable
    return Typed(tuple[first.annotation, second.annotation], st.tuples(first.values, second.values), is_hashable)


def _hashable(draw: st.DrawFn, depth: int) -> Typed:
    item = draw(typed(depth))
    return item if item.is_hashable else draw(st.sampled_from(SCALARS))


def _set(draw: st.DrawFn, depth: int) -> Typed:
    item = _hashable(draw, depth)
    return Typed(set[item.annotation], st.sets(item.values, max_size=4), False)


def _frozenset(draw: st.DrawFn, depth: int) -> Typed:
    item = _hashable(draw, depth)
    return Typed(frozenset[item.annotation], st.frozensets(item.values, max_size=4))


def _dict(draw: st.DrawFn, depth: int) -> Typed:
    key, value = _hashable(draw, depth), draw(typed(depth))
    return Typed(dict[key.annotation, value.annotation], st.dictionaries(key.values, value.values, max_size=4), False)


def _union(draw: st.DrawFn, depth: int) -> Typed:
    members = draw(st.lists(typed(depth), min_size=2, max_size=3))
    annotation = reduce(or_, [type(None) if m.annotation is None else m.annotation for m in members])
    assume(ANYTHING not in members)
    return Typed(annotation, st.one_of([m.values for m in members]), all(m.is_hashable for m in members))


def holds_nan(value: Any) -> bool:
    """A set or dict key with NaN in it equals nothing, not even its own copy."""
    return "nan" in repr(value)


@settings(max_examples=600, deadline=None)
@given(st.data())
def test_every_value_that_fits_its_annotation_comes_back_the_same(data: st.DataObject) -> None:
    kind = data.draw(typed())
    value = data.draw(kind.values)
    encoded, copy = codec_of(kind.annotation).roundtrip(value)
    if not holds_nan(value):
        assert copy == value
    assert type(copy) is type(value)
    again, _ = codec_of(kind.annotation).roundtrip(copy)
    assert sorted(again) == sorted(encoded)  # The order within sets may differ.


@settings(max_examples=600, deadline=None)
@given(st.data())
def test_the_fast_way_and_the_slow_way_write_and_read_the_same(data: st.DataObject) -> None:
    kind = data.draw(typed())
    value = data.draw(kind.values)
    codec = codec_of(kind.annotation)
    assume(codec._read is not None and codec._fits(value))
    slow = msgspec.json.encode(codec._form.dump(value))
    assert codec.encode(value) == slow
    assert same(codec._read(slow), codec._form.load(msgspec.json.decode(slow)))


@settings(max_examples=600, deadline=None)
@given(st.data())
def test_a_value_of_another_type_is_refused_or_comes_back_equal(data: st.DataObject) -> None:
    kind, other = data.draw(typed()), data.draw(typed())
    value = data.draw(other.values)
    try:
        copy = codec_of(kind.annotation).roundtrip(value)[1]
    except PayloadError:
        return
    assert copy == value or holds_nan(value)


@settings(max_examples=600, deadline=None)
@given(st.data())
def test_any_json_under_any_annotation_gives_a_value_or_a_payload_error(data: st.DataObject) -> None:
    codec = codec_of(data.draw(typed()).annotation)
    plain = data.draw(PLAIN)
    try:
        value = codec.decode(msgspec.json.encode(plain))
    except PayloadError:
        return
    assert codec.roundtrip(value)[1] == value or holds_nan(value)


@settings(max_examples=300, deadline=None)
@given(st.data(), st.binary(max_size=20))
def test_any_bytes_under_any_annotation_give_a_value_or_a_payload_error(data: st.DataObject, noise: bytes) -> None:
    kind = data.draw(typed())
    codec = Codec(kind.annotation)
    good = codec.encode(data.draw(kind.values))
    at = data.draw(st.integers(0, len(good)))
    for bad in (noise, good[:at] + noise, good[:at] + noise + good[at + 1:]):
        try:
            codec.decode(bad)
        except PayloadError:
            continue
