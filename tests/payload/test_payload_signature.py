"""The codecs of functions: found through every way of defining and wrapping one, and as late as they may be."""
from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from payload_types import Line, Order

from fusee_mp.errors import PayloadError
from fusee_mp.payload.converter import codec_of
from fusee_mp.payload.signature import Signature, result_codec

if TYPE_CHECKING:
    from fractions import Fraction


async def price(order: Order, lines: list[Line]) -> int:
    return len(lines)


def later() -> Later:
    return Later(1)


@dataclass
class Later:
    n: int


def promised() -> Awaitable[int]: ...  # type: ignore[empty-body]
def to_come() -> Coroutine[Any, Any, Order]: ...  # type: ignore[empty-body]
def bare(a, b): ...  # type: ignore[no-untyped-def]
def nothing() -> None: ...
def only_for_checkers(amount: Fraction, order: Order) -> Order: ...  # type: ignore[empty-body]


@functools.wraps(price)
async def wrapped(*args: Any, **kwargs: Any) -> str:
    return ""


class Shop:
    def quote(self, order: Order) -> Line:
        return Line("")

    def __call__(self) -> Order:
        return Order("")


@pytest.mark.parametrize(("fn", "annotation"), [
    (price, int), (later, Later), (promised, int), (to_come, Order), (bare, Any), (nothing, None), (lambda: 1, Any), (len, Any),
    (functools.partial(price, Order("")), int), (functools.partial(functools.partial(later)), Later), (wrapped, int), (Shop().quote, Line),
    (Shop.quote, Line), (Shop(), Order), (Shop, Shop), (Order, Order), ([].append, Any),
])
def test_the_result_of_any_callable_is_known_by_its_annotation(fn: Callable[..., Any], annotation: Any) -> None:
    assert result_codec(fn).type == annotation
    assert Signature(fn).result.type == annotation


def test_parameters_are_known_by_their_place_and_any_without_annotation() -> None:
    assert [codec.type for codec in Signature(price).parameters] == [Order, list[Line]]
    assert [codec.type for codec in Signature(bare).parameters] == [Any, Any]


def test_a_name_that_exists_only_for_type_checkers_spoils_no_other_and_is_named_when_used() -> None:
    signature = Signature(only_for_checkers)
    assert signature.result.type is Order
    assert signature.parameters[1].type is Order
    with pytest.raises(PayloadError, match="names exist at run time.*Fraction"):
        signature.parameters[0].encode(1, "input")


def test_local_classes_are_found_through_the_scope_and_through_closures() -> None:
    @dataclass
    class Local:
        n: int

    @dataclass
    class Holder:
        locals: list[Local]

    def make() -> Holder:
        return Holder([Local(1)])

    def unrelated() -> Holder: ...  # type: ignore[empty-body]

    assert result_codec(make).roundtrip(make())[1] == make()
    assert Signature(unrelated, locals()).result.roundtrip(make())[1] == make()


def test_the_codec_of_a_function_lives_no_longer_than_the_function() -> None:
    class Marker:
        pass

    def step() -> int:
        return 1

    marker = step.marker = Marker()  # type: ignore[attr-defined]
    watch = weakref.ref(marker)
    assert result_codec(step) is codec_of(int)
    del step, marker
    gc.collect()
    assert watch() is None
