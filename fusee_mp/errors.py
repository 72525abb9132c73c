"""Every exception of the public API, with its stable code.

Catch `FuseeError` for all of them. `code` is stable text: it is what other processes, the CLI's `--json` and docs/errors.md use.
A message says what was expected, what was found and what to do. `fields` holds the same facts for machines.
"""
from __future__ import annotations

from typing import Any, ClassVar


class FuseeError(Exception):
    """The root of all errors that this package raises on its own account."""

    code: ClassVar[str] = "error"

    def __init__(self, message: str = "", **fields: Any) -> None:
        super().__init__(message)
        self.fields: dict[str, Any] = fields

    @property
    def message(self) -> str:
        return str(self.args[0]) if self.args else ""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.fields)


def _rebuild(kind: type[FuseeError], message: str, fields: dict[str, Any]) -> FuseeError:
    return kind(message, **fields)


class NotFound(FuseeError):
    """No run has this ID: it was never started, or its retention ended."""

    code = "not_found"


class AlreadyExists(FuseeError):
    """The ID is taken, and the start's policy does not allow that."""

    code = "already_exists"


class Rejected(FuseeError):
    """The request is refused as it stands; sending it again changes nothing."""

    code = "rejected"


class WorkflowFailed(FuseeError):
    """The workflow ended with an exception, which is `__cause__`."""

    code = "workflow_failed"


class StepFailed(FuseeError):
    """A step's last attempt failed with an exception whose type could not be rebuilt, or this is the `__cause__` of one that was."""

    code = "step_failed"

    @property
    def step(self) -> str:
        return str(self.fields.get("step", ""))

    @property
    def attempts(self) -> int:
        return int(self.fields.get("attempts", 0))

    @property
    def type_name(self) -> str:
        return str(self.fields.get("type_name", ""))


class ChildFailed(FuseeError):
    """A child ended without a result; `__cause__` says how."""

    code = "child_failed"


class Cancelled(FuseeError):
    """The run ended by cancellation."""

    code = "cancelled"


class Terminated(FuseeError):
    """The run was terminated from outside; its code was not asked."""

    code = "terminated"


class TimedOut(FuseeError):
    """The run's deadline passed."""

    code = "timed_out"


class Busy(FuseeError):
    """A queue is full. Nothing was recorded; try again later."""

    code = "busy"


class UnknownWorkflow(FuseeError):
    """No workflow of this name is registered where it would run."""

    code = "unknown_workflow"


class NonDeterminismError(FuseeError):
    """The code asked for something other than what its journal holds."""

    code = "nondeterminism"


class PayloadError(FuseeError):
    """A value cannot be carried as it is; the message has the path of the field."""

    code = "payload"


class StorageError(FuseeError):
    """Reading or writing a file of the data directory failed."""

    code = "storage"


class StorageFull(StorageError):
    """There is no room for new work; running work goes on from the reserve."""

    code = "storage_full"


class DamagedLog(StorageError):
    """Acknowledged bytes of a log are gone or altered. Nothing was changed; the message has file, offset and LSN."""

    code = "damaged_log"


class LeaseLost(FuseeError):
    """The shard's lease went to another worker; what was not acknowledged is that worker's to repeat."""

    code = "lease_lost"


class Denied(FuseeError):
    """One side could not prove who it is, or its token does not go as far as what was asked. Nothing was done."""

    code = "denied"


class Unavailable(FuseeError):
    """The shard or server cannot be reached, or did not answer in time."""

    code = "unavailable"


class ProtocolError(FuseeError):
    """A peer sent bytes that the protocol does not allow; the connection was closed."""

    code = "protocol"


BY_CODE: dict[str, type[FuseeError]] = {
    kind.code: kind
    for kind in (
        NotFound, AlreadyExists, Rejected, WorkflowFailed, StepFailed, ChildFailed, Cancelled, Terminated, TimedOut, Busy,
        UnknownWorkflow, NonDeterminismError, PayloadError, StorageError, StorageFull, DamagedLog, LeaseLost, Denied,
        Unavailable, ProtocolError,
    )
}
