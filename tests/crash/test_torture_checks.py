"""The checks of the torture find what they are there to find."""
from __future__ import annotations

import pytest

from tests.crash.torture_checks import faults_of_bodies, late_bodies, unexcused
from tests.crash.torture_worker import Body

KEY = "id/1/1"


def body(epoch: int, at: float, attempt: int = 1, key: str = KEY, pid: int = 7) -> Body:
    """Of shard 0; the lease of epoch n was granted at LSN 100 n."""
    return Body(key, attempt, 5, 0, epoch, 100 * epoch, pid, at)


@pytest.mark.parametrize(("bodies", "records", "says"), [
    ([body(1, 0)], {(KEY, 1): 150}, ""),
    ([body(1, 0), body(2, 1)], {(KEY, 1): 250}, ""),
    ([body(1, 0), body(1, 1, 2)], {(KEY, 1): 150, (KEY, 2): 160}, ""),
    ([body(1, 0), body(1, 1)], {(KEY, 1): 150}, "began twice under one lease"),
    ([body(1, 0), body(2, 1)], {(KEY, 1): 150}, "was recorded at LSN 150, and another lease began it"),
    ([body(1, 0), body(2, 1, key="other")], {(KEY, 1): 250, ("other", 1): 260}, "was recorded at LSN 250, and another lease began it"),
    ([body(1, 0)], {}, "has a body and no record"),
    ([body(1, 0)], {(KEY, 1): 150, (KEY, 2): 160}, "has a record and no body"),
])
def test_a_body_too_many_or_too_few_is_found(bodies: list[Body], records: dict[tuple[str, int], int], says: str) -> None:
    found = faults_of_bodies(bodies, records)
    assert len(found) == bool(says) and all(says in fault for fault in found)


@pytest.mark.parametrize(("bodies", "thaws", "broken"), [
    ([body(1, 0), body(2, 1)], [], 0),
    ([body(1, 0), body(2, 1, pid=8), body(1, 2)], [], 1),
    ([body(1, 0), body(2, 1, pid=8), body(1, 2)], [(7, 1.9)], 0),
    ([body(1, 0), body(2, 1, pid=8), body(1, 2)], [(8, 1.9), (7, 2.1), (7, 0.9)], 1),
    ([body(1, 0), body(2, 1, pid=8), body(1, 2), body(1, 2.1)], [(7, 1.9)], 1),
])
def test_a_body_begun_after_the_next_holders_is_found_and_excused_once_a_thaw(
    bodies: list[Body], thaws: list[tuple[int, float]], broken: int,
) -> None:
    assert len(unexcused(late_bodies(bodies), thaws)) == broken
