"""One small and one full record of every kind: what the golden bytes were made of."""
from __future__ import annotations

from typing import Any

import msgspec

from fusee_mp.core import records as r
from fusee_mp.core.schedule import Schedule, ScheduleRule
from fusee_mp.core.schedule_changes import ScheduleChange
from fusee_mp.core.timing import CronTime

PARENT = r.Parent(3, "order-7", 12, "2/1")
SOURCE = r.Source(5, 42)
AT = 1_700_000_000_123
STATE = Schedule("nightly", ScheduleRule(CronTime("0 2 * * *", "Europe/Berlin")), AT).now
SMALL: list[Any] = [
    r.Grant(AT, 7, "worker"), r.Start(1, AT, "order-1", "checkout", b"null"), r.StepDone(1, AT, "1", "charge", 1, "ok", b"1"),
    r.Attempt(1, AT, "1", "charge", 1, b"{}", AT + 100), r.Timer(1, AT, "2", "", AT + 1), r.Fired(1, AT, "2"),
    r.Signal(1, AT, "go", b"null"), r.Child(1, AT, "3", 0, 1, "order-1/ship", "ship", b"null"), r.ChildDone(1, AT, "3", "ok", b"1"),
    r.Send(1, AT, "4", 0, 2, "signal", "order-2"), r.CancelRequested(1, AT, ""), r.Done(1, AT, "ok", b"1"), r.Quiet(1, AT, None),
    r.Skipped(AT, SOURCE, "no open run"), r.Acked(2, 9), r.Quarantined(1, AT, "nondeterminism", "changed", 3),
    r.Unquarantined(1, AT), r.Deleted(1, AT), r.Attributes(1, AT, "5", b'{"a":1}'),
    r.Refused(AT, "order-1/ship", 3, 8, PARENT, b"{}", SOURCE), r.Update(1, AT, "add", "u-1", b"5"),
    r.UpdateDone(1, AT, "u1/2", "add", "u-1", "ok", b"15"), r.Heartbeat(1, AT, "1", "charge", 2, b"40"),
    r.Awaiting(1, AT, "6", "approval", 1),
    r.Completed(1, AT, "6", "approval", 1, "ok", b"true"), r.Paused(1, AT, "its attempts are used up"), r.Resumed(1, AT),
    r.ScheduleSet(AT, "nightly", "report", b"null", "UTC", STATE), r.ScheduleMoved(AT, "nightly", ScheduleChange(AT, False, 1, 0, None)),
    r.ScheduleDeleted(AT, "nightly"), r.StartAsked(AT, 0, 3, "doc@5", "index", b"1"),
    r.Gathered(AT, "debounce", "index", "doc", f"doc@{AT}", AT + 50, b"1"), r.WindowsClosed(AT, [r.Closing(f"doc@{AT}", 0, 3)]),
]
FULL: list[Any] = [
    r.Start(1 << 40, AT, "ein Auftrag für 日本", "checkout", b'{"n":1}', "request-1", 3, "cpython-3.11", AT + 60_000, b'{"a":1}', PARENT,
            "abandon", SOURCE, 11, AT - 5, (1 << 62) - 1, r.Update(1 << 40, AT, "add", "u-1", b"5", "request-1")),
    r.StepDone(2, AT, "2/1/3", "charge", 5, "failed", b'{"type":"builtins:ValueError"}'),
    r.StepDone(2, AT, "2/1/3", "charge", 0, "cancelled", b""),
    r.Signal(1, AT, "go", b"[1,2]", "request-2", SOURCE), r.Child(1, AT, "3", 4, 1, "c", "ship", b"{}", "cancel", 5_000),
    r.ChildDone(1, AT, "3", "refused", b"{}", SOURCE), r.Send(1, AT, "", 4, 2, "terminate", "c", "", b"", "3"),
    r.Send(1, AT, "4", 4, 3, "signal", "order-2", "go", b"7"), r.CancelRequested(1, AT, "too late", "request-3", SOURCE),
    r.Done(1, AT, "timed_out", b"", "its deadline has passed", "request-4", PARENT, 3, 10, SOURCE), r.Quiet(1, AT, AT + 5, True),
    r.Update(1, AT, "add", "u-1", b"5", "request-5"), r.UpdateDone(1, AT, "u1/1", "add", "u-1", "refused", b"too many"),
    r.Awaiting(1, AT, "2/6", "approval", 3, True), r.Completed(1, AT, "2/6", "approval", 3, "failed", b"{}", "request-6"),
    r.Paused(1, AT, "for the night", "2/1", "request-7"), r.Resumed(1, AT, "request-8"),
    r.Start(9, AT, "order-1", "checkout", b"null", origin=4, carried=3, answered=[("u-1", 2), ("u-2", 4)]),
    r.Inherited(9, AT, "order-1/ship", "ship", "cancel", 4, "2/3"),
    r.Patched(9, AT, "rounding"),
    r.Child(9, AT, "3", -1, 0, "c", "ship", b"{}", "cancel", None, 4, "2/3"), r.Send(9, AT, "", 4, 2, "cancel", "c", "", b"", "2/3", 4),
    r.Done(1, AT, "ok", b"1", history=False), r.Deleted(1, AT, "request-9", True),
    r.Refused(AT, "order-1/ship", 3, 8, PARENT, b"7", SOURCE, "ok"),
    r.ScheduleSet(AT, "nightly", "report", b"{}", "Europe/Berlin", STATE, [r.Begin(1, 7, AT - 5)], [r.End(2, 8, AT - 9, "cancel")],
                  "request-10", b"\xc0"),
    r.ScheduleMoved(AT, "nightly", ScheduleChange(AT, True, 9, 3, AT - 1, [AT - 5], [AT - 9], [AT - 7], [(1, AT - 5)], [1], [AT - 4]),
                    [r.Begin(1, 7, AT - 5)], [r.End(2, 8, AT - 7, "terminate")], "request-11", b"\xa0", SOURCE),
    r.ScheduleDeleted(AT, "nightly", "request-12", b"\xa0"), r.StartAsked(AT, 1, 7, "nightly@5", "report", b"{}", 5, "Europe/Berlin"),
    r.Gathered(AT, "batch", "index", "doc", f"doc@{AT}", AT + 50, b"1", "event-1", [r.Closing("doc@4", 1, 9)], "request-13", b"\xa5doc@5"),
]


def golden() -> dict[str, list[str]]:
    """The bytes of all of them by kind, as they stand in tests/golden/records.json."""
    found: dict[str, list[str]] = {}
    for record in SMALL + FULL:
        found.setdefault(r.KIND[type(record)], []).append(r.encode(record).hex())
    found["message"] = [r.encode_message(r.Message(3, 42, "order-7", r.encode(r.Fired(1, AT, "2")))).hex()]
    return found


if __name__ == "__main__":
    print(msgspec.json.format(msgspec.json.encode(golden()), indent=1).decode())
