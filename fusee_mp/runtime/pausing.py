# A paused run: no step body of it starts. Bodies that run may end, what arrives is recorded and handed to the code, timers fire; so the
# code goes on until it needs a step.
#
# Rule 1: pausing and resuming are records, so a run is paused on whatever worker it is next loaded.
# Rule 2: a body that was to start waits among the run's held steps; resuming starts them through the gate, behind its record.
# Rule 3: cancelling lifts the pause, since the code's clean-up needs its steps. Terminating asks no code.
from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from fusee_mp.core import records as r

if TYPE_CHECKING:
    from fusee_mp.runtime.run import Run
    from fusee_mp.runtime.steps import StepCall

LOG: Final = logging.getLogger("fusee_mp.workflow")
ASKED: Final = "somebody asked for it; it goes on when it is resumed"


def pause(run: Run, reason: str, op: str = "", request: str = "") -> None:
    """Record that the run is paused. A second pause keeps the first one's reason."""
    if not run.is_paused:
        run.is_paused, run.pause_reason = True, reason
    run.record(r.Paused(run.number, run.tick(), run.pause_reason, op, request))
    run.shard.wake(run)


def pause_used_up(call: StepCall, failure: bytes, said: str) -> None:
    """A step has no attempt left: its run pauses, and the step has all of them again when it is resumed."""
    run = call.run
    reason = f'step "{call.name}" failed at attempt {call.attempt}, its last: {said}. Mend the cause and resume the run, or cancel it'
    LOG.warning('workflow "%s", ID "%s", run %s is paused: %s', run.journal.start.type, run.id, run.number, reason)
    # The pause first: if a crash leaves only one of the two, the attempt is made again by somebody's leave.
    pause(run, reason, call.op)
    run.record(r.Attempt(run.number, run.tick(), call.op, call.name, call.attempt, failure, 0))
    call.used_up = call.attempt
    run.held_steps.append(call)


def resume(run: Run, request: str = "") -> None:
    """Record that the run goes on, and let it."""
    run.record(r.Resumed(run.number, run.tick(), request))
    lift(run)


def lift(run: Run) -> None:
    """The pause is over by a record that was just made."""
    run.is_paused, run.pause_reason = False, ""
    held, run.held_steps = run.held_steps, []
    for call in held:
        if call.used_up and call.used_up == call.attempt:
            call.began_ms = run.journal.latest
    run.steps += held
    run.shard.wake(run)
