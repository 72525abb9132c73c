# The ring: a byte queue from one writer to one reader in shared memory.
#
# What is guaranteed. The reader gets the writer's frames whole, once and in order, or notices that they were damaged. A writer
# killed at any instruction leaves no part of a frame to be read. Neither side ever blocks, and neither trusts a word that the
# other can write: each keeps its own position to itself, reads the other's once and checks it.
#
# Memory order, x86-64. Loads are not reordered with loads, nor stores with stores, and a store becomes visible to all others at
# once (total store order). A word is read and written by `memoryview.cast("Q")[i]`, one aligned 8-byte move each: it never
# tears. `struct.pack_into` clears its target first, so it does.
#
#   Publishing. The writer stores the piece, then tail. Both are stores, so who sees the new tail sees the piece. This holds for
#   memcpy too: the string instructions may store in any order within themselves, but not past a later store, and the C library
#   fences the non-temporal stores that it uses for large copies.
#   Taking. The reader loads tail, copies the piece, then stores head. Loads stay before later stores, so the writer, which
#   loads head before it overwrites, cannot overwrite what is still being copied.
#   Sleeping. The reader stores "I wait", then looks at tail a last time; the writer stores tail, then looks at "I wait". Here
#   each side stores one word and loads another, which is the one order that x86-64 does not keep: both loads may come before
#   both stores, and both sides then see nothing. So both put a full fence between: acquiring an uncontended lock is a locked
#   instruction, hence a fence. The same holds mirrored for a writer that waits for room. (Measured with the two moves next to
#   each other: 64 lost wake-ups in 300,000 rounds without the fence, none with it. Here method calls lie between them, and a
#   million rounds without the fence lost none; it is the argument that asks for it, not the test.)
#
# The interpreter's own instructions cannot be reordered by a compiler across these moves: each is a call through a table.
# Other processors order less, so the package refuses them (region.require_platform).
#
# Waits have numbers. A side that goes to sleep stores a number that it has not used before, and zero when it is awake; the
# other rings once for each number it sees. So every word has one writer, nobody clears a flag under the owner's hands, and a
# burst at a sleeper costs one system call.
"""One ring: `RingWriter` and `RingReader` over a Region."""
from __future__ import annotations

import threading

from fusee_mp.bounds import FRAME_BYTES_MAX
from fusee_mp.checksum import crc32c
from fusee_mp.errors import ProtocolError
from fusee_mp.ring import layout
from fusee_mp.ring.region import Region

_HEADER, _RING = layout.HEADER_BYTES, layout.WORD_RING
_HEAD, _TAIL = layout.WORD_HEAD, layout.WORD_TAIL


class RingWriter:
    """The writing end. Exactly one per region, and it was never written before."""

    __slots__ = ("_capacity", "_fence", "_head", "_memory", "_rung", "_tail", "_waits", "_words")

    def __init__(self, region: Region) -> None:
        self._memory, self._words, self._capacity = region.memory, region.words, region.capacity
        self._fence = threading.Lock()
        self._head = self._tail = self._waits = self._rung = 0
        if self._words[_TAIL] or self._words[_HEAD]:
            raise ProtocolError("expected a ring that nobody has written to, found a used one: a restarted process needs new rings")

    def try_write(self, piece: bytes | memoryview, more: bool = False) -> bool:
        """Publish a piece of at most `layout.piece_max` bytes, or return False for lack of room.

        `more` says that the frame goes on in the next piece; this one has exactly that length. Afterwards ask `must_ring`.
        Raises ProtocolError when the reader's position makes no sense.
        """
        length, tail, capacity = len(piece), self._tail, self._capacity
        after = tail + ((length + 15) & ~7)
        if after - self._head > capacity and after - self._load_head() > capacity:
            return False
        low = length | layout.MORE if more else length
        at = tail & (capacity - 1)
        self._copy_in((at + 8) & (capacity - 1), piece, length)
        self._words[_RING + (at >> 3)] = low | crc32c(piece, (tail + 8 & 0xFFFF_FFFF) ^ low) << 32
        self._words[_TAIL] = self._tail = after
        return True

    def must_ring(self) -> bool:
        """Whether the reader sleeps, and has not been rung for this sleep. Call after writing; True means: ring now."""
        self._fence.acquire()
        self._fence.release()
        number = self._words[layout.WORD_READER_WAITS]
        if number == 0 or number == self._rung:
            return False
        self._rung = number
        return True

    def wait_for_room(self, length: int) -> bool:
        """Ask for a ring when room has been made. Returns False, and does not wait, if a piece of this length fits by now."""
        self._waits += 1
        self._words[layout.WORD_WRITER_WAITS] = self._waits
        self._fence.acquire()
        self._fence.release()
        if self._tail + layout.piece_bytes(length) - self._load_head() > self._capacity:
            return True
        self._words[layout.WORD_WRITER_WAITS] = 0
        return False

    def awake(self) -> None:
        """The writer no longer waits for room."""
        self._words[layout.WORD_WRITER_WAITS] = 0

    def set_state(self, state: int) -> None:
        """Tell the peer why this end closes; see layout.STATE_*."""
        self._words[layout.WORD_STATE] = state

    def _copy_in(self, at: int, piece: bytes | memoryview, length: int) -> None:
        start = _HEADER + at
        room = self._capacity - at
        if length <= room:
            self._memory[start:start + length] = piece
            return
        view = memoryview(piece)
        self._memory[start:start + room] = view[:room]
        self._memory[_HEADER:_HEADER + length - room] = view[room:]

    def _load_head(self) -> int:
        head = self._words[_HEAD]
        if not self._head <= head <= self._tail:
            raise _damaged(f"expected the reader between bytes {self._head} and {self._tail}, found it at {head}")
        self._head = head
        return head


class RingReader:
    """The reading end. Exactly one per region, and nobody has read from it before. Without `joins` a frame in pieces is damage.

    What `read` has before a frame is whole are full pieces: few in number, and together no more than a frame.
    """

    __slots__ = (
        "_capacity", "_fence", "_head", "_memory", "_parts", "_parts_bytes", "_piece_max", "_rung", "_tail", "_unfinished", "_waits",
        "_words",
    )

    def __init__(self, region: Region, joins: bool = True) -> None:
        self._memory, self._words, self._capacity = region.memory, region.words, region.capacity
        self._fence = threading.Lock()
        self._head = self._tail = self._waits = self._rung = self._parts_bytes = 0
        self._parts: list[bytes] = []
        self._piece_max = layout.piece_max(region.capacity)
        self._unfinished = self._piece_max | layout.MORE if joins else 0
        if self._words[_HEAD]:
            raise ProtocolError("expected a ring that nobody has read from, found a used one: a restarted process needs new rings")

    def read(self) -> bytes | None:
        """The next frame, or None while there is no whole one. Its room is the writer's again after `release`.

        Raises ProtocolError for anything that an honest writer cannot have written; read nothing more then.
        """
        while self._head != self._tail or self._head != self._load_tail():
            piece, more = self._take_piece()
            if not more and not self._parts:
                return piece
            frame = self._join(piece, more)
            if frame is not None:
                return frame
        return None

    def release(self) -> bool:
        """Give what was read back to the writer. True means that it waits for room and is to be rung now."""
        self._words[_HEAD] = self._head
        self._fence.acquire()
        self._fence.release()
        number = self._words[layout.WORD_WRITER_WAITS]
        if number == 0 or number == self._rung:
            return False
        self._rung = number
        return True

    def wait_for_data(self) -> bool:
        """Ask for a ring when something has been written. Returns False, and does not wait, if something is there by now."""
        self._waits += 1
        self._words[layout.WORD_READER_WAITS] = self._waits
        self._fence.acquire()
        self._fence.release()
        if self._head == self._load_tail():
            return True
        self._words[layout.WORD_READER_WAITS] = 0
        return False

    def awake(self) -> None:
        """The reader no longer waits for data."""
        self._words[layout.WORD_READER_WAITS] = 0

    def state(self) -> int:
        """What the writer last said of its end; see layout.STATE_*."""
        return self._words[layout.WORD_STATE]

    def _take_piece(self) -> tuple[bytes, int]:
        head, capacity = self._head, self._capacity
        at = head & (capacity - 1)
        word = self._words[_RING + (at >> 3)]  # read once: the writer could change it between two looks
        low = word & 0xFFFF_FFFF
        length = low & layout.LENGTH_MASK
        if low > self._piece_max and low != self._unfinished:
            raise _damaged(self._unfitting(head, low))
        after = head + ((length + 15) & ~7)
        if after > self._tail:
            raise _damaged(f"a piece of {length} bytes at byte {head} reaches past the end at {self._tail}")
        piece = self._copy_out((at + 8) & (capacity - 1), length)
        if crc32c(piece, (head + 8 & 0xFFFF_FFFF) ^ low) != word >> 32:
            raise _damaged(f"a piece of {length} bytes at byte {head} does not match its CRC-32C {word >> 32:08x}")
        self._head = after
        return piece, low & layout.MORE

    def _copy_out(self, at: int, length: int) -> bytes:
        start = _HEADER + at
        room = self._capacity - at
        if length <= room:
            return self._memory[start:start + length]
        return self._memory[start:start + room] + self._memory[_HEADER:_HEADER + length - room]

    def _unfitting(self, head: int, low: int) -> str:
        found = f"a piece of {low & layout.LENGTH_MASK} bytes at byte {head}"
        if low & layout.MORE and self._unfinished:
            return f"{found} is not the last of its frame, where only one of {self._piece_max} bytes may be that"
        return f"{found} is not the whole of its frame" if low & layout.MORE else f"{found} is longer than {self._piece_max} bytes"

    def _join(self, piece: bytes, more: int) -> bytes | None:
        self._parts.append(piece)
        self._parts_bytes += len(piece)
        if self._parts_bytes > FRAME_BYTES_MAX:
            raise _damaged(f"a frame has at most {FRAME_BYTES_MAX} bytes, found one of {self._parts_bytes} and more")
        if more:
            return None
        frame = b"".join(self._parts)
        self._parts.clear()
        self._parts_bytes = 0
        return frame

    def _load_tail(self) -> int:
        tail = self._words[_TAIL]
        if not self._tail <= tail <= self._head + self._capacity or tail & 7:
            raise _damaged(f"expected the writer between bytes {self._tail} and {self._head + self._capacity}, found it at {tail}")
        self._tail = tail
        return tail


def _damaged(what: str) -> ProtocolError:
    return ProtocolError(f"a ring was damaged by the process at its other end: {what}")
