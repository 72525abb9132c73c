"""What all shards of one process share to run code: threads and processes for steps, the eager starter, the watches over what blocks."""
from __future__ import annotations

import asyncio
import ctypes
import logging
import sys
import threading
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from fusee_mp.logs import Seldom
from fusee_mp.runtime.eager import EagerStarter
from fusee_mp.runtime.lines import code_line, is_ours
from fusee_mp.runtime.loop import Interrupted
from fusee_mp.runtime.loop_watch import LoopWatch
from fusee_mp.runtime.processes import Processes
from fusee_mp.runtime.threads import Threads

if TYPE_CHECKING:
    from fusee_mp.runtime.run import Run
    from fusee_mp.runtime.shard_runtime import ShardRuntime

LOG: Final = logging.getLogger("fusee_mp.workflow")
TURN_S_MAX: Final = 2.0
LOOK_S: Final = 0.5
LOOKS_MIN: Final = 4  # at a turn that takes as long as it may
STRIKE_S: Final = 0.001
STRIKES: Final = 400


class Crew:
    """Made on the loop that will run the shards; step bodies see the context variables of that moment. `close` ends it.
    `watches_loop` False: nobody wakes the loop to see whether it turns."""

    def __init__(self, threads: int = 32, turn_s_max: float = TURN_S_MAX, watches_loop: bool = True) -> None:
        self.loop = asyncio.get_running_loop()
        self.base_context: Context = copy_context()
        self.threads = Threads(threads, "fusee-step")
        self.processes = Processes(self.loop)
        self.eager = EagerStarter(self.loop, self.base_context)
        self.for_others = Seldom(
            self.loop, logging.getLogger("fusee_mp.shard"), "%s",
            "%d more runs whose code another worker has were set aside within %g s, the last: %s", logging.INFO)
        self.shards: list[ShardRuntime] = []
        self._watch = TurnWatch(self, threading.get_ident(), turn_s_max)
        self._loop_watch = LoopWatch(self.loop, threading.get_ident()) if watches_loop else None

    def close(self) -> None:
        self.for_others.close()
        self._watch.stop()
        if self._loop_watch is not None:
            self._loop_watch.stop()
        self.processes.close()
        self.eager.close()
        # A thread cannot be stopped; its result is dropped. The process need not wait for it.
        self.threads.shutdown(wait=False, cancel_futures=True)


class TurnWatch:
    """Interrupts a turn that has run for longer than it may, by raising Interrupted in the code at its next call or loop.

    It is a thread because the loop's thread is the one that is stuck. It looks twice a second, oftener where a turn may take less than
    2 s, and touches nothing otherwise. What blocks in C (`time.sleep`, a read of a socket) cannot be interrupted before it returns, and
    keeps the loop until then: so the watch says at once which run it is, and where. It strikes only while the innermost frame is the
    user's code, so that no function of ours is left half done; from its waking on it holds the interpreter for long enough (5 ms) that
    the stuck thread does not move between the look and the strike.
    """

    def __init__(self, crew: Crew, thread: int, turn_s_max: float) -> None:
        self._crew = crew
        self._thread = thread
        self._look_s = min(LOOK_S, turn_s_max / LOOKS_MIN)
        self._looks_max = max(1, round(turn_s_max / self._look_s))
        self._message = f"its code ran for more than {turn_s_max:g} s without waiting for anything"
        self._stop = threading.Event()
        self._seen: WeakKeyDictionary[ShardRuntime, tuple[int, int]] = WeakKeyDictionary()
        threading.Thread(target=self._watch, name="fusee-turn-watch", daemon=True).start()

    def stop(self) -> None:
        self._stop.set()

    def _watch(self) -> None:
        while not self._stop.wait(self._look_s):
            stuck = [shard for shard in self._crew.shards if self._is_stuck(shard)]
            for _ in range(STRIKES):
                if not stuck or self._strike(stuck[0]) or self._stop.wait(STRIKE_S):
                    break

    def _is_stuck(self, shard: ShardRuntime) -> bool:
        if shard.turn is None:
            self._seen.pop(shard, None)
            return False
        turns, looks = self._seen.get(shard, (shard.turns, 0))
        looks = looks + 1 if turns == shard.turns else 1
        self._seen[shard] = (shard.turns, looks)
        return looks > self._looks_max

    def _strike(self, shard: ShardRuntime) -> bool:
        """True when the turn is over, or was interrupted."""
        run = shard.turn
        if run is None or shard.turns != self._seen[shard][0]:
            return True
        frame = sys._current_frames().get(self._thread)
        if frame is None or is_ours(frame):
            return False
        line = code_line(frame)
        shard.blocked = f"{self._message} ({line})"
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread), ctypes.py_object(Interrupted))
        self._say(run, line)  # last: whoever is stuck may be so in the log
        return True

    def _say(self, run: Run, line: str) -> None:
        LOG.warning(
            'workflow "%s", ID "%s", run %s: %s, and is at %s. No other run, timer or lease of this process goes on meanwhile. The run is'
            " set aside as soon as that returns. Let a step do what takes long, and wait with ctx.sleep or asyncio.sleep",
            run.journal.start.type, run.id, run.number, self._message, line,
        )
