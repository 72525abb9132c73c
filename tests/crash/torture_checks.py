"""What bodies wrote outside, held against what journals recorded.

A body whose worker lost the shard may have been begun without leaving a record; the next holder then begins it again. So:
1. Of the bodies of one attempt each began under a lease of its own. No lease begins one twice.
2. The last of them began under the lease under which the attempt was recorded: none began after its record.
3. What was recorded had a body, and what had a body was recorded.
4. Bodies of a shard begin in the order of the leases: whoever lost it begins none. A process may be frozen, or cut off, on its way into a
   body, which is then seen late: one body, of the one process, once for each time that it was thawed or cut off.
"""
from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from fusee_mp import RunDetail
from tests.crash.torture_worker import Body

# From SIGCONT until a process runs, on a busy machine.
AWAKE_S: Final = 1.0
# (key, attempt)
Attempt = tuple[str, int]


def recorded_attempts(run: RunDetail) -> dict[Attempt, int]:
    """The LSN of the record of each attempt, which is to be the only one."""
    found: dict[Attempt, int] = {}
    for record in run.journal:
        if record.kind in ("step", "attempt"):
            attempt = (f"{run.id}/{run.number}/{record.fields['op']}", record.fields["attempt"])
            assert attempt not in found, f"two records of {attempt}"
            found[attempt] = record.lsn
    return found


class Leases:
    """Those under which any body began, by shard: their epochs in the order of the LSNs of their grants."""

    def __init__(self, bodies: Iterable[Body]) -> None:
        self._grants: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for shard, base_lsn, epoch in sorted({(body.shard, body.base_lsn, body.epoch) for body in bodies}):
            self._grants[shard].append((base_lsn, epoch))

    def epoch_at(self, shard: int, lsn: int) -> int:
        grants = self._grants[shard]
        return grants[bisect.bisect_left(grants, (lsn, 0)) - 1][1]


def faults_of_bodies(bodies: list[Body], records: dict[Attempt, int]) -> list[str]:
    """Where rules 1 to 3 are broken."""
    leases = Leases(bodies)
    of_attempt: dict[Attempt, list[Body]] = defaultdict(list)
    for body in bodies:
        of_attempt[body.key, body.attempt].append(body)
    faults = [f"{attempt} has a record and no body" for attempt in records.keys() - of_attempt.keys()]
    for attempt, begun in of_attempt.items():
        epochs = sorted(body.epoch for body in begun)
        if attempt not in records:
            faults.append(f"{attempt} has a body and no record: {begun}")
        elif len(set(epochs)) < len(epochs):
            faults.append(f"{attempt} began twice under one lease: {begun}")
        elif leases.epoch_at(begun[0].shard, records[attempt]) != epochs[-1]:
            faults.append(f"{attempt} was recorded at LSN {records[attempt]}, and another lease began it: {begun}")
    return faults


def late_bodies(bodies: list[Body]) -> list[Body]:
    """Those that were seen after one of a newer lease of their shard, in the order of time."""
    newest: dict[int, int] = {}
    late = []
    for body in sorted(bodies, key=lambda body: body.at):
        if body.epoch < newest.setdefault(body.shard, body.epoch):
            late.append(body)
        newest[body.shard] = max(newest[body.shard], body.epoch)
    return late


def unexcused(late: list[Body], thaws: list[tuple[int, float]]) -> list[Body]:
    """Where rule 4 is broken: the late ones but for the first of a process after it was thawed or cut off, at the times given for it."""
    left = sorted(thaws, key=lambda thaw: thaw[1])
    broken = []
    for body in late:
        excuses = [thaw for thaw in left if thaw[0] == body.pid and thaw[1] <= body.at <= thaw[1] + AWAKE_S]
        if excuses:
            left.remove(excuses[-1])
        else:
            broken.append(body)
    return broken
