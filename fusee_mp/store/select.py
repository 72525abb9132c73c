"""Lists and counts: filters as SQL.

Terms on type and status never become SQL. They choose among the pairs that `tally` knows, and each chosen pair is one branch: a walk
down the index (type, status) in run order. Branches are merged lazily, so a page costs what it returns, whatever the table holds.
Only terms on other things are conditions on rows, and mean what core/where.py says they mean.
"""
from __future__ import annotations

import heapq
import sqlite3
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final, NamedTuple

from fusee_mp.core.where import Equal, Term, Where, holds, parse
from fusee_mp.errors import Rejected
from fusee_mp.store.conditions import Condition, condition, sql
from fusee_mp.store.results import Status
from fusee_mp.store.schema import NAMES

DB = sqlite3.Connection
# More branches than this cost more to open than to walk all rows.
BRANCHES_MAX: Final = 256
_COLUMNS: Final = "run, id, type, status, started, finished, due, attributes, reason"


class _Branch(NamedTuple):
    type: int
    status: int
    n: int


class _Plan(NamedTuple):
    """Which pairs match (None: all of them), what else must hold, and the names of types."""

    branches: list[_Branch] | None
    total: int
    condition: Condition | None
    by_id: bool
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
    plan = _plan(db, parse(where))
    if plan.condition is None:
        return plan.total
    return sum(db.execute(f"select count(*) from run where {part.text}", part.parameters).fetchone()[0] for part in _parts(plan))


def _plan(db: DB, where: Where) -> _Plan:
    types: dict[int, str] = dict(db.execute("select type, name from type"))
    pairs = [term for term in where.terms if term.key in ("type", "status")]
    others = [term for term in where.terms if term.key not in ("type", "status")]
    tally = [_Branch(*row) for row in db.execute("select type, status, n from tally where n > 0")]
    chosen = [branch for branch in tally if all(holds(term, _name_of(term, branch, types)) for term in pairs)]
    by_id = any(isinstance(term, Equal) and term.key == "id" for term in others)
    return _Plan(chosen if pairs else None, sum(branch.n for branch in chosen), condition(others) if others else None, by_id, types)


def _name_of(term: Term, branch: _Branch, types: dict[int, str]) -> str:
    return types[branch.type] if term.key == "type" else NAMES[branch.status]


def _rows(db: DB, plan: _Plan, before: int, limit: int) -> Iterator[tuple[Any, ...]]:
    # By ID the few rows come from the index on the hash and are sorted; else they are walked in order, and never sorted.
    order = "+run" if plan.by_id else "run"
    walk = f"select {_COLUMNS} from run where {order} < ? and %s order by {order} desc limit ?"
    cursors = [db.execute(walk % part.text, [before, *part.parameters, limit]) for part in _parts(plan)]
    return heapq.merge(*cursors, key=lambda row: -row[0])


def _parts(plan: _Plan) -> list[Condition]:
    """Conditions of which each run meets at most one: one per pair where those are walked, else one for everything."""
    rest = plan.condition or Condition("true", [])
    if plan.branches is None:
        return [rest]
    if plan.is_walked:
        return [sql(f"type = {branch.type} and status = {branch.status} and ", rest) for branch in plan.branches]
    pairs = ", ".join(f"({branch.type}, {branch.status})" for branch in plan.branches)
    return [sql(f"(+type, +status) in (values {pairs}) and ", rest)] if pairs else []
