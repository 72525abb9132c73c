# Taking workflow code out of memory: its coroutines are closed here, on the loop's thread, and not by the garbage collector, which
# would run clean-up code at any time, on any thread, within another run's turn.
#
# What clean-up code schedules is thrown away; what it asks of its sealed run raises Sealed. So nothing that it does has an effect,
# except on the process itself.
from __future__ import annotations

from asyncio import events
from asyncio import tasks as tasks_of
from collections import deque
from collections.abc import Sequence
from typing import Final

from fusee_mp.runtime.loop import RunLoop, RunTask

ANSWERS_MAX: Final = 8


def close_tasks(loop: RunLoop, tasks: Sequence[RunTask]) -> None:
    """Close the coroutines of a sealed run, in this order."""
    outer, ready = events._get_running_loop(), loop.ready
    events._set_running_loop(loop)
    loop.ready = deque()
    try:
        for task in tasks:
            tasks_of._enter_task(loop, task)  # clean-up code may ask for it: asyncio.timeout does
            try:
                task.context.run(close_task, task)
            finally:
                tasks_of._leave_task(loop, task)
    finally:
        events._set_running_loop(outer)
        loop.ready = ready


def close_task(task: RunTask) -> None:
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # else asyncio would say that it was lost
    if task.done():
        return
    body = task.get_coro()
    assert body is not None
    for _ in range(ANSWERS_MAX):  # code that answers the closing with another await is asked again, then left
        try:
            body.close()
        except RuntimeError:
            continue
        except BaseException:  # its clean-up failed, by Sealed most often
            pass
        return
