# Pausing, resuming, resetting, deleting and completing, as they are asked of a shard.
from __future__ import annotations

from typing import TYPE_CHECKING

from fusee_mp.core import records as r
from fusee_mp.core.calls import CompleteCall, DeleteCall, PauseCall, ResetCall, ResumeCall
from fusee_mp.errors import FuseeError, NotFound, Rejected
from fusee_mp.runtime import pausing
from fusee_mp.runtime.completions import complete
from fusee_mp.runtime.entries import Entry, is_open, lsn_of, missing, status_of, too_late
from fusee_mp.runtime.resetting import Reset
from fusee_mp.runtime.run import Run

if TYPE_CHECKING:
    from fusee_mp.runtime.calls import Calls
    from fusee_mp.runtime.shard_runtime import ShardRuntime


class RunCalls:
    """Carries out these calls on one shard."""

    def __init__(self, shard: ShardRuntime, calls: Calls) -> None:
        self._shard = shard
        self._calls = calls

    def pause(self, call: PauseCall) -> None:
        def deliver(run: Run) -> None:
            pausing.pause(run, call.reason or pausing.ASKED, "", call.request)
            self._calls.done(call, run.gate, None)

        self._calls.with_open_run(call, deliver)

    def reset(self, call: ResetCall) -> None:
        Reset(self._shard, self._calls, call).begin()

    def delete(self, call: DeleteCall) -> None:
        self._shard.with_id(call.id, lambda entry: self._delete(call, entry))

    def _delete(self, call: DeleteCall, entry: Entry) -> None:
        if entry is None or isinstance(entry, FuseeError):
            self._calls.refuse(call, 0, entry or missing(call.id))
        elif is_open(entry):
            self._calls.refuse(call, lsn_of(entry), Rejected(
                f'workflow "{call.id}" has not ended, so it is not deleted: cancel or terminate it first',
                id=call.id, status=status_of(entry)))
        else:
            self._shard.ask_keeper("ended", (call.id,), lambda runs, error: self._delete_all(call, runs, error), lsn_of(entry))

    def _delete_all(self, call: DeleteCall, runs: list[int], error: FuseeError | None) -> None:
        """Every run of the ID goes, or an older one would come to light. The answer waits until nobody finds them any more."""
        if error is not None or not runs:
            self._calls.refuse(call, 0, error or missing(call.id))
            return
        lsn = max(self._shard.retention.delete(run, call.request) for run in runs)
        self._shard.ask_keeper("find", (call.id,), lambda _, __: self._calls.done(call, lsn, None), lsn)

    def resume(self, call: ResumeCall) -> None:
        def deliver(run: Run) -> None:
            pausing.resume(run, call.request)
            self._calls.done(call, run.gate, None)

        self._calls.with_open_run(call, deliver)

    def complete(self, call: CompleteCall) -> None:
        # A run that is loaded for this has its turn first: only its code knows which values fit.
        self._shard.with_run(call.id, lambda entry: self._shard.hold(0, self._complete, call, entry))

    def _complete(self, call: CompleteCall, entry: Entry) -> None:
        if isinstance(entry, FuseeError):
            self._calls.refuse(call, 0, Rejected(_unknown(call.id), id=call.id) if isinstance(entry, NotFound) else entry)
        elif entry is None:
            self._calls.refuse(call, 0, Rejected(_unknown(call.id), id=call.id))
        elif not isinstance(entry, Run) or entry.is_over:
            status = status_of(entry)
            self._calls.refuse(call, lsn_of(entry), Rejected(
                f'the token is of no use any more: workflow "{entry.id}" has ended as {status}', id=entry.id, status=status))
        elif entry.left_memory:
            self.complete(call)
        else:
            self._complete_open(call, entry)

    def _complete_open(self, call: CompleteCall, run: Run) -> None:
        try:
            completed = complete(run, call)
        except Rejected as e:
            self._calls.refuse(call, run.gate, e)
        else:
            self._shard.hold(run.gate, self._completed, call, run, completed, run.gate)

    def _completed(self, call: CompleteCall, run: Run, completed: r.Completed, lsn: int) -> None:
        """The outcome is durable, and its run had its turn: either the code has it, or it had come to its end before."""
        self._calls.done(call, lsn, None, too_late(run) if run.has_missed(completed) else None)


def _unknown(id: str) -> str:
    return f'the token is for workflow "{id}", which is not here: it was deleted, or the token comes from another server'
