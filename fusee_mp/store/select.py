"""Lists and counts: filters as SQL.

Terms on type and status never become SQL. They choose among the pairs that `tally` knows, and each chosen pair is one branch: a walk
down the index (type, status) in run order. Branches are merged lazily, so a page costs what it returns, whatever the table holds.
Only terms on other things are conditions on rows, and mean what core/where.py says they mean.

A term on an attribute says where in the index on attributes the matches are. What it takes in is counted, up to a bound; when that is
less than all else leaves, those runs are looked at and no others. Every condition still holds of every row: the index only chooses which
rows are looked at, never what matches.
"""
from __future__ import annotations

import heapq
import sqlite3
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

from fusee_mp.core.where import Equal, Term, Where, holds, parse
from fusee_mp.errors import Rejected
from fusee_mp.store.attributes import Stretches, stretches
from fusee_mp.store.conditions import Condition, condition, sql
from fusee_mp.store.results import Status
from fusee_mp.store.schema import NAMES

DB = sqlite3.Connection
# More branches than this cost more to open than to walk all rows.
BRANCHES_MAX: Final = 256
# Entries of the index that are counted before a way is chosen: a few ms.
COUNTED_MAX: Final = 50_000
# Runs that a stretch without order may have when a page is to be found in it: all are looked at, and sorted.
SORTED_MAX: Final = 5_000
_ENTRIES: Final = "attribute cross join run using(run)"
_COLUMNS: Final = "run, id, type, status, started, finished, due, attributes, reason"


class _Branch(NamedTuple):
    type: int
    status: int
    n: int


class _Reach(NamedTuple):
    """The part of the index on attributes that a term takes in, and how many entries it has, counted up to a bound."""

    at: Stretches
    n: int


class _Plan(NamedTuple):
    """Which pairs match (None: all of them), what else must hold, the least that the index leaves, and the names of types."""

    branches: list[_Branch] | None
    total: int
    condition: Condition | None
    by_id: bool
    reach: _Reach | None
    types: dict[int, str]

    @property
    def is_walked(self) -> bool:
        return self.branches is not None and not self.by_id and len(self.branches) <= BRANCHES_MAX


def lines(db: DB, where: object, limit: int, after: str | None) -> list[Status]:
    """One page of the runs that match, newest first."""
    plan, before = _plan(db, parse(where)), _before(after)
    rows = islice(_rows(db, plan, before, limit), limit)
    return [
        Status(run, id, plan.types[kind], NAMES[status], started, finished, due, (attributes or "{}").encode(), reason, cursor(run))
        for run, id, kind, status, started, finished, due, attributes, reason in rows
    ]


def cursor(run: int) -> str:
    """What continues a list behind this run."""
    return f"r{run:x}"


def _before(after: str | None) -> int:
    if after is None:
        return (1 << 63) - 1
    try:
        if after[:1] == "r" and after.isalnum() and len(after) <= 16:
            return int(after[1:], 16)
    except ValueError:
        pass
    raise Rejected(f'list cursor "{after:.40}" was not made by a list: pass the `cursor` of the last line, or none')


def count(db: DB, where: object) -> int:
    """How many runs match."""
    wanted = parse(where)
    plan = _plan(db, wanted)
    if plan.condition is None:
        return plan.total
    if plan.reach is not None and plan.reach.at.is_exact and plan.reach.at.terms == len(wanted.terms):
        return _sum(db, "attribute", plan.reach.at.parts)
    if plan.reach is not None and plan.reach.n < COUNTED_MAX:
        return _sum(db, _ENTRIES, _indexed(plan, plan.reach))
    return _sum(db, "run", _parts(plan))


def _sum(db: DB, table: str, parts: list[Condition]) -> int:
    return sum(db.execute(f"select count(*) from {table} where {part.text}", part.parameters).fetchone()[0] for part in parts)


def _plan(db: DB, where: Where) -> _Plan:
    types: dict[int, str] = dict(db.execute("select type, name from type"))
    pairs = [term for term in where.terms if term.key in ("type", "status")]
    others = [term for term in where.terms if term.key not in ("type", "status")]
    tally = [_Branch(*row) for row in db.execute("select type, status, n from tally where n > 0")]
    chosen = [branch for branch in tally if all(holds(term, _name_of(term, branch, types)) for term in pairs)]
    by_id = any(isinstance(term, Equal) and term.key == "id" for term in others)
    total = sum(branch.n for branch in chosen)
    reach = None if by_id else _reach(db, others, total)
    return _Plan(chosen if pairs else None, total, condition(others) if others else None, by_id, reach, types)


def _reach(db: DB, terms: Sequence[Term], total: int) -> _Reach | None:
    """The least that the index leaves of this many runs; None when it leaves no less."""
    bound = min(total, COUNTED_MAX)
    reaches = [_Reach(at, _counted(db, at, bound)) for at in stretches(terms)]
    least = min(reaches, key=lambda reach: (reach.n, not reach.at.is_ordered), default=None)
    return least if least is not None and least.n < total else None


def _counted(db: DB, at: Stretches, bound: int) -> int:
    n = 0
    for part in at.parts:
        bounded = f"select count(*) from (select 1 from attribute where {part.text} limit ?)"
        n += db.execute(bounded, [*part.parameters, bound - n]).fetchone()[0]
        if n >= bound:
            break
    return n


def _name_of(term: Term, branch: _Branch, types: dict[int, str]) -> str:
    return types[branch.type] if term.key == "type" else NAMES[branch.status]


def _rows(db: DB, plan: _Plan, before: int, limit: int) -> Iterator[tuple[Any, ...]]:
    # By ID, and by a short stretch of attributes, few rows come from an index and are sorted; else they are walked in order, never sorted.
    reach = plan.reach
    if reach is not None and reach.at.is_ordered and (reach.n < COUNTED_MAX or plan.branches is None):
        table, order, parts = _ENTRIES, "attribute.run", _indexed(plan, reach)
    elif reach is not None and reach.n < SORTED_MAX:
        table, order, parts = _ENTRIES, "+run", _indexed(plan, reach)
    else:
        table, order, parts = "run", "+run" if plan.by_id else "run", _parts(plan)
    walk = f"select {_COLUMNS} from {table} where {order} < ? and %s order by {order} desc limit ?"
    cursors = [db.execute(walk % part.text, [before, *part.parameters, limit]) for part in parts]
    return heapq.merge(*cursors, key=lambda row: -row[0])


def _indexed(plan: _Plan, reach: _Reach) -> list[Condition]:
    return [sql(part, " and ", rest) for rest in _at_once(plan) for part in reach.at.parts]


def _parts(plan: _Plan) -> list[Condition]:
    """Conditions of which each run meets at most one: one per pair where those are walked, else one for everything."""
    rest = plan.condition or Condition("true", [])
    if plan.branches is None:
        return [rest]
    if plan.is_walked:
        return [sql(f"type = {branch.type} and status = {branch.status} and ", rest) for branch in plan.branches]
    return _at_once(plan)


def _at_once(plan: _Plan) -> list[Condition]:
    """One condition for everything; none when no pair matches."""
    rest = plan.condition or Condition("true", [])
    if plan.branches is None:
        return [rest]
    pairs = ", ".join(f"({branch.type}, {branch.status})" for branch in plan.branches)
    return [sql(f"(+type, +status) in (values {pairs}) and ", rest)] if pairs else []
