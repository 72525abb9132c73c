"""Calls on schedules and windows: who carries them out, and what their repeats are answered."""
from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeGuard

import msgspec

from fusee_mp.core.calls import Mutation
from fusee_mp.core.time_calls import (
    BackfillCall,
    Backfilled,
    ChangeScheduleCall,
    GatherCall,
    ScheduleCall,
    SchedulesCall,
    SetScheduleCall,
    TimeMutation,
)
from fusee_mp.errors import FuseeError

if TYPE_CHECKING:
    from fusee_mp.runtime.calls import Calls
    from fusee_mp.runtime.shard_runtime import ShardRuntime

_decode_backfilled: Final = msgspec.msgpack.Decoder(Backfilled).decode


def is_timed(call: Mutation) -> TypeGuard[TimeMutation]:
    """Its answer is kept by itself, since no run's journal has its request."""
    return isinstance(call, (SetScheduleCall, ChangeScheduleCall, BackfillCall, GatherCall))


class TimedCalls:
    def __init__(self, shard: ShardRuntime, calls: Calls) -> None:
        self._shard = shard
        self._calls = calls
        self.does: dict[type, Callable[[Any], None]] = {
            SetScheduleCall: lambda call: shard.schedules.set(call), ChangeScheduleCall: lambda call: shard.schedules.change(call),
            BackfillCall: lambda call: shard.schedules.backfill(call), GatherCall: lambda call: shard.windows.gather(call),
        }

    def look(self, call: ScheduleCall | SchedulesCall) -> tuple[Any, FuseeError | None]:
        """The answer to a question, or the error."""
        if isinstance(call, SchedulesCall):
            return self._shard.schedules.page(call), None
        found = self._shard.schedules.look(call)
        return (None, found) if isinstance(found, FuseeError) else (found, None)

    def again(self, call: TimeMutation) -> None:
        """A call that may have been carried out before: it gets the answer of the first."""
        self._shard.ask_keeper("answer", (call.request,), lambda found, error: self._answered_before(call, found, error))

    def _answered_before(self, call: TimeMutation, found: bytes | None, error: FuseeError | None) -> None:
        if error is not None:
            self._calls.repeated(call, None, error)
        elif found is None:
            self._calls.begin(call)
        elif isinstance(call, BackfillCall) and (so_far := _decode_backfilled(found)).next_ms is not None:
            self._shard.schedules.backfill(call, so_far)
        elif isinstance(call, BackfillCall):
            self._calls.repeated(call, so_far.started)
        else:
            self._calls.repeated(call, msgspec.msgpack.decode(found))
