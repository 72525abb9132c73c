# Messages between this shard and the others (the rules stand in core/postbox.py).
#
# What comes from one shard is taken strictly in its order: while one message waits for a run to be loaded, the later ones of the
# same sender wait behind it, since the position that is recorded with an arrival covers everything before it.
from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from fusee_mp.core import records as r
from fusee_mp.core.placement import shard_of
from fusee_mp.core.postbox import RESEND_MAX, Inbox, Outbox
from fusee_mp.core.schedule_changes import NO_RUN
from fusee_mp.errors import AlreadyExists, FuseeError, PayloadError, UnknownWorkflow
from fusee_mp.payload.failure import encode_failure
from fusee_mp.runtime.entries import Entry, is_open, number_of, payload_of, status_of
from fusee_mp.runtime.home import Found
from fusee_mp.runtime.run import Run

if TYPE_CHECKING:
    from fusee_mp.runtime.shard_runtime import ShardRuntime

LOG: Final = logging.getLogger("fusee_mp.shard")
RESEND_AFTER_MS: Final = 1_000


class Mail:
    """The outbox and inbox of one shard, at work."""

    def __init__(self, shard: ShardRuntime) -> None:
        self._shard = shard
        self.outbox: Outbox = shard.outbox
        self.inbox = Inbox()
        self._queues: dict[int, deque[r.Message]] = {}
        self._leaving: dict[int, list[tuple[int, bytes]]] = {}
        self._acks: dict[int, int] = {}
        self._acked: dict[int, int] = {}
        self._resent: dict[int, int] = {}  # where more wait than one lot: the last number of the one that was sent again
        self._owed_since_ms: dict[int, int] = {}  # since when a shard that has not acknowledged everything acknowledged nothing

    # Out.

    def address(self, id: str) -> tuple[int, int]:
        """The shard of an ID, and the number of the message to it that is about to be recorded."""
        to = shard_of(id, self._shard.shards)
        return to, self.outbox.number(to)

    def post(self, id: str, to: int, no: int, record: bytes, lsn: int) -> None:
        """A message record stands at `lsn`: it leaves when that is durable."""
        self._shard.hold(lsn, self._leave, to, no, r.encode_message(r.Message(self._shard.shard, no, id, record)))

    def _leave(self, to: int, no: int, message: bytes) -> None:
        self.outbox.put(to, no, message)  # not before: what waits there may be sent again at any time
        self._leaving.setdefault(to, []).append((no, message))

    def flush(self) -> None:
        """Hand on what has become free to leave; called at the end of the shard's work."""
        if self._leaving:
            leaving, self._leaving = self._leaving, {}
            for to, messages in leaving.items():
                self._owed_since_ms.setdefault(to, self._shard.clock())
                self._shard.home.relay(to, messages)
        if self._acks:
            acks, self._acks = self._acks, {}
            for sender, through in acks.items():
                self._shard.home.relay_ack(sender, through)

    def acknowledged(self, to: int, through: int) -> None:
        if self._shard.is_closed or not self.outbox.acknowledged(to, through):
            return
        self._acked[to] = through
        if self.outbox.first(to, 1):
            self._owed_since_ms[to] = self._shard.clock()
        else:
            self._owed_since_ms.pop(to, None)
        if through >= self._resent.get(to, through + 1):
            self._resend(to)  # one lot has arrived: the next one

    def tend(self) -> None:
        """Now and then: record what was acknowledged, and send again what should have been, also while others go on leaving: behind a
        lost message none is taken."""
        for to, through in self._acked.items():
            self._shard.append(r.encode(r.Acked(to, through)))
        self._acked.clear()
        late = self._shard.clock() - RESEND_AFTER_MS
        for to in [to for to, since in self._owed_since_ms.items() if since <= late]:
            self._resend(to)

    @property
    def needs_tending(self) -> bool:
        return bool(self._acked) or bool(len(self.outbox))

    def resend(self) -> None:
        """Send the oldest messages again that were not acknowledged; the next lot goes when these have been."""
        for to in self.outbox.waiting():
            self._resend(to)

    def _resend(self, to: int) -> None:
        lot = self.outbox.first(to)
        self._resent.pop(to, None)
        self._owed_since_ms[to] = self._shard.clock()
        if len(lot) == RESEND_MAX:
            self._resent[to] = lot[-1][0]
        if lot:
            self._shard.home.relay(to, lot)

    # In.

    def deliver(self, sender: int, messages: Sequence[bytes]) -> None:
        """Messages of one sending shard arrived, in their order, perhaps not for the first time."""
        if self._shard.is_closed:
            return
        queue = self._queues.get(sender)
        waiting = queue is not None
        if queue is None:
            queue = self._queues[sender] = deque()
        queue.extend(_decoded(sender, messages))
        if not waiting:
            self._next(sender)

    def _next(self, sender: int) -> None:
        """Take the sender's messages until one has to wait for a run."""
        queue = self._queues[sender]
        while queue:
            message = queue[0]
            if message.no <= self.inbox.taken(sender):
                queue.popleft()
                self._ack(sender, self._shard.lsn)
            elif message.no > self.inbox.taken(sender) + 1:
                queue.popleft()  # comes too early: the sender begins again from the one that is missing
            elif self._take(message):
                continue
            else:
                return
        del self._queues[sender]

    def _take(self, message: r.Message) -> bool:
        """Begin with the sender's next message. True when it is done already."""
        source = r.Source(message.shard, message.no)
        sealed: PayloadError | None = None
        try:
            record = r.decode(message.record)
            record = self._shard.payloads.opened(record)
        except PayloadError as e:  # it is recorded as it stands, and its run waits for the key
            sealed = e
        except msgspec.DecodeError as e:
            self._skip(source, f"not a record: {e}")
            return self._taken(source)
        if isinstance(record, (r.Done, r.Refused)) and record.parent is not None and record.parent.run == NO_RUN:
            self._shard.schedules.run_ended(record.parent, source)
            return self._taken(source)
        done = False
        handled_at_once = True

        def entered(entry: Entry) -> None:
            nonlocal done
            if isinstance(entry, FuseeError):
                # The store did not answer. Nothing is taken: the sender sends again.
                self._queues.pop(source.shard, None)
                return
            self._arrived(message, record, source, entry)
            if sealed is not None:
                self._set_aside(record, entry, sealed)
            done = self._taken(source)
            if not handled_at_once:
                self._next(source.shard)

        if isinstance(record, (r.Child, r.StartAsked)):
            self._shard.with_id(record.id, entered)
        else:
            id = record.id if isinstance(record, r.Send) else _parent_id(record)
            self._shard.with_run(id, entered)
        handled_at_once = False
        return done

    def _taken(self, source: r.Source) -> bool:
        self.inbox.take(source.shard, source.no)
        queue = self._queues[source.shard]
        assert queue[0].no == source.no
        queue.popleft()
        self._ack(source.shard, self._shard.lsn)
        return True

    def _ack(self, sender: int, lsn: int) -> None:
        self._shard.hold(lsn, self._ack_durable, sender, self.inbox.taken(sender))

    def _ack_durable(self, sender: int, through: int) -> None:
        self._acks[sender] = max(through, self._acks.get(sender, 0))

    def _skip(self, source: r.Source, reason: str) -> None:
        self._shard.append(r.encode(r.Skipped(self._shard.clock(), source, reason)))

    def _arrived(self, message: r.Message, record: r.Record, source: r.Source, entry: Run | Found | None) -> None:
        if isinstance(record, r.Child):
            self._start_child(message, record, source, entry)
            return
        if isinstance(record, r.StartAsked):
            self._start_asked(message, record, source, entry)
            return
        run = entry if isinstance(entry, Run) and not entry.is_over else None
        if isinstance(record, r.Send):
            self._send_arrived(message, record, source, run)
        elif isinstance(record, (r.Done, r.Refused)) and record.parent is not None:
            op = None if run is None else run.operation_of(record.parent)
            if run is None or op is None:
                self._skip(source, f'the parent "{record.parent.id}" has ended')
            else:
                payload = record.payload if isinstance(record, r.Done) else record.failure
                run.record_outcome(r.ChildDone(run.number, run.tick(), op, record.status, payload, source))
        else:
            self._skip(source, f"a {r.KIND[type(record)]} record is no message")

    def _set_aside(self, record: r.Record, entry: Entry, error: PayloadError) -> None:
        run = self._shard.by_id.get(record.id) if isinstance(record, (r.Child, r.StartAsked)) else entry
        if isinstance(run, Run) and not run.is_over and run.broken is None:
            run.broken = error  # before its next turn

    def _send_arrived(self, message: r.Message, record: r.Send, source: r.Source, run: Run | None) -> None:
        if run is None or not _is_meant(record, message, run):
            self._skip(source, f'{record.kind} to "{record.id}": no open run has this ID')
        elif record.kind == "signal":
            run.record_outcome(r.Signal(run.number, run.tick(), record.name, record.payload, source=source))
        elif record.kind == "cancel":
            reason = record.payload.decode(errors="replace") or f'cancelled by workflow "{message.id}"'
            run.cancel_arrived(reason, source=source)
        else:
            run.finish("terminated", b"", record.payload.decode(errors="replace") or f'its parent "{message.id}" has ended', source=source)

    def _start_child(self, message: r.Message, child: r.Child, source: r.Source, entry: Run | Found | None) -> None:
        shard = self._shard
        parent = r.Parent(message.shard, message.id, child.started_by or child.run, child.started_op or child.op)
        if child.started_by and entry is not None and _is_child_of(entry, parent) and self._is_answered(entry, parent, child, source):
            return
        if isinstance(entry, Run) and not entry.is_over or isinstance(entry, Found) and entry.is_open:
            self._refuse(parent, child, source, AlreadyExists(
                f'child "{child.id}" was not started: a run of this ID is open already. Give the child an ID of its own', id=child.id))
        elif shard.registry.get(child.type) is None and not shard.registry.is_elsewhere(child.type):
            self._refuse(parent, child, source, UnknownWorkflow(
                f'child "{child.id}" was not started: workflow "{child.type}" is not registered where it would run'
                f" (registered: {shard.registry.all_names()})", workflow=child.type))
        else:
            now = shard.clock()
            deadline = None if child.timeout_ms is None else now + child.timeout_ms
            shard.calls.new_run(r.Start(
                0, now, child.id, child.type, child.input, deadline=deadline, parent=parent, close=child.close, source=source))

    def _start_asked(self, message: r.Message, wish: r.StartAsked, source: r.Source, entry: Run | Found | None) -> None:
        """A schedule or a window starts a run. A schedule's instant may have had its run: then it is not started again."""
        is_scheduled = wish.scheduled_at is not None
        parent = r.Parent(message.shard, message.id, NO_RUN, str(wish.scheduled_at)) if is_scheduled else None
        if entry is not None and (is_scheduled or is_open(entry)):
            said = f'"{wish.id}" was not started by "{message.id}": the ID is taken by run {number_of(entry)} ({status_of(entry)})'
            LOG.error("shard %s: run %s", self._shard.shard, said)
            if parent is not None:
                self._refuse(parent, wish, source, AlreadyExists(said, id=wish.id))
            else:
                self._skip(source, said)
            return
        self._shard.calls.new_run(r.Start(
            0, self._shard.clock(), wish.id, wish.type, wish.input,
            parent=parent, source=source, scheduled_at=wish.scheduled_at, zone=wish.zone))

    def _is_answered(self, entry: Run | Found, parent: r.Parent, child: r.Child, source: r.Source) -> bool:
        """A run of the parent's ID, reset after its end, asks for a child that it had: False when that was closed with the parent."""
        if is_open(entry):
            self._skip(source, f'the child "{child.id}" runs already')
            return True
        status = status_of(entry)
        if status not in ("ok", "failed"):
            return False
        self._answer(parent, child, source, status, payload_of(entry))
        return True

    def _refuse(self, parent: r.Parent, child: r.Child | r.StartAsked, source: r.Source, error: FuseeError) -> None:
        self._answer(parent, child, source, "refused", encode_failure(error))

    def _answer(
        self, parent: r.Parent, child: r.Child | r.StartAsked, source: r.Source, status: str, payload: bytes
    ) -> None:
        shard = self._shard
        to, no = self.address(parent.id)
        data = shard.encode(r.Refused(shard.clock(), child.id, to, no, parent, payload, source, status))
        self.post(child.id, to, no, data, shard.append(data))


def _decoded(sender: int, messages: Sequence[bytes]) -> list[r.Message]:
    """Those up to the first that is none: its sender will send it again."""
    found: list[r.Message] = []
    for data in messages:
        try:
            found.append(r.decode_message(data))
        except msgspec.DecodeError as e:
            LOG.error("a message from shard %s is dropped: %s", sender, e)
            break
    return found


def _is_meant(record: r.Send, message: r.Message, run: Run) -> bool:
    if not record.child:
        return True
    parent = run.journal.start.parent
    return parent is not None and parent.id == message.id and parent.run == (record.child_by or record.run) and parent.op == record.child


def _is_child_of(entry: Run | Found, parent: r.Parent) -> bool:
    found = entry.journal.start.parent if isinstance(entry, Run) else entry.parent
    return found is not None and (found.id, found.run, found.op) == (parent.id, parent.run, parent.op)


def _parent_id(record: r.Record) -> str:
    parent = record.parent if isinstance(record, (r.Done, r.Refused)) else None
    return parent.id if parent is not None else ""
