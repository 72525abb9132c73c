"""What the store answers, as the public types show it."""
from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

import msgspec

from fusee_mp.core import records as r
from fusee_mp.payload.failure import decode_failure, summary
from fusee_mp.payload.sealing import PLAIN, Payloads, is_closed, said_of_closed
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
        "reason": row.reason,
    }


def status_of(row: Status, shard: int, payloads: Payloads = PLAIN) -> RunStatus:
    return RunStatus(**_common(payloads.shown(row), shard), cursor=f"{shard}:{row.cursor}")


def detail_of(row: Description, shard: int, payloads: Payloads = PLAIN) -> RunDetail:
    records = [payloads.shown(r.decode(data)) for data in r.unframe(row.data)]
    found = payloads.shown(row.found)
    failure = _failure(found.result) if found.status == "failed" and found.result else None
    return RunDetail(
        **_common(found, shard), failure=failure, pending=_pending(records) if found.status in OPEN_STATUSES else (),
        journal=[journal_record(record, lsn, seq) for seq, (record, lsn) in enumerate(zip(records, row.lsns, strict=True))],
    )


def journal_record(record: r.Record, lsn: int, seq: int) -> JournalRecord:
    """One record as the public types show it."""
    fields = {name: _shown(value) for name, value in msgspec.structs.asdict(record).items() if name not in _OWN}
    name = getattr(record, "name", "") or getattr(record, "type", "") or ""
    return JournalRecord(kind=r.KIND[type(record)], lsn=lsn, seq=seq, name=name, at=instant(getattr(record, "at", 0)), fields=fields)


def _shown(value: Any) -> Any:
    """Payloads are JSON: shown as the value they hold, or as sealed and by which key."""
    if isinstance(value, msgspec.Struct):
        return {name: _shown(inner) for name, inner in msgspec.structs.asdict(value).items()}
    if not isinstance(value, bytes):
        return value
    if is_closed(value):
        return said_of_closed(value)
    try:
        return json.loads(value) if value else None
    except ValueError:
        return value


def _failure(payload: bytes) -> dict[str, Any]:
    return said_of_closed(payload) if is_closed(payload) else msgspec.to_builtins(decode_failure(payload))


def _last(failure: bytes) -> str:
    return f"[sealed: {said_of_closed(failure)}]" if is_closed(failure) else summary(decode_failure(failure))


def _pending(records: list[r.Record]) -> list[PendingStep]:
    """Steps that have reported or failed, and completions, without an outcome. A step that did neither has no record yet."""
    pending: dict[str, PendingStep] = {}
    for record in records:
        if isinstance(record, (r.StepDone, r.Completed)):
            pending.pop(record.op, None)
        elif isinstance(record, (r.Attempt, r.Heartbeat, r.Awaiting)):
            found = pending.get(record.op) or PendingStep(name=record.name, attempt=record.attempt)
            pending[record.op] = replace(found, **_news(record))
    return list(pending.values())


def _news(record: r.Attempt | r.Heartbeat | r.Awaiting) -> dict[str, Any]:
    if isinstance(record, r.Heartbeat):
        return {"attempt": record.attempt, "next_attempt": None, "progress": _shown(record.payload)}
    if isinstance(record, r.Awaiting):
        return {"attempt": record.attempt, "next_attempt": None}
    due = instant(record.retry_at) if record.retry_at else None
    return {"attempt": record.attempt + 1, "next_attempt": due, "last_failure": _last(record.failure)}
