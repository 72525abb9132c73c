"""Terms of a filter as conditions on rows of `run`. Their meaning is that of core/where.py; a test holds the two equal.

Names and values of users are parameters, never text of a statement.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from fusee_mp.core.idfilter import key as hash_key
from fusee_mp.core.where import RESERVED, Compare, Equal, Exists, NotEqual, Prefix, Scalar, Term

SYMBOL: Final = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}


class Condition(NamedTuple):
    """A part of a statement, with the parameters that its question marks stand for."""

    text: str
    parameters: list[Any]


class _Value(NamedTuple):
    """How a term's value is written, and how its JSON type; a reserved key has the type that its operands have."""

    value: Condition
    type: Condition | None


def sql(*parts: str | Condition) -> Condition:
    """The parts one after another, with their parameters in that order."""
    conditions = [Condition(part, []) if isinstance(part, str) else part for part in parts]
    return Condition("".join(c.text for c in conditions), [p for c in conditions for p in c.parameters])


def _given(value: Any) -> Condition:
    return Condition("?", [value])


def condition(terms: Sequence[Term]) -> Condition:
    """All of the terms."""
    return sql(*(part for i, term in enumerate(terms) for part in (" and " if i else "", _condition(term))))


def _condition(term: Term) -> Condition:
    if isinstance(term, Equal) and term.key == "id":
        return sql("hash in ", _list([hash_key(str(id)) for id in term.values]), " and id in ", _list(term.values))
    value = _value(term.key)
    match term:
        case Equal(_, values):
            return _one_of(value, values)
        case NotEqual(_, wanted):
            return sql("(", _equals(value, wanted), ") is not true")
        case Compare(_, order, wanted):
            return _typed(value, wanted, SYMBOL[order])
        case Prefix(_, text):
            return sql("(", _is(value, "= 'text'"), " and substr(", value.value, ", 1, ", _given(len(text)), ") = ", _given(text), ")")
        case Exists(_, wanted):
            return sql("(", value.type or value.value, " is not null) = ", _given(wanted))


def _list(values: Sequence[Any]) -> Condition:
    return Condition(f"({', '.join('?' * len(values))})", list(values))


def _value(key: str) -> _Value:
    if key in RESERVED:
        return _Value(Condition(key, []), None)
    path = f'$."{key}"'
    return _Value(Condition("json_extract(attributes, ?)", [path]), Condition("json_type(attributes, ?)", [path]))


def _is(value: _Value, what: str) -> Condition:
    return sql(value.type, " ", what) if value.type else Condition("true", [])


def _one_of(value: _Value, wanted: Sequence[Scalar]) -> Condition:
    # As lists, since alternatives one after another would be as deep as they are many.
    texts = [each for each in wanted if isinstance(each, str)]
    numbers = [each for each in wanted if isinstance(each, int | float) and not isinstance(each, bool)]
    others = [each for each in (None, True, False) if any(each is found for found in wanted)]
    lists = [sql("(", _is_like(value, some[0]), " and ", value.value, " in ", _list(some), ")") for some in (texts, numbers) if some]
    return sql("(false", *(part for each in (*lists, *(_equals(value, other) for other in others)) for part in (" or ", each)), ")")


def _equals(value: _Value, wanted: Scalar) -> Condition:
    if wanted is None or isinstance(wanted, bool):
        return _is(value, {None: "= 'null'", True: "= 'true'", False: "= 'false'"}[wanted])
    return _typed(value, wanted, "=")


def _typed(value: _Value, wanted: str | float, symbol: str) -> Condition:
    return sql("(", _is_like(value, wanted), " and ", value.value, f" {symbol} ", _given(wanted), ")")


def _is_like(value: _Value, wanted: str | float) -> Condition:
    return _is(value, "= 'text'" if isinstance(wanted, str) else "in ('integer', 'real')")
