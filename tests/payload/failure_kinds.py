"""Exceptions of every awkward kind."""
from __future__ import annotations

import http
from collections.abc import Callable
from decimal import Decimal
from typing import Any, NoReturn


class Declined(Exception):
    """Wants keywords only, and has attributes of its own."""

    def __init__(self, *, code: str, amount: Decimal) -> None:
        super().__init__(f"declined: {code}")
        self.code = code
        self.amount = amount
        self.seen = (1, {"a"})
        self.status = http.HTTPStatus.NOT_FOUND
        self.connection = object()


class Slotted(Exception):
    __slots__ = ("place",)

    def __init__(self, place: int) -> None:
        self.place = place


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


class Liar(Exception):
    def __reduce__(self) -> NoReturn:
        raise RuntimeError("not to be pickled")

    @property
    def args(self) -> NoReturn:  # type: ignore[override]
        raise RuntimeError("none of your business")


class OwnNew(Exception):
    def __new__(cls, first: int, second: int) -> OwnNew:
        return super().__new__(cls, first, second)


class Needy(Exception):
    """Cannot be shown without the attribute that is no plain data."""

    def __init__(self) -> None:
        self.response: Any = http

    def __str__(self) -> str:
        return f"status {self.response.HTTPStatus.OK}"


class Renamed(Exception):
    """Stands nowhere under the name that it gives."""


Renamed.__qualname__ = "Elsewhere"


class Tree(ExceptionGroup[Exception]):
    def derive(self, excs: Any) -> Tree:
        return Tree(self.message, excs)


def raised(call: Callable[[], Any]) -> BaseException:
    try:
        call()
    except BaseException as error:
        return error
    raise AssertionError("expected an exception, and none was raised")


def chained() -> NoReturn:
    try:
        _ = 1 / 0
    except ZeroDivisionError as error:
        raise Declined(code="limit", amount=Decimal("1.50")) from error


def in_context() -> NoReturn:
    try:
        _ = {}["missing"]
    except KeyError:
        raise ValueError("while handling")  # noqa: B904
