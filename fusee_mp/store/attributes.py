"""Which entries of the index on attributes a term of a filter takes in.

The index orders numbers before text and text before the rest (schema.py), as SQLite does, so each term is one stretch of it, or one for
each value. Text is there by its beginning only: with a longer operand the stretch holds all runs that match, and perhaps others.
"""
from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from fusee_mp.core.where import RESERVED, Compare, Equal, Exists, Order, Prefix, Scalar, Term
from fusee_mp.store.conditions import SYMBOL, Condition, sql
from fusee_mp.store.schema import FALSE, INDEXED_CHARS, NULL, TRUE

# A term with more alternatives is no longer walked as one stretch for each.
STRETCHES_MAX: Final = 256
_PLAIN: Final = {None: NULL, False: FALSE, True: TRUE}
_AMONG_TEXT: Final = Condition(" and value >= '' and value < x''", [])
_AMONG_NUMBERS: Final = Condition(" and value < ''", [])
# Text cut off may be equal to an operand cut off although the whole is greater or less.
_LOOSE: Final[dict[Order, Order]] = {"gt": "gte", "gte": "gte", "lt": "lte", "lte": "lte"}


class Stretches(NamedTuple):
    """Parts of the index, none overlapping another: all runs of which so many terms hold.

    In ordered ones runs rise; exact ones have no run of which the terms do not hold.
    """

    parts: list[Condition]
    is_ordered: bool
    is_exact: bool
    terms: int = 1


def stretches(terms: Iterable[Term]) -> list[Stretches]:
    """Where the runs are that match a term, or a range of several terms on one name; of a term that the index cannot answer, nothing."""
    found: list[Stretches | None] = []
    ranges: dict[str, list[Compare]] = {}
    for term in terms:
        if term.key in RESERVED or len(term.key) > INDEXED_CHARS:
            continue
        if isinstance(term, Compare):
            ranges.setdefault(term.key, []).append(term)
        else:
            found.append(_of_term(term))
    return [*filter(None, found), *map(_of_range, ranges.values())]


def _of_range(terms: list[Compare]) -> Stretches:
    within = sql(*(part for term in terms for part in (" and ", _beyond(term.order, term.value))))
    return Stretches([sql(Condition("name = ?", [terms[0].key]), within)], False, all(_is_whole(term.value) for term in terms), len(terms))


def _of_term(term: Term) -> Stretches | None:
    match term:
        case Equal(name, values):
            return _of_values(name, values)
        case Prefix(name, text):
            return Stretches([_part(name, _beginning(text[:INDEXED_CHARS]))], False, len(text) <= INDEXED_CHARS)
        case Exists(name, True):
            return Stretches([Condition("name = ?", [name])], False, True)
    return None


def _of_values(name: str, values: tuple[Scalar, ...]) -> Stretches:
    keys = list(dict.fromkeys(map(_key, values)))
    exact = all(map(_is_whole, values))
    if len(keys) <= STRETCHES_MAX:
        return Stretches([_part(name, Condition("value = ?", [key])) for key in keys], True, exact)
    return Stretches([_part(name, Condition(f"value in ({', '.join('?' * len(keys))})", keys))], False, exact)


def _part(name: str, rest: Condition) -> Condition:
    return sql(Condition("name = ? and ", [name]), rest)


def _key(value: Scalar) -> Any:
    if value is None or isinstance(value, bool):
        return _PLAIN[value]
    return value[:INDEXED_CHARS] if isinstance(value, str) else value


def _is_whole(value: Scalar) -> bool:
    return not isinstance(value, str) or len(value) < INDEXED_CHARS


def _beyond(order: Order, value: str | float) -> Condition:
    symbol = SYMBOL[order if _is_whole(value) else _LOOSE[order]]
    return sql(Condition(f"value {symbol} ?", [_key(value)]), _AMONG_TEXT if isinstance(value, str) else _AMONG_NUMBERS)


def _beginning(text: str) -> Condition:
    # No text has the byte ff in it, so this is the first that is behind all that begin so.
    return Condition("value >= ? and value < cast(? as text)", [text, text.encode() + b"\xff"])
