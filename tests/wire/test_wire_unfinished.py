"""Frames that are begun and not finished hold a bounded amount of memory."""
from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fusee_mp.wire.frames import Frame, FrameDecoder, encode_frame
from fusee_mp.wire.stream import Stream
from fusee_mp.wire.unfinished import GAVE_WAY, Unfinished

BOUND = 1_000


class Peer(Stream):
    """A connection without a transport, that is fed by hand."""

    def __init__(self, unfinished: Unfinished) -> None:
        super().__init__()
        self.unfinished = unfinished
        self.is_open = True
        self.said = ""

    def received(self, frame: Frame) -> None:
        pass

    def close(self, reason: str) -> None:
        self.said, self.is_open = reason, False

    def feed(self, data: bytes) -> None:
        if self.is_open:
            self._decoder.feed(data)
            self.unfinished.note(self, self.held)

    @property
    def held(self) -> int:
        return self._decoder.held_bytes


FRAME = encode_frame(1, bytes(300))


def test_beyond_the_bound_the_one_that_stands_still_gives_way_and_a_slow_one_does_not() -> None:
    unfinished = Unfinished(BOUND)
    slow, still, busy, *others = (Peer(unfinished) for _ in range(6))
    slow.feed(FRAME[:100])
    busy.feed(FRAME[:100])
    still.feed(FRAME[:300])
    for at in range(100, 110):
        slow.feed(FRAME[at:at + 1])
        busy.feed(FRAME[100:] + FRAME[:100])  # always in the midst of one, and each is another
    assert unfinished.bytes == 510
    for other in others[:2]:
        other.feed(FRAME[:300])
    assert still.said == GAVE_WAY and all(peer.is_open for peer in (busy, slow, *others)) and unfinished.bytes == 810
    for other in others[:2]:
        other.feed(FRAME[300:])
    unfinished.note(busy, 0)
    assert unfinished.bytes == 110


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 700)), max_size=60))
def test_however_frames_trickle_the_sum_is_that_of_the_decoders_and_within_the_bound(feeds: list[tuple[int, int]]) -> None:
    unfinished = Unfinished(BOUND)
    peers = [Peer(unfinished) for _ in range(5)]
    streams = [FRAME * 200 for _ in peers]
    for who, count in feeds:
        peers[who].feed(streams[who][:count])
        streams[who] = streams[who][count:]
        assert unfinished.bytes == sum(peer.held for peer in peers if peer.is_open) <= BOUND


def test_a_decoder_that_is_cleared_holds_nothing() -> None:
    decoder = FrameDecoder()
    decoder.feed(FRAME[:100])
    assert decoder.held_bytes == 100
    decoder.clear()
    assert decoder.held_bytes == 0
