"""What is annotated comes back equal and of the same type; what would not is refused where it is sent, by name."""
from __future__ import annotations

import collections
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, NewType, Optional, Union
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pytest
from payload_types import (
    Attr,
    Cat,
    Checked,
    Child,
    Color,
    Dog,
    Hidden,
    Level,
    Line,
    Model,
    Movie,
    Node,
    Odd,
    Order,
    Pair,
    Parcel,
    Place,
    Point,
    Restless,
    Right,
    Strict,
    same,
)

from fusee_mp import bounds
from fusee_mp.errors import PayloadError
from fusee_mp.payload.converter import Codec, codec_of

BERLIN = ZoneInfo("Europe/Berlin")
NOON = datetime(2024, 5, 1, 12, 0, 0, 123456)

CARRIED: list[tuple[Any, Any]] = [
    (None, None), (bool, True), (int, -(2**200)), (float, 1.5), (float, math.inf), (float, -0.0), (str, "ä\0\u2028😀"),
    (bytes, b"\xff\0"), (bytearray, bytearray(b"x")), (UUID, UUID(int=7)), (Decimal, Decimal("1.10")), (Path, Path("/a/b")),
    (PurePosixPath, PurePosixPath("x")), (date, date(1, 1, 1)), (time, time(1, 2, 3, 4)), (time, time(1, tzinfo=UTC)),
    (timedelta, timedelta.max),
    (timedelta, timedelta(microseconds=-1)), (datetime, NOON), (datetime, NOON.replace(tzinfo=UTC)),
    (datetime, NOON.replace(tzinfo=timezone(timedelta(hours=-5, minutes=-30)))), (datetime, NOON.replace(tzinfo=BERLIN)),
    (datetime, datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN, fold=1)), (datetime, datetime(2024, 3, 31, 2, 30, tzinfo=BERLIN)),
    (datetime, datetime(1880, 1, 1, tzinfo=BERLIN)),
    (list[int], [1, 2]), (set[str], {"a", "b"}), (frozenset[int], frozenset({1})), (tuple[int, str], (1, "a")),
    (tuple[int, ...], (1, 2, 3)),
    (tuple[()], ()), (list[tuple[int, set[date]]], [(1, {date(2024, 1, 1)})]), (Sequence[int], [1]), (Mapping[str, int], {"a": 1}),
    (dict[str, int], {"b": 1, "a": 2}), (dict[int, str], {1: "a", -2: "b"}), (dict[UUID, int], {UUID(int=1): 1}),
    (dict[Color, int], {Color.RED: 1}),
    (dict[Level, int], {Level.HIGH: 1}), (dict[tuple[int, int], str], {(1, 2): "a"}), (dict[float, int], {0.5: 1}),
    (dict[bool, int], {True: 1}),
    (dict[int | str, int], {1: 1, "1": 2}), (dict[datetime, int], {NOON: 1}),
    (Optional[int], None), (int | None, 3), (Union[int, str], "a"),  # noqa: UP007, UP045
    (int | float, 1), (int | float, 1.0), (float | bool, True),
    (str | datetime, NOON), (str | bytes, b"a"), (str | bytes, "a"), (list[int] | set[int], {1}), (Order | Line, Line("a")),
    (Order | dict[str, Any], {"$type": "Order", "value": 1}), (Cat | Dog, Dog("rex")), (Cat | None, Cat("tom")),
    (Model | Order, Order("a")),
    (Literal["a", 1, True, None], True), (Literal["a", 1, True, None], 1), (Literal[Color.RED], Color.RED),
    (Order, Order("a", Decimal("1.50"), 2.5)), (Line, Line("a", NOON, frozenset({"x"}))), (Node[int], Node(1, Node(2))),
    (Node[Order], Node(Order("a"))), (Child, Child(1, Node(2), "c")), (Hidden, Hidden(5)), (Checked, Checked(1)),
    (Parcel, Parcel([Line("a")], {1: (1, "x")}, Path("p"), Line("z"), {"k": [None]})),
    (Attr, Attr(1, "s", [1])), (Strict, Strict(3)), (Point, Point(1, 2)), (Pair, Pair(1, 2.0)), (Model, Model(when=NOON, tags={"a"})),
    (list[Model], [Model(when=NOON)]), (Movie, {"title": "a"}), (Movie, {"title": "a", "year": 1}), (Place, Place(1, b"x")),
    (Color, Color.RED), (Level, Level.LOW), (Odd, Odd.PAIR), (Odd, Odd.HALF), (Right, Right.READ | Right.WRITE),
    (NewType("UserId", int), 3), (Annotated[int, "doc"], 3), (Annotated[int, msgspec.Meta(ge=3)], 3),
    (Any, {"a": [1, 1.5, None, True, "x", {"b": []}]}), (object, [1]), (list, [1, "a"]), (dict, {"a": 1}), (tuple, (1, "a")),
]


def in_one_order(part: Any) -> str:
    """The name of a test is the same in every process, though sets print in any order."""
    return str(sorted(part) if isinstance(part, set) else part)[:50]


@pytest.mark.parametrize(("annotation", "value"), CARRIED, ids=in_one_order)
def test_an_annotated_value_comes_back_equal_and_of_the_same_type(annotation: Any, value: Any) -> None:
    codec = codec_of(annotation)
    data, copy = codec.roundtrip(value)
    assert same(copy, value)
    assert same(codec.decode(data), value)
    assert codec.encode(value) == data
    msgspec.json.decode(data)  # It is JSON that anybody can read.


def test_a_zone_survives_with_its_name_and_the_second_reading_of_a_repeated_hour() -> None:
    second = datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN, fold=1)
    copy = codec_of(datetime).roundtrip(second)[1]
    assert copy.tzinfo is BERLIN
    assert copy.utcoffset() == second.utcoffset() == timedelta(hours=1)


REFUSED: list[tuple[Any, Any, str, str]] = [
    (Any, (1, 2), "result", "tuple (1, 2)"), (Any, {1}, "result", "set {1}"), (Any, b"x", "result", "bytes"),
    (Any, NOON, "result", "datetime"),
    (Any, Order("a"), "result", "Order"), (Any, Color.RED, "result", "Color"), (Any, math.nan, "result", "nan"),
    (Any, {1: 2}, "result", "key int 1"),
    (Any, {"items": [0, {"when": NOON}]}, 'result["items"][1]["when"]', "datetime"),
    (Any, collections.OrderedDict(), "result", "OrderedDict"),
    (Any, "\ud800", "result", "lone surrogate at position 0"), (str, "a\udfff", "result", "lone surrogate at position 1"),
    (int, True, "result", "bool True"), (int, 1.0, "result", "float 1.0"), (str, 1, "result", "int 1"), (int, None, "result", "None"),
    (int, Level.LOW, "result", "Level"), (float, 2**53 + 1, "result", "no float equals"), (float, 10**400, "result", "no float equals"),
    (Decimal, Decimal("NaN"), "result", "finite Decimal"), (Decimal, Decimal("Infinity"), "result", "finite Decimal"),
    (datetime, NOON.replace(tzinfo=timezone(timedelta(seconds=5))), "result", "reads back as another"), (date, NOON, "result", "datetime"),
    (list[int], (1,), "result", "tuple"), (list[int], [1, "a"], "result[1]", "str 'a'"), (set[int], {"a"}, "result[0]", "str 'a'"),
    (tuple[int, str], (1,), "result", "tuple (1,)"), (tuple[int, str], (1, 2), "result[1]", "int 2"),
    (dict[str, int], {"a": "b"}, 'result["a"]', "str"),
    (dict[int, int], {"a": 1}, "result key str 'a'", "str 'a'"), (Sequence[int], (1,), "result", "tuple"),
    (Order | None, Line("a"), "result", "Line"), (Order, Line("a"), "result", "Line"), (Order, {"id": "a"}, "result", "dict"),
    (Parcel, Parcel([Line("a"), Line("b", "no")], {}, Path(), Order("a")), "result.items[1].when", "str 'no'"),  # type: ignore[arg-type]
    (Parcel, Parcel([], {}, Path(), Order("a", weight="w")), "result.content.weight", "str 'w'"),  # type: ignore[arg-type]
    (Node[int], Node(1, Node("x")), "result.next.value", "str 'x'"), (Restless, Restless(1), "result", "__post_init__"),
    (Movie, {"title": "a", "more": 1}, "result", "'more'"), (Movie, {"year": 1}, "result", "title"),
    (Movie, {"title": 1}, 'result["title"]', "int 1"),
    (Literal["a", 1], True, "result", "bool True"), (Literal["a", 1], "b", "result", "str 'b'"), (Color, "red", "result", "str 'red'"),
    (Annotated[int, msgspec.Meta(ge=3)], 2, "result", ">= 3"), (Callable[[], int], len, "result", "len"),
    (complex, 1j, "result", "complex"),
    (Codec, 1, "result", "dataclass"), (Model, Model.model_construct(when=3), "result", "Model"),
    ("Order", 1, "result", "Order"), ([int], 1, "result", "annotation"),
]


@pytest.mark.parametrize(("annotation", "value", "path", "said"), REFUSED, ids=lambda part: str(part)[:40])
def test_a_value_that_would_not_come_back_is_refused_with_its_path(annotation: Any, value: Any, path: str, said: str) -> None:
    with pytest.raises(PayloadError) as caught:
        codec_of(annotation).roundtrip(value, "result")
    assert str(caught.value).startswith(f"{path}: expected ")
    assert said in str(caught.value)
    assert caught.value.fields["path"] == path
    with pytest.raises(PayloadError):
        codec_of(annotation).encode(value, "result")


BAD_DATA: list[tuple[Any, bytes, str]] = [
    (Order, b"", "expected JSON"), (Order, b"{", "expected JSON"), (str, b'"\xff"', "expected JSON"),
    (Order, b"[]", "input: expected Order"),
    (Order, b"{}", "a field id of Order"), (Order, b'{"id":1}', "input.id: expected str, found int 1"),
    (Parcel, b'{"items":[{"sku":"a"},{"sku":2}],"by_number":{},"path":"p","content":{"id":"a"}}', "input.items[1].sku: expected str"),
    (list[int], b"[" * 100_000, "nested too deeply"), (Any, b"[" * 100_000 + b"]" * 100_000, "nested too deeply"),
    (Color, b'"green"', "a member of Color"), (UUID, b'"x"', "expected UUID"),
    (datetime, b'"2024-05-01T12:00:00+02:00[No/Where]"', "a zone known"),
    (dict[int, int], b'{"a":1}', "a key that is a whole number"), (Checked, b'{"amount":-1}', "amount is below zero"),
    (Strict, b'{"size":0}', "a valid Strict"), (Order | Line, b'{"$type":"Gone","value":{}}', '"Gone"'),
    (Model, b'{"when":3.5e99}', "Model"),
    (tuple[int, int], b"[1]", "tuple[int, int]"), (dict[tuple[int, int], int], b"[[1]]", "a pair"),
    (float, b'{"$float":"x"}', "expected float"),
    (Cat | Dog, b'{"type":"cow","name":"x"}', "Cat or Dog"), (None, b"0", "expected None"), (bool, b"1", "expected bool"),
    (Level, b"true", "a member of Level, found bool True"), (Level, b"1.0", "a member of Level, found float 1.0"),
    (Level, b"3", "a member of Level, found int 3"),
]


@pytest.mark.parametrize(("annotation", "data", "said"), BAD_DATA, ids=lambda part: str(part)[:40])
def test_data_that_does_not_fit_is_refused_with_its_path(annotation: Any, data: bytes, said: str) -> None:
    with pytest.raises(PayloadError) as caught:
        codec_of(annotation).decode(data, "input")
    assert str(caught.value).startswith("input") and said in str(caught.value)


def test_true_is_no_member_of_an_enumeration_that_has_1() -> None:
    codec = codec_of(tuple[None, Level | bool | None])
    for value in ((None, True), (None, Level.LOW)):
        data, copy = codec.roundtrip(value)
        assert same(copy, value) and same(codec.decode(data), value) and same(codec._form.load(msgspec.json.decode(data)), value)


def test_a_class_may_lose_and_gain_fields_while_values_of_it_are_in_journals() -> None:
    assert codec_of(Order).decode(b'{"id":"a","gone":[1]}') == Order("a")
    assert codec_of(Attr).decode(b'{"plain":1,"gone":2}') == Attr(1)
    assert codec_of(Point).decode(b'{"leftEdge":1}') == Point(1)
    assert codec_of(Place).decode(b"[1]") == Place(1)
    assert codec_of(Movie).decode(b'{"title":"a","gone":1}') == {"title": "a"}


def test_a_type_may_become_one_of_a_union_while_values_of_it_are_in_journals() -> None:
    old = codec_of(Order).encode(Order("a"))
    assert codec_of(Order | Line).decode(old) == Order("a")
    assert codec_of(Line | Order | None).decode(codec_of(Line).encode(Line("a"))) == Line("a")


def test_a_whole_number_is_welcome_where_a_float_is_annotated_and_becomes_one() -> None:
    data, copy = codec_of(Order).roundtrip(Order("a", weight=3))
    assert type(copy.weight) is float and copy.weight == 3.0
    assert codec_of(Order).decode(data) == copy


def test_nan_comes_back_where_a_float_is_annotated_and_the_json_stays_valid() -> None:
    data, copy = codec_of(list[float]).roundtrip([1.0, math.nan, -math.inf])
    assert copy[0] == 1.0 and math.isnan(copy[1]) and copy[2] == -math.inf
    assert data == b'[1.0,{"$float":"nan"},{"$float":"-inf"}]'


def test_a_value_that_contains_itself_is_refused() -> None:
    knot: list[Any] = []
    knot.append(knot)
    for annotation in (Any, list):
        with pytest.raises(PayloadError):
            codec_of(annotation).encode(knot)


def test_nesting_is_bounded_where_no_annotation_bounds_it() -> None:
    deep: list[Any] = []
    for _ in range(bounds.NESTING_MAX - 1):
        deep = [deep]
    assert codec_of(Any).roundtrip(deep)[1] == deep
    with pytest.raises(PayloadError, match="at most 200 levels"):
        codec_of(Any).encode([deep])


def test_a_payload_over_the_limit_is_refused_with_size_and_limit() -> None:
    largest = "x" * (bounds.PAYLOAD_BYTES_MAX - 2)
    assert len(codec_of(str).encode(largest)) == bounds.PAYLOAD_BYTES_MAX
    with pytest.raises(PayloadError, match="at most 4,194,304 bytes of JSON, found 4,194,305") as caught:
        codec_of(str).encode(largest + "x", "result")
    assert caught.value.fields["size"] == bounds.PAYLOAD_BYTES_MAX + 1


def test_the_copy_shares_nothing_with_the_value() -> None:
    order = Node(1, Node(2))
    copy = codec_of(Node[int]).roundtrip(order)[1]
    assert copy is not order and copy.next is not order.next


def test_an_unset_field_is_named() -> None:
    order = Order("a")
    del order.id
    with pytest.raises(PayloadError, match="an attribute id"):
        codec_of(Order).encode(order)


def test_a_value_whose_repr_raises_is_refused_all_the_same() -> None:
    class Rude:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    with pytest.raises(PayloadError, match="its repr raised RuntimeError"):
        codec_of(Any).encode(Rude())


def test_a_codec_is_made_once_for_each_annotation() -> None:
    assert codec_of(list[int]) is codec_of(list[int])
    assert codec_of(Literal[1]) is not codec_of(Literal[True])


def test_classes_inside_a_function_are_found_through_its_scope() -> None:
    @dataclass
    class Inner:
        n: int

    @dataclass
    class Outer:
        inner: Inner

    codec = Codec(Outer, {"Inner": Inner})
    assert codec.roundtrip(Outer(Inner(1)))[1] == Outer(Inner(1))
    with pytest.raises(PayloadError, match="name 'Inner' is not defined"):
        Codec(Outer).encode(Outer(Inner(1)))


@pytest.mark.skipif(sys.version_info < (3, 12), reason="`type` statements came with Python 3.12")
def test_an_alias_may_name_itself_and_a_class_may_declare_its_variables() -> None:
    names: dict[str, Any] = {"dataclass": dataclass, "__name__": __name__}
    exec("type Json = None | int | str | list[Json] | dict[str, Json]\n@dataclass\nclass Box[T]:\n    item: T", names)  # noqa: S102
    json, box = names["Json"], names["Box"]
    assert codec_of(json).roundtrip([1, {"a": [None]}])[1] == [1, {"a": [None]}]
    with pytest.raises(PayloadError, match=r"result\[0\]"):
        codec_of(json).encode([1.5], "result")
    assert codec_of(box[date]).roundtrip(box(date(2024, 1, 1)))[1] == box(date(2024, 1, 1))


def test_what_a_class_of_the_user_raises_is_a_payload_error() -> None:
    def mine(self: object) -> int:
        raise KeyError("mine")

    @dataclass
    class Guarded:
        n: int

    guarded = Guarded(1)
    Guarded.n = property(mine)  # type: ignore[assignment]
    with pytest.raises(PayloadError, match="KeyError: 'mine'"):
        codec_of(Guarded).encode(guarded)
    with pytest.raises(PayloadError, match="that it refuses"):
        codec_of(Guarded).decode(b'{"n":1}')
    with pytest.raises(PayloadError, match="unhashable"):
        codec_of(set[Any]).decode(b"[[1]]")


@pytest.mark.parametrize(("annotation", "value"), [
    (Order, Order("a", Decimal(1), 1.5)), (Line, Line("a", NOON)), (Node[int], Node(1, Node(2))), (Any, {"a": [1, "b"]}), (list[int], [1]),
    (Cat | Dog, Cat("a")), (Movie, {"title": "a"}), (Place, Place(1)), (Model, Model(when=NOON)), (Path, Path("a")), (Point, Point(1)),
    (dict[int, set[str]], {1: {"a"}}),
])
def test_common_values_take_the_fast_way(annotation: Any, value: Any) -> None:
    codec = codec_of(annotation)
    assert codec._read is not None and codec._fits(value)
