"""The keeper's loop: one thread that waits for its owner, folds when that is due, and answers.

1. Folding is due 200 ms after the last commit, or at once when a question waits for records that are published.
2. A question is answered from a state that holds its `min_lsn`, or refused with the reason: its deadline, or a halted tail.
3. Between two slices of a long backlog the socket is looked at, so a question never waits for more than one slice.
"""
from __future__ import annotations

import os
import selectors
import socket
import threading
from collections import deque
from time import monotonic
from typing import Any, Final

import msgspec

from fusee_mp.errors import FuseeError, Rejected, Unavailable
from fusee_mp.heap import give_back
from fusee_mp.keeper import protocol as p
from fusee_mp.keeper.slow import Question, SlowReads, fault_of
from fusee_mp.keeper.tail import Tail
from fusee_mp.store.reads import question

FOLD_S: Final = 0.2
IDLE_S: Final = 3.0
READ_BYTES: Final = 1 << 18
# With more unsent than this no further question is taken, until the owner has read.
OUT_BYTES_MAX: Final = 64 << 20


class Process:
    """Serves one owner until it closes or dies. The socket stays the caller's to close."""

    def __init__(self, owner: socket.socket, tail: Tail, checkpoint_s: float) -> None:
        self._owner = owner
        self._tail, self._store = tail, tail.store
        self._checkpoint_s = checkpoint_s
        self._frames = p.Frames(p.QUESTION_BYTES_MAX)
        self._waiting: list[tuple[int, Question]] = []
        self._checkpoints: list[tuple[int, Question]] = []
        self._answers: deque[tuple[Question, Any]] = deque()
        self._slow = {lane: SlowReads(lane, self._store.path, self._from_thread) for lane in ("one", "many")}
        self._wake_read, self._wake_write = os.pipe()
        self._out = bytearray()
        self._lock = threading.Lock()
        self._is_ending = False
        self._folded_at = self._checkpointed_at = monotonic()
        self._is_shrunk = False
        self._told_lsn = self._store.applied_lsn

    def run(self) -> None:
        """Serve until the owner is gone or says so."""
        self._owner.setblocking(False)
        os.set_blocking(self._wake_read, False)
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(self._owner, selectors.EVENT_READ, self._on_owner)
                selector.register(self._wake_read, selectors.EVENT_READ, self._on_wake)
                while not self._is_ending:
                    self._turn(selector)
        finally:
            for slow in self._slow.values():
                slow.close()
            with self._lock:
                self._is_ending = True
                os.close(self._wake_read)
                os.close(self._wake_write)

    def _turn(self, selector: selectors.BaseSelector) -> None:
        wanted = (selectors.EVENT_WRITE if self._out else 0) | (selectors.EVENT_READ if len(self._out) < OUT_BYTES_MAX else 0)
        selector.modify(self._owner, wanted, self._on_owner)
        for key, events in selector.select(max(0.0, self._next_at() - monotonic())):
            key.data(events)
        if not self._is_ending:
            self._work(monotonic())

    # When to wake if nobody says anything.
    def _next_at(self) -> float:
        times = [entry[1].deadline for entry in (*self._waiting, *self._checkpoints)]
        if self._tail.is_behind:
            times.append(max(self._tail.retry_at, 0.0 if self._is_urgent() else self._folded_at + FOLD_S))
        if self._store.checkpoint_lsn < self._store.applied_lsn:
            times.append(max(self._tail.retry_at, self._checkpointed_at + self._checkpoint_s))
        if self._checkpoints:
            times.append(self._tail.retry_at)
        if not self._is_shrunk:
            times.append(self._folded_at + IDLE_S)
        return min(times, default=monotonic() + 60)

    def _is_urgent(self) -> bool:
        through = self._tail.through_lsn
        return bool(self._checkpoints) or any(min_lsn <= through for min_lsn, _ in self._waiting)

    def _work(self, now: float) -> None:
        self._fold(now)
        self._answer_waiting(now)
        self._checkpoint(now)
        if not self._is_shrunk and now >= self._folded_at + IDLE_S:
            self._store.shrink()
            give_back()
            self._is_shrunk = True

    def _fold(self, now: float) -> None:
        if not self._tail.is_behind or not (self._is_urgent() or now >= self._folded_at + FOLD_S):
            return
        self._tail.step(now)
        # With more to come, the next slice is due at once.
        self._folded_at = now - FOLD_S if self._tail.is_behind and now >= self._tail.retry_at else now
        self._is_shrunk = False
        self._tell_applied()

    def _tell_applied(self) -> None:
        if self._store.applied_lsn != self._told_lsn:
            self._told_lsn = self._store.applied_lsn
            self._send(p.Applied(self._told_lsn))

    def _answer_waiting(self, now: float) -> None:
        waiting, self._waiting = self._waiting, []
        for min_lsn, asked in waiting:
            if min_lsn <= self._store.applied_lsn:
                self._answer(asked)
            elif (refusal := self._refusal(min_lsn, asked, now)) is not None:
                self._reply(asked, refusal)
            else:
                self._waiting.append((min_lsn, asked))

    def _refusal(self, min_lsn: int, asked: Question, now: float) -> FuseeError | None:
        tail = self._tail
        if tail.is_halted:
            return Unavailable(f"the store cannot reach LSN {min_lsn}: {tail.reason}", trouble=tail.trouble)
        if now < asked.deadline:
            return None
        cause = tail.reason or f"the log is known to be durable to {tail.through_lsn}"
        applied = self._store.applied_lsn
        return Unavailable(f'"{asked.method}" needs LSN {min_lsn} and its time is up at {applied}: {cause}', trouble=tail.trouble)

    def _checkpoint(self, now: float) -> None:
        is_due = self._store.checkpoint_lsn < self._store.applied_lsn and now >= self._checkpointed_at + self._checkpoint_s
        is_asked = any(min_lsn <= self._store.applied_lsn for min_lsn, _ in self._checkpoints)
        if (is_due or is_asked) and now >= self._tail.retry_at:
            lsn = self._tail.checkpoint(now)
            self._checkpointed_at = now
            if lsn is not None:
                self._send(p.Checkpointed(lsn))
        self._answer_checkpoints(now)

    def _answer_checkpoints(self, now: float) -> None:
        checkpoints, self._checkpoints = self._checkpoints, []
        for min_lsn, asked in checkpoints:
            if min_lsn <= self._store.checkpoint_lsn:
                self._reply(asked, self._store.checkpoint_lsn)
            elif (refusal := self._refusal(min_lsn, asked, now)) is not None:
                self._reply(asked, refusal)
            else:
                self._checkpoints.append((min_lsn, asked))

    # What comes from the owner.

    def _on_owner(self, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self._flush()
        if not events & selectors.EVENT_READ:
            return
        try:
            data = self._owner.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._is_ending = True
            return
        for body in self._frames.feed(data):
            self._take(body)

    def _take(self, body: bytes) -> None:
        now = monotonic()
        match message := p.decode_for_keeper(body):
            case p.Publish(lsn):
                self._tail.through_lsn = max(self._tail.through_lsn, lsn)
            case p.Ask():
                self._ask(message, now + message.timeout_ms / 1000)
            case p.Checkpoint(id, timeout_ms):
                asked = Question(id, "checkpoint", [], now + timeout_ms / 1000)
                self._checkpoints.append((self._tail.through_lsn, asked))
            case p.Close():
                self._is_ending = True

    def _ask(self, ask: p.Ask, deadline: float) -> None:
        asked = Question(ask.id, ask.method, [], deadline, ask.asker)
        try:
            asked = asked._replace(args=msgspec.msgpack.decode(ask.args, type=list[Any]))
            question(ask.method)
        except (msgspec.MsgspecError, RecursionError) as e:
            self._reply(asked, Rejected(f'the arguments of read "{ask.method}" are malformed: {e}'))
        except FuseeError as e:
            self._reply(asked, e)
        else:
            self._waiting.append((ask.min_lsn, asked))

    # What goes to the owner.

    def _answer(self, asked: Question) -> None:
        lane = self._slow.get(question(asked.method).lane)
        if lane is not None:
            lane.ask(asked)
            return
        try:
            value: Any = self._store.read(asked.method, asked.args)
        except Exception as e:
            value = fault_of(e, asked.method, self._store.path)
        self._reply(asked, value)

    def _from_thread(self, asked: Question, value: Any) -> None:
        with self._lock:
            self._answers.append((asked, value))
            if not self._is_ending:
                os.write(self._wake_write, b"\0")

    def _on_wake(self, events: int) -> None:
        os.read(self._wake_read, 4096)
        while self._answers:
            self._reply(*self._answers.popleft())

    def _reply(self, asked: Question, value: Any) -> None:
        if isinstance(value, FuseeError):
            self._send(p.Failure(asked.id, value.code, value.message, value.fields))
        else:
            self._send(p.Answer(asked.id, p.encode_value(value)))

    def report(self, kind: str, reason: str) -> None:
        self._send(p.Trouble(kind, reason))

    def _send(self, message: p.ToOwner) -> None:
        self._out += p.pack(message)
        self._flush()

    def _flush(self) -> None:
        try:
            sent = self._owner.send(self._out) if self._out else 0
            del self._out[:sent]
        except BlockingIOError:
            pass
        except OSError:
            self._is_ending = True
