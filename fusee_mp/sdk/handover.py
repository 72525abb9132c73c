# Letting step bodies end before their shard goes to another worker.
#
# A body that is cut off begins anew at the next holder. When workers with different code take turns with a shard, it comes back and goes
# again: if bodies always got the same time, one that needs longer would be cut for ever, and if they got what they need, one that hangs
# would keep the others waiting for ever. So the time doubles.
#
# Rule 1: in a hand-over to other code the bodies of a shard get the grace period, and no new ones begin.
# Rule 2: if one is cut, the shard's next hand-over gives twice that time. If bodies ran and all have ended, the next gives the grace period
#         again. If none ran, nothing is known, and nothing changes.
#
# Each body ends: it begins again when the shard is back, at the latest, and the time reaches what it needs after as many cuts as there are
# doublings between, or the body has a timeout and is over by then. Nobody waits for ever: each hand-over is finite, and is at most about
# as long as all before it together, so who waits for a hanging step waits about as long as that has been tried already.
"""How a worker lets bodies end, and for how long."""
from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Final

from fusee_mp.runtime.shard_runtime import ShardRuntime

LOG: Final = logging.getLogger("fusee_mp.worker")
POLL_MOST_S: Final = 0.05
# What a worker without a grace period gives after a cut.
LEAST_S: Final = 1.0
# So many cut bodies are named in the log, and the number of the others.
NAMED_MAX: Final = 10


class Patience:
    """How long bodies get in a hand-over to other code, shard by shard."""

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._longer_s: dict[int, float] = {}

    async def let_end(self, runtime: ShardRuntime) -> None:
        """Wait for the bodies of the shard, as long as it is their turn; say which are to be cut."""
        shard, began, given_s = runtime.shard, bool(runtime.running), self._longer_s.get(runtime.shard, self._grace_s)
        await let_end([runtime], given_s)
        if runtime.is_closed or not began:
            return
        if runtime.running:
            self._longer_s[shard] = max(LEAST_S, 2 * given_s)
            _say_cut(runtime, given_s, self._longer_s[shard])
        else:
            self._longer_s.pop(shard, None)


async def let_end(runtimes: Sequence[ShardRuntime], grace_s: float) -> None:
    """Begin no more bodies, give those that run so long, and make durable what they bring."""
    for runtime in runtimes:
        runtime.drain()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(grace_s):
            await _until(lambda: not any(runtime.running for runtime in runtimes if not runtime.is_closed))
            last = [runtime.lsn for runtime in runtimes]  # what is recorded from now on, the next holder may find, or not
            await _until(lambda: all(runtime.is_closed or runtime.durable_lsn >= lsn for runtime, lsn in zip(runtimes, last, strict=True)))


def _say_cut(runtime: ShardRuntime, given_s: float, next_s: float) -> None:
    cut = runtime.running
    for step in cut[:NAMED_MAX]:
        start = step.run.journal.start
        LOG.warning(
            'workflow "%s", run "%s": the body of step "%s", first asked for %.1f s ago, is cut off after %g s of grace and begins anew,'
            " because shard %d goes to a worker with other code. Give every worker all the code, or this one a longer --grace;"
            " the next time bodies of this shard get %g s here",
            start.type, start.id, step.name, (runtime.clock() - step.began_ms) / 1000, given_s, runtime.shard, next_s)
    if len(cut) > NAMED_MAX:
        LOG.warning("%d more step bodies of shard %d are cut off", len(cut) - NAMED_MAX, runtime.shard)


async def _until(condition: Callable[[], bool]) -> None:
    pause = 0.001
    while not condition():
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, POLL_MOST_S)
