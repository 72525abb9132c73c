"""The language in which lists and counts are filtered: one mapping, all of its terms ANDed.

A term is `key: value` for equality or `key: {operator: operand, ..}`. A key is one of `RESERVED` or the name of a search attribute.

1. Numbers compare with numbers, text with text, and true and false only with themselves: a term of another kind does not match.
2. `ne` is exactly the opposite of `eq`, so it also matches a run that lacks the attribute; every other operator needs it there.
3. `eq` with null matches an attribute that is there and null; `exists` asks whether it is there at all.
4. Order of text is the order of its UTF-8 bytes. A number beyond 64 bits compares as the nearest float.
5. `started` and `finished` are instants: Unix milliseconds, a datetime with a zone, or ISO 8601 text with one.
"""
from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias, cast

from msgspec import Struct

from fusee_mp.errors import Rejected

Scalar: TypeAlias = str | int | float | bool | None
Order: TypeAlias = Literal["gt", "gte", "lt", "lte"]
Status: TypeAlias = Literal[
    "running", "suspended", "parked", "paused", "quarantined",
    "ok", "failed", "cancelled", "terminated", "timed_out", "reset", "continued_as_new",
]

OPEN: Final = ("running", "quarantined", "suspended", "parked", "paused")
STATUSES: Final = (*OPEN, "ok", "failed", "cancelled", "terminated", "timed_out", "reset", "continued_as_new")
TERMS_MAX: Final = 64
ALTERNATIVES_MAX: Final = 1000
# Of all terms together.
VALUES_MAX: Final = 5000
TEXT_BYTES_MAX: Final = 4096


class Equal(Struct, frozen=True):
    """The value is one of these."""

    key: str
    values: tuple[Scalar, ...]


class NotEqual(Struct, frozen=True):
    """The value is not this, or there is none."""

    key: str
    value: Scalar


class Compare(Struct, frozen=True):
    """The value is of the operand's kind and in this order to it."""

    key: str
    order: Order
    value: str | int | float


class Prefix(Struct, frozen=True):
    """The value is text that begins so."""

    key: str
    text: str


class Exists(Struct, frozen=True):
    """There is a value, or (`wanted` false) there is none."""

    key: str
    wanted: bool


Term: TypeAlias = Equal | NotEqual | Compare | Prefix | Exists


class Where(Struct, frozen=True):
    """A filter that was checked. Without terms it matches every run."""

    terms: tuple[Term, ...] = ()


_TEXT_OPERATORS: Final = ("eq", "ne", "gt", "gte", "lt", "lte", "in", "prefix")
_INSTANT_OPERATORS: Final = ("eq", "ne", "gt", "gte", "lt", "lte", "in", "exists")
RESERVED: Final[dict[str, tuple[str, ...]]] = {
    "type": _TEXT_OPERATORS, "id": _TEXT_OPERATORS, "status": ("eq", "ne", "in"),
    "started": _INSTANT_OPERATORS, "finished": _INSTANT_OPERATORS,
}
OPERATORS: Final = ("eq", "ne", "gt", "gte", "lt", "lte", "in", "prefix", "exists")


def parse(where: object) -> Where:
    """The filter that a mapping (or None) describes. Raises Rejected that names the term at fault and what is allowed."""
    if where is None:
        return Where()
    if not isinstance(where, Mapping):
        raise Rejected(f'a filter is a mapping such as {{"status": "failed"}}, not {type(where).__name__} ({where!r:.80})')
    if len(where) > TERMS_MAX:
        raise Rejected(f"a filter has at most {TERMS_MAX} keys, this one has {len(where)}")
    terms = tuple(term for key, value in where.items() for term in _terms(_check_key(key), value))
    values = sum(len(term.values) for term in terms if isinstance(term, Equal))
    if values > VALUES_MAX:
        raise Rejected(f"a filter names at most {VALUES_MAX:,} values, this one {values:,}: ask in several")
    return Where(terms)


def _check_key(key: object) -> str:
    if not isinstance(key, str) or not key:
        raise Rejected(f"a filter's keys are names of attributes or of {', '.join(RESERVED)}, not {key!r:.80}")
    if any(c in '"\\' or ord(c) < 32 for c in key) or len(key.encode("utf-8", "replace")) > TEXT_BYTES_MAX:
        raise Rejected(f"attribute {key!r:.80} cannot be filtered by: its name has a quote, backslash or control character, or is too long")
    return key


def _terms(key: str, value: object) -> list[Term]:
    if not isinstance(value, Mapping):
        return [_term(key, "eq", value)]
    if not value:
        raise Rejected(f'filter term "{key}" is an empty mapping: give it an operator ({", ".join(OPERATORS)})')
    return [_term(key, name, operand) for name, operand in value.items()]


def _term(key: str, name: object, operand: object) -> Term:
    make = _MAKE.get(name) if isinstance(name, str) else None
    if make is None:
        raise Rejected(f'filter term "{key}" has operator {name!r:.80}: there are {", ".join(OPERATORS)}')
    if key in RESERVED and name not in RESERVED[key]:
        raise Rejected(f'filter term "{key}" cannot be used with {name!r}, only with {", ".join(RESERVED[key])}')
    return make(key, cast(str, name), operand)


def _equal(key: str, name: str, operand: object) -> Term:
    if key == "status" and operand == "open":
        return Equal(key, OPEN)
    return Equal(key, (_scalar(key, operand),))


def _not_equal(key: str, name: str, operand: object) -> Term:
    if key == "status" and operand == "open":
        return Equal(key, tuple(status for status in STATUSES if status not in OPEN))
    return NotEqual(key, _scalar(key, operand))


def _compare(key: str, name: str, operand: object) -> Term:
    value = _scalar(key, operand)
    if value is None or isinstance(value, bool):
        raise Rejected(f'filter term "{key}" compares by {name} with {operand!r}: an order needs a number or text')
    return Compare(key, cast(Order, name), value)


def _one_of(key: str, name: str, operand: object) -> Term:
    if not isinstance(operand, list | tuple) or len(operand) > ALTERNATIVES_MAX:
        raise Rejected(f'filter term "{key}" has "in" with {operand!r:.80}: give a list of at most {ALTERNATIVES_MAX} values')
    if key == "status":
        operand = [status for item in operand for status in (OPEN if item == "open" else (item,))]
    return Equal(key, tuple(_scalar(key, item) for item in operand))


def _prefix(key: str, name: str, operand: object) -> Term:
    if not isinstance(operand, str):
        raise Rejected(f'filter term "{key}" has "prefix" with {operand!r:.80}: a prefix is text')
    return Prefix(key, _text(key, operand))


def _exists(key: str, name: str, operand: object) -> Term:
    if not isinstance(operand, bool):
        raise Rejected(f'filter term "{key}" has "exists" with {operand!r:.80}: say true or false')
    return Exists(key, operand)


_MAKE: Final[dict[str, Callable[[str, str, object], Term]]] = {
    "eq": _equal, "ne": _not_equal, "gt": _compare, "gte": _compare, "lt": _compare, "lte": _compare,
    "in": _one_of, "prefix": _prefix, "exists": _exists,
}


def _scalar(key: str, operand: object) -> Scalar:
    if key in ("started", "finished"):
        return _instant(key, operand)
    if key in RESERVED and not isinstance(operand, str):
        raise Rejected(f'filter term "{key}" is compared with {operand!r:.80}: it takes text')
    if key == "status" and operand not in STATUSES:
        raise Rejected(f'filter term "status" names {operand!r:.80}: there are open, {", ".join(STATUSES)}')
    if isinstance(operand, str):
        return _text(key, operand)
    if isinstance(operand, float) and math.isnan(operand):
        raise Rejected(f'filter term "{key}" is compared with NaN, to which nothing is equal: leave it out, or use exists')
    if operand is None or isinstance(operand, bool | int | float):
        return cast(Scalar, number(operand))
    given = f"{type(operand).__name__} ({operand!r:.80})"
    raise Rejected(f'filter term "{key}" is compared with {given}: give text, a number, true, false or null')


def _text(key: str, text: str) -> str:
    size = len(text.encode("utf-8", "replace"))
    if "\0" in text or size > TEXT_BYTES_MAX or any("\ud800" <= c <= "\udfff" for c in text):
        limits = f"at most {TEXT_BYTES_MAX}, without NUL or lone surrogates"
        raise Rejected(f'filter term "{key}" has text of {size} bytes ({text!r:.80}): {limits}')
    return text


def _instant(key: str, operand: object) -> int:
    try:
        moment = datetime.fromisoformat(operand) if isinstance(operand, str) else operand
        if isinstance(moment, datetime) and moment.tzinfo is not None:
            return round(moment.timestamp() * 1000)
    except (ValueError, OverflowError):
        moment = None
    if isinstance(moment, int) and not isinstance(moment, bool) and abs(moment) < 1 << 62:
        return moment
    forms = "Unix milliseconds, a datetime with a zone, or ISO 8601 text with one"
    raise Rejected(f'filter term "{key}" is compared with {operand!r:.80}: give {forms}')


def number(value: Any) -> Any:
    """A number as it is compared: beyond 64 bits as a float. Anything else as it is."""
    if type(value) is int and not -(1 << 63) <= value < 1 << 63:
        try:
            return float(value)
        except OverflowError:
            return float("inf") if value > 0 else float("-inf")
    return value


# The meaning of a filter, as a predicate. The store has the same meaning in SQL.

MISSING: Final = object()
_ORDER: Final[dict[Order, Callable[[Any, Any], bool]]] = {
    "gt": operator.gt, "gte": operator.ge, "lt": operator.lt, "lte": operator.le,
}


def matches(where: Where, reserved: Mapping[str, Any], attributes: Mapping[str, Any]) -> bool:
    """Whether a run matches. `reserved` has its type, id, status, started and finished (None while open)."""
    return all(holds(term, value_of(term.key, reserved, attributes)) for term in where.terms)


def value_of(key: str, reserved: Mapping[str, Any], attributes: Mapping[str, Any]) -> Any:
    if key not in RESERVED:
        return number(attributes.get(key, MISSING))
    value = reserved[key]
    return MISSING if value is None else value


def holds(term: Term, value: Any) -> bool:
    """Whether one term holds of a value, which is MISSING when there is none."""
    match term:
        case Equal(_, values):
            return any(_same(value, wanted) for wanted in values)
        case NotEqual(_, wanted):
            return not _same(value, wanted)
        case Compare(_, order, wanted):
            return _kind(value) == _kind(wanted) and _ORDER[order](value, wanted)
        case Prefix(_, text):
            return isinstance(value, str) and value.startswith(text)
        case Exists(_, wanted):
            return (value is not MISSING) == wanted


def _kind(value: Any) -> type | None:
    if value is None or isinstance(value, bool):
        return type(value)
    return float if isinstance(value, int | float) else str if isinstance(value, str) else None


def _same(value: Any, wanted: Scalar) -> bool:
    return _kind(value) is _kind(wanted) and bool(value == wanted)
