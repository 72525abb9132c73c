"""Classes of every kind that the converter knows, and a deep comparison that no `__eq__` can fool."""
from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Generic, NamedTuple, NotRequired, TypeVar

import attrs
import msgspec
import pydantic
from typing_extensions import TypedDict

T = TypeVar("T")


@dataclass
class Order:
    id: str
    amount: Decimal = Decimal(0)
    weight: float = 0.0


@dataclass(frozen=True, slots=True)
class Line:
    sku: str
    when: datetime | None = None
    tags: frozenset[str] = frozenset()


@dataclass
class Parcel:
    items: list[Line]
    by_number: dict[int, tuple[int, str]]
    path: Path
    content: Order | Line
    note: Any = None


@dataclass
class Node(Generic[T]):
    value: T
    next: Node[T] | None = None


@dataclass
class Child(Node[int]):
    name: str = ""


@dataclass
class Hidden:
    _secret: int
    derived: int = field(init=False, default=0)


@dataclass
class Checked:
    amount: int

    def __post_init__(self) -> None:
        if self.amount < 0:
            raise ValueError("amount is below zero")


@dataclass
class Restless:
    count: int

    def __post_init__(self) -> None:
        self.count += 1


@attrs.define
class Attr:
    plain: int
    _private: str = ""
    made: list[int] = attrs.field(factory=list)


@attrs.define
class Strict:
    size: int = attrs.field(validator=attrs.validators.gt(0))


class Point(msgspec.Struct, rename="camel"):
    left_edge: int
    right_edge: int = 0


class Cat(msgspec.Struct, tag="cat"):
    name: str


class Dog(msgspec.Struct, tag="dog"):
    name: str


class Pair(msgspec.Struct, array_like=True, tag="pair"):
    first: int
    second: float = 0.0


class Model(pydantic.BaseModel):
    when: datetime
    tags: set[str] = set()


class Movie(TypedDict):
    title: str
    year: NotRequired[int]


class Place(NamedTuple):
    x: int
    data: bytes = b""


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Odd(enum.Enum):
    PAIR = (1, 2)
    HALF = 0.5


class Right(enum.Flag):
    READ = 1
    WRITE = 2


def same(a: Any, b: Any) -> bool:
    """Equal and of the same types, all the way down; NaN is the same as NaN."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return a == b and math.copysign(1, a) == math.copysign(1, b) or (a != a and b != b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(map(same, a.values(), b.values())) and all(map(same, a, b))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if is_dataclass(a):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))
    return bool(a == b)
