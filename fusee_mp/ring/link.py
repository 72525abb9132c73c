# Links: two processes of one host that send each other frames.
#
# A link is two rings (one each way) and a life line: two connected Unix sockets, one for each side. A byte over it wakes the other side
# (see doorbell.py), and nothing else is sent. The kernel closes a killed process's end, so the other side notices at once, whoever
# started whom. That holds only while nobody else keeps a copy of an end: pass the descriptors on and close yours, and let no child
# inherit them (all are close-on-exec).
#
# While a side has frames to handle it asks for no ring, so a busy pair makes no system call. With nothing left to handle it
# looks for SPIN_TURNS more turns of its event loop, or for as long as its owner keeps the loop awake, then asks to be rung and sleeps; an
# idle pair costs nothing.
#
# Rule 1: nothing is dropped while the link is open. What does not fit the ring waits in memory, in order, until the reader makes room.
# Rule 2: what a dead peer wrote whole is handed over before its death is.
# Rule 3: `on_closed` is called once, last, from the event loop and never from within `send`; after `close` it is not called.
# Rule 4: whatever the peer writes into the shared memory, and whatever it does with its descriptors, ends the link at worst, with a reason.
"""`Link`: one end of a duplex pair on an asyncio loop. `pair` makes the descriptors of both ends."""
from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import ClassVar

from fusee_mp.bounds import FRAME_BYTES_MAX, RING_BYTES_DEFAULT, RING_BYTES_MAX, RING_OFFERED_BYTES_MAX
from fusee_mp.errors import ProtocolError, Rejected, Unavailable
from fusee_mp.ring import doorbell, layout, region
from fusee_mp.ring.doorbell import Doorbell
from fusee_mp.ring.region import Region
from fusee_mp.ring.ring import RingReader, RingWriter

# Frames taken from the ring in one turn: the loop's other work waits no longer than they take.
FRAMES_PER_TURN = 128
# Empty turns before sleeping: a frame that comes within them (about 10 us with uvloop) costs its writer no system call and its
# reader no waking up, which on an idle processor takes longer than all of them together.
SPIN_TURNS = 10

PEER_CLOSED = "the peer closed the link"
_ENDED = {
    layout.STATE_OPEN: "the peer's process ended",
    layout.STATE_CLOSED: PEER_CLOSED,
    layout.STATE_REFUSED: "the peer closed the link, because what it read from this side was damaged",
}


@dataclass(frozen=True, slots=True)
class LinkFds:
    """The descriptors of one end. They belong to the holder, until a Link is made of them or they are closed."""

    generation: int
    receive_region: int
    send_region: int
    life: int

    COUNT: ClassVar[int] = 3

    def descriptors(self) -> tuple[int, ...]:
        """All of them, in the order that `of` takes."""
        return self.receive_region, self.send_region, self.life

    @classmethod
    def of(cls, generation: int, descriptors: Sequence[int]) -> LinkFds:
        """One end from the descriptors that came with a message. Raises ProtocolError, and closes nothing, if they are not COUNT."""
        if len(descriptors) != cls.COUNT:
            raise ProtocolError(f"expected {cls.COUNT} descriptors of a link, found {len(descriptors)}", found=len(descriptors))
        return cls(generation, *descriptors)

    def close(self) -> None:
        """Close all: for an end that was passed on, or is not wanted."""
        for descriptor in self.descriptors():
            os.close(descriptor)


def pair(generation: int, ring_bytes: int = RING_BYTES_DEFAULT) -> tuple[LinkFds, LinkFds]:
    """The descriptors of both ends of a new link. `generation` differs from that of every earlier link between the two."""
    with ExitStack() as undo:
        lives = doorbell.pair()
        for life in lives:
            undo.callback(os.close, life)
        one, other = regions(ring_bytes, generation)
        undo.pop_all()
    return LinkFds.of(generation, (*one, lives[0])), LinkFds.of(generation, (*other, lives[1]))


def regions(ring_bytes: int, generation: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The regions of both ends, in the order of LinkFds. Raises Unavailable, OSError."""
    with ExitStack() as undo:
        def kept(descriptor: int) -> int:
            undo.callback(os.close, descriptor)
            return descriptor

        rings = [kept(region.create(ring_bytes, generation)) for _ in range(2)]
        copies = [kept(os.dup(descriptor)) for descriptor in rings]
        undo.pop_all()
    return (rings[0], rings[1]), (copies[1], copies[0])


def _never() -> bool:
    return False


class Link:
    """One end of a link. Frames arrive whole, once and in order at `on_frame`; `on_closed` gets the reason why the link ended.

    Owns the descriptors from the call on: they are closed at the end of the link, also when the constructor raises
    (ProtocolError for descriptors that are no link of this generation). An exception of `on_frame` goes to the loop's
    exception handler, and the next frame is handed over all the same. `is_offered`: the link is with a process of somebody else, who may
    make this one hold little: its rings have at most RING_OFFERED_BYTES_MAX, and each of its frames is one piece.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, ends: LinkFds, on_frame: Callable[[bytes], None], on_closed: Callable[[str], None],
        is_offered: bool = False,
    ) -> None:
        self._loop, self._on_frame, self._on_closed = loop, on_frame, on_closed
        self._inbox: deque[bytes] = deque()
        self._queue: deque[tuple[bytes | memoryview, bool]] = deque()
        self._drain_waiters: list[asyncio.Future[None]] = []
        self._queued_bytes = self._idle_turns = 0
        self._is_scheduled = self._is_asleep = self._is_gone = self._waits_for_room = self._is_held_back = False
        self.is_awake: Callable[[], bool] = _never  # while it is true this side looks at the ring in each turn, and needs no bell
        self._fault: str | None = None
        self._gone_reason = ""
        self._closed: str | None = None
        with ExitStack() as closing:
            self._attach(ends, is_offered, closing)
            self._closing = closing.pop_all()
        self._schedule()

    @property
    def queued_bytes(self) -> int:
        """Bytes sent that did not yet fit the ring: stop producing when they grow."""
        return self._queued_bytes

    @property
    def is_closed(self) -> bool:
        return self._closed is not None

    def send(self, frame: bytes) -> None:
        """Hand a frame to the peer, at once or as soon as its ring has room. Never blocks and never drops.

        Raises Rejected for a frame over FRAME_BYTES_MAX, Unavailable when the link is closed.
        """
        if self._closed is not None:
            raise Unavailable(f"the link is closed: {self._closed}")
        if self._queue or len(frame) > self.piece_max:
            self._send_later(frame)
            return
        try:
            if not self._writer.try_write(frame):
                self._send_later(frame)
            elif self._writer.must_ring():
                self._bell.ring()
        except ProtocolError as error:
            self._set_fault(error)

    async def drained(self) -> None:
        """Return once nothing is queued in memory. Raises Unavailable if the link ends before."""
        if self._closed is not None:
            raise Unavailable(f"the link is closed: {self._closed}")
        if self._queue:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._drain_waiters.append(waiter)
            await waiter

    def hold_back(self) -> None:
        """Take nothing more from the ring until `go_on`: it fills, and what the peer sends then waits there."""
        self._is_held_back = True

    def go_on(self) -> None:
        self._is_held_back = False
        self._schedule()

    @property
    def life_line(self) -> int:
        """A descriptor that hangs up when the peer has ended the link, or is dead. The link closes it at its own end."""
        return self._bell.descriptor

    def peer_lost(self, reason: str) -> None:
        """Tell the link that the peer is gone, for an owner who learns it before the life line does (from waitpid, a control socket)."""
        self._is_gone = True
        self._gone_reason = self._gone_reason or reason
        self._schedule()

    def close(self) -> None:
        """Close this end now. What the peer was not given yet is lost: await `drained` first to avoid that. A second call does nothing."""
        self._shut("it was closed on this side", layout.STATE_CLOSED)

    # Making and ending

    def _attach(self, ends: LinkFds, is_offered: bool, closing: ExitStack) -> None:
        ring_bytes_max = RING_OFFERED_BYTES_MAX if is_offered else RING_BYTES_MAX
        self._bell = Doorbell(ends.life)
        closing.callback(self._bell.close)
        with ExitStack() as not_attached:
            not_attached.callback(os.close, ends.send_region)
            receiving = Region.attach(ends.receive_region, ends.generation, ring_bytes_max)
            closing.callback(receiving.detach)
            not_attached.pop_all()
        sending = Region.attach(ends.send_region, ends.generation, ring_bytes_max)
        closing.callback(sending.detach)
        self._reader, self._writer = RingReader(receiving, joins=not is_offered), RingWriter(sending)
        self.piece_max = layout.piece_max(sending.capacity)
        self._loop.add_reader(ends.life, self._on_bell)
        closing.callback(self._loop.remove_reader, ends.life)

    def _shut(self, reason: str, state: int) -> None:
        if self._closed is not None:
            return
        self._closed = reason
        self._writer.set_state(state)
        self._closing.close()
        self._inbox.clear()
        self._queue.clear()
        self._queued_bytes = 0
        for waiter in self._drain_waiters:
            if not waiter.done():
                waiter.set_exception(Unavailable(f"the link is closed: {reason}"))

    def _fail(self, reason: str, state: int) -> None:
        self._shut(reason, state)
        self._on_closed(reason)

    def _set_fault(self, error: ProtocolError) -> None:
        self._fault = self._fault or error.message
        self._schedule()

    # Waking

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._turn)

    def _on_bell(self) -> None:
        if not self._bell.clear():
            self._loop.remove_reader(self._bell.descriptor)
            self.peer_lost("")
        elif not self._is_scheduled:
            self._is_scheduled = True
            self._turn()

    # One turn

    def _turn(self) -> None:
        self._is_scheduled = False
        if self._closed is not None:
            return
        if self._is_asleep:
            self._is_asleep = False
            self._reader.awake()
        try:
            self._fetch()
            self._drain()
            self._dispatch()
        finally:
            self._rest()

    def _fetch(self) -> None:
        """Move frames out of the ring before any is handled, so that the writer has the room back while they are."""
        if self._fault is not None or self._is_held_back:
            return
        try:
            for _ in range(FRAMES_PER_TURN - len(self._inbox)):
                frame = self._reader.read()
                if frame is None:
                    break
                self._inbox.append(frame)
                self._idle_turns = 0
        except ProtocolError as error:
            self._set_fault(error)
        if self._reader.release():
            self._bell.ring()

    def _dispatch(self) -> None:
        while self._inbox and self._closed is None and not self._is_held_back:
            self._on_frame(self._inbox.popleft())

    def _rest(self) -> None:
        """Decide how to go on: with another turn, asleep until rung, or not at all."""
        if self._closed is not None:
            return
        if self._is_held_back:
            return
        if self._inbox:
            self._schedule()
        elif self._fault is not None:
            self._fail(self._fault, layout.STATE_REFUSED)
        elif (self._idle_turns < SPIN_TURNS or self.is_awake()) and not self._is_gone:
            self._idle_turns += 1
            self._schedule()
        else:
            self._sleep()

    def _sleep(self) -> None:
        try:
            self._is_asleep = self._reader.wait_for_data()
        except ProtocolError as error:
            self._set_fault(error)
            return
        if not self._is_asleep:
            self._schedule()
        elif self._is_gone:
            self._fail(self._gone_reason or _ENDED.get(self._reader.state(), _ENDED[layout.STATE_OPEN]), layout.STATE_CLOSED)

    # Sending

    def _send_later(self, frame: bytes) -> None:
        if len(frame) > FRAME_BYTES_MAX:
            raise Rejected(f"a frame has at most {FRAME_BYTES_MAX} bytes, this one has {len(frame)}: send less at once", found=len(frame))
        self._queue.extend(_pieces(frame, self.piece_max))
        self._queued_bytes += len(frame)
        if not self._waits_for_room:
            self._drain()

    def _drain(self) -> None:
        if self._waits_for_room:
            self._waits_for_room = False
            self._writer.awake()
        if not self._queue or self._fault is not None:
            return
        try:
            self._write_queued()
            if self._writer.must_ring():
                self._bell.ring()
        except ProtocolError as error:
            self._set_fault(error)
        if not self._queue:
            self._wake_drain_waiters()

    def _write_queued(self) -> None:
        while self._queue:
            piece, more = self._queue[0]
            if self._writer.try_write(piece, more):
                self._queue.popleft()
                self._queued_bytes -= len(piece)
            elif self._writer.wait_for_room(len(piece)):
                self._waits_for_room = True
                return

    def _wake_drain_waiters(self) -> None:
        for waiter in self._drain_waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._drain_waiters.clear()


def _pieces(frame: bytes, longest: int) -> Iterator[tuple[bytes | memoryview, bool]]:
    if len(frame) <= longest:
        yield frame, False
        return
    view = memoryview(frame)
    for at in range(0, len(frame), longest):
        yield view[at:at + longest], at + longest < len(frame)
