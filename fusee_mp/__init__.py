# Durable execution for Python.
#
# Public names only. They are imported when first used: a process of the server that needs the wire format does not pay for the sdk.
from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fusee_mp.core.placement import shard_of as shard_of
    from fusee_mp.duration import Duration as Duration
    from fusee_mp.errors import AlreadyExists as AlreadyExists
    from fusee_mp.errors import Busy as Busy
    from fusee_mp.errors import Cancelled as Cancelled
    from fusee_mp.errors import ChildFailed as ChildFailed
    from fusee_mp.errors import DamagedLog as DamagedLog
    from fusee_mp.errors import Denied as Denied
    from fusee_mp.errors import FuseeError as FuseeError
    from fusee_mp.errors import LeaseLost as LeaseLost
    from fusee_mp.errors import NonDeterminismError as NonDeterminismError
    from fusee_mp.errors import NotFound as NotFound
    from fusee_mp.errors import PayloadError as PayloadError
    from fusee_mp.errors import ProtocolError as ProtocolError
    from fusee_mp.errors import Rejected as Rejected
    from fusee_mp.errors import StepFailed as StepFailed
    from fusee_mp.errors import StorageError as StorageError
    from fusee_mp.errors import StorageFull as StorageFull
    from fusee_mp.errors import Terminated as Terminated
    from fusee_mp.errors import TimedOut as TimedOut
    from fusee_mp.errors import Unavailable as Unavailable
    from fusee_mp.errors import UnknownWorkflow as UnknownWorkflow
    from fusee_mp.errors import WorkflowFailed as WorkflowFailed
    from fusee_mp.payload.cipher import AesGcm as AesGcm
    from fusee_mp.payload.classes import register_exception as register_exception
    from fusee_mp.sdk.client import Client as Client
    from fusee_mp.sdk.config import Config as Config
    from fusee_mp.sdk.ctx import ChildHandle as ChildHandle
    from fusee_mp.sdk.ctx import Ctx as Ctx
    from fusee_mp.sdk.current import CurrentStep as CurrentStep
    from fusee_mp.sdk.current import current_step as current_step
    from fusee_mp.sdk.definitions import Step as Step
    from fusee_mp.sdk.definitions import Workflow as Workflow
    from fusee_mp.sdk.definitions import step as step
    from fusee_mp.sdk.definitions import workflow as workflow
    from fusee_mp.sdk.engine import Engine as Engine
    from fusee_mp.sdk.export import export as export
    from fusee_mp.sdk.handles import Query as Query
    from fusee_mp.sdk.handles import Signal as Signal
    from fusee_mp.sdk.handles import Update as Update
    from fusee_mp.sdk.handles import query as query
    from fusee_mp.sdk.handles import signal as signal
    from fusee_mp.sdk.handles import update as update
    from fusee_mp.sdk.journals import Journal as Journal
    from fusee_mp.sdk.limit import Limit as Limit
    from fusee_mp.sdk.limit import LimitStatus as LimitStatus
    from fusee_mp.sdk.replayer import Replay as Replay
    from fusee_mp.sdk.replayer import Replayer as Replayer
    from fusee_mp.sdk.retry import Fatal as Fatal
    from fusee_mp.sdk.retry import Retry as Retry
    from fusee_mp.sdk.run import Run as Run
    from fusee_mp.sdk.schedules import ScheduleDetail as ScheduleDetail
    from fusee_mp.sdk.schedules import ScheduleHandle as ScheduleHandle
    from fusee_mp.sdk.schedules import ScheduleSpec as ScheduleSpec
    from fusee_mp.sdk.schedules import schedule_run_id as schedule_run_id
    from fusee_mp.sdk.sync import SyncClient as SyncClient
    from fusee_mp.sdk.sync import SyncEngine as SyncEngine
    from fusee_mp.sdk.sync import SyncRun as SyncRun
    from fusee_mp.sdk.types import RunDetail as RunDetail
    from fusee_mp.sdk.types import RunStatus as RunStatus
    from fusee_mp.sdk.windows import Batch as Batch
    from fusee_mp.sdk.windows import Debounce as Debounce
    from fusee_mp.sdk.worker import Worker as Worker

__version__ = "0.1.0"

# Where each public name stands. A test holds this list and the one above equal.
_HOMES = {
    "duration": "Duration",
    "errors": "AlreadyExists Busy Cancelled ChildFailed DamagedLog Denied FuseeError LeaseLost NonDeterminismError NotFound PayloadError "
              "ProtocolError Rejected StepFailed StorageError StorageFull Terminated TimedOut Unavailable UnknownWorkflow WorkflowFailed",
    "payload.cipher": "AesGcm",
    "payload.classes": "register_exception",
    "core.placement": "shard_of",
    "sdk.client": "Client",
    "sdk.config": "Config",
    "sdk.current": "CurrentStep current_step",
    "sdk.ctx": "ChildHandle Ctx",
    "sdk.definitions": "Step Workflow step workflow",
    "sdk.engine": "Engine",
    "sdk.export": "export",
    "sdk.handles": "Query Signal Update query signal update",
    "sdk.journals": "Journal",
    "sdk.replayer": "Replay Replayer",
    "sdk.limit": "Limit LimitStatus",
    "sdk.retry": "Fatal Retry",
    "sdk.run": "Run",
    "sdk.schedules": "ScheduleDetail ScheduleHandle ScheduleSpec schedule_run_id",
    "sdk.sync": "SyncClient SyncEngine SyncRun",
    "sdk.types": "RunDetail RunStatus",
    "sdk.windows": "Batch Debounce",
    "sdk.worker": "Worker",
}
_HOME_OF = {name: f"{__name__}.{module}" for module, names in _HOMES.items() for name in names.split()}
__all__ = list(_HOME_OF)


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f'package "{__name__}" has no name "{name}". Public are: {", ".join(sorted(__all__))}.')
    value = globals()[name] = getattr(importlib.import_module(home), name)
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
