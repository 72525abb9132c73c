"""What the store answers, as the public types show it."""
from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, cast

import msgspec

from fusee_mp.core import records as r
from fusee_mp.payload.failure import decode_failure, summary
from fusee_mp.runtime.home import OPEN_STATUSES
from fusee_mp.sdk.types import JournalRecord, PendingStep, RunDetail, RunStatus
from fusee_mp.sdk.types import Status as StatusWord
from fusee_mp.store.results import Description, Found, Status

# Shown as the attributes of a JournalRecord, not among its fields.
_OWN = frozenset(("run", "at", "name"))


def instant(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def _common(row: Status | Found, shard: int) -> dict[str, Any]:
    return {
        "id": row.id, "number": row.run, "workflow": row.type, "status": cast(StatusWord, row.status),
        "is_open": row.status in OPEN_STATUSES, "shard": shard, "started": instant(row.started),
        "finished": None if row.finished is None else instant(row.finished), "attributes": json.loads(row.attributes or b"{}"),
    }


def status_of(row: Status, shard: int) -> RunStatus:
    return RunStatus(**_common(row, shard), cursor=f"{shard}:{row.cursor}")


def detail_of(row: Description, shard: int) -> RunDetail:
    records = [r.decode(data) for data in r.unframe(row.data)]
    found = row.found
    failure = msgspec.to_builtins(decode_failure(found.result)) if found.status == "failed" and found.result else None
    return RunDetail(
        **_common(found, shard), reason=found.reason, failure=failure, pending=_pending(records),
        journal=[journal_record(record, lsn, seq) for seq, (record, lsn) in enumerate(zip(records, row.lsns, strict=True))],
    )


def journal_record(record: r.Record, lsn: int, seq: int) -> JournalRecord:
    """One record as the public types show it."""
    fields = {name: _shown(value) for name, value in msgspec.structs.asdict(record).items() if name not in _OWN}
    name = getattr(record, "name", "") or getattr(record, "type", "") or ""
    return JournalRecord(kind=r.KIND[type(record)], lsn=lsn, seq=seq, name=name, at=instant(getattr(record, "at", 0)), fields=fields)


def _shown(value: Any) -> Any:
    """Payloads are JSON: shown as the value they hold."""
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.asdict(value)
    if not isinstance(value, bytes):
        return value
    try:
        return json.loads(value) if value else None
    except ValueError:
        return value


def _pending(records: list[r.Record]) -> list[PendingStep]:
    """Steps that failed and wait for their next attempt. A step in its first attempt has no record yet."""
    waiting: dict[str, PendingStep] = {}
    for record in records:
        if isinstance(record, r.Attempt):
            waiting[record.op] = PendingStep(
                name=record.name, attempt=record.attempt + 1, next_attempt=instant(record.retry_at),
                last_failure=summary(decode_failure(record.failure)),
            )
        elif isinstance(record, r.StepDone):
            waiting.pop(record.op, None)
    return list(waiting.values())
