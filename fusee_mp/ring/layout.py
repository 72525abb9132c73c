# The bytes of a region: one page of header, then the ring.
#
#   word  byte  written by  field
#      0     0  creator     magic
#      1     8  creator     version of this layout
#      2    16  creator     generation: tells a restarted process's ring from the one before
#      3    24  creator     capacity: bytes of the ring, a power of two
#     16   128  writer      tail: bytes ever written
#     32   256  reader      head: bytes ever read
#     48   384  writer      number of the writer's present wait for room, 0 while it does not wait
#     64   512  reader      number of the reader's present wait for data, 0 while it does not wait
#     80   640  writer      state of the writer's end: 0 open, 1 closed, 2 closed because of what it was sent
#        4096              the ring
#
# Words are native 8-byte numbers, each with one writer, and 128 bytes apart: processors fetch cache lines in pairs.
#
# A piece in the ring begins at a multiple of 8: one word, the low half its length (bit 31: more pieces of this frame follow, and this
# one is as long as a piece may be), the high half a CRC-32C; then its bytes, which may wrap, padded to a multiple of 8. The CRC starts
# from the position of those bytes (counted from the first ever written) xor the low half: a whole piece of an earlier lap, left where a
# new one should be, does not pass, nor do the zeroes of a new ring.
"""Offsets and constants of a region."""
from __future__ import annotations

from fusee_mp.bounds import FRAME_BYTES_MAX, RING_BYTES_MAX, RING_BYTES_MIN

MAGIC = int.from_bytes(b"fmp-ring", "little")
VERSION = 1
HEADER_BYTES = 4096

WORD_MAGIC = 0
WORD_VERSION = 1
WORD_GENERATION = 2
WORD_CAPACITY = 3
WORD_TAIL = 16
WORD_HEAD = 32
WORD_WRITER_WAITS = 48
WORD_READER_WAITS = 64
WORD_STATE = 80
WORD_RING = HEADER_BYTES // 8

STATE_OPEN = 0
STATE_CLOSED = 1
STATE_REFUSED = 2

MORE = 1 << 31
LENGTH_MASK = MORE - 1
PIECE_HEADER_BYTES = 8

assert FRAME_BYTES_MAX <= LENGTH_MASK
assert WORD_STATE < WORD_RING and RING_BYTES_MIN % 8 == 0 and RING_BYTES_MAX < 1 << 32


def piece_bytes(length: int) -> int:
    """What a piece of `length` bytes takes in the ring."""
    return (length + PIECE_HEADER_BYTES + 7) & ~7


def piece_max(capacity: int) -> int:
    """The longest piece: a quarter of the ring, so that the reader empties one while the writer fills the next; never over a frame."""
    return min(capacity // 4 - PIECE_HEADER_BYTES, FRAME_BYTES_MAX)
