# One ring within one process: what is written comes out, whatever the sizes; what is damaged does not.
from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fusee_mp.bounds import FRAME_BYTES_MAX
from fusee_mp.errors import ProtocolError
from fusee_mp.ring import layout, region
from fusee_mp.ring.region import Region
from fusee_mp.ring.ring import RingReader, RingWriter

CAPACITY = 4096
LONGEST = layout.piece_max(CAPACITY)


@contextmanager
def new_ring(capacity: int = CAPACITY) -> Iterator[tuple[Region, RingWriter, RingReader]]:
    attached = Region.attach(region.create(capacity, 1), 1)
    try:
        yield attached, RingWriter(attached), RingReader(attached)
    finally:
        attached.detach()


class RingMachine(RuleBasedStateMachine):
    """The ring against a deque: order, content, free room and wake-ups."""

    def __init__(self) -> None:
        super().__init__()
        self.region = Region.attach(region.create(CAPACITY, 1), 1)
        self.writer, self.reader = RingWriter(self.region), RingReader(self.region)
        self.model: deque[bytes] = deque()
        self.unreleased = self.number = 0
        self.reader_sleeps = self.writer_sleeps = False

    def used(self) -> int:
        return self.unreleased + sum(layout.piece_bytes(len(frame)) for frame in self.model)

    @rule(length=st.integers(0, LONGEST))
    def write(self, length: int) -> None:
        self.number += 1
        frame = (self.number.to_bytes(4, "little") * (length // 4 + 1))[:length]
        fits = self.used() + layout.piece_bytes(length) <= CAPACITY
        assert self.writer.try_write(frame) == fits
        if fits:
            self.model.append(frame)
            assert self.writer.must_ring() == self.reader_sleeps
            self.reader_sleeps = False

    @rule()
    def read(self) -> None:
        frame = self.reader.read()
        assert frame == (self.model.popleft() if self.model else None)
        if frame is not None:
            self.unreleased += layout.piece_bytes(len(frame))

    @rule()
    def release(self) -> None:
        assert self.reader.release() == self.writer_sleeps
        self.writer_sleeps = False
        self.unreleased = 0

    @precondition(lambda self: not self.reader_sleeps)
    @rule()
    def reader_waits(self) -> None:
        self.reader_sleeps = self.reader.wait_for_data()
        assert self.reader_sleeps == (not self.model)

    @precondition(lambda self: not self.writer_sleeps)
    @rule(length=st.integers(0, LONGEST))
    def writer_waits(self, length: int) -> None:
        self.writer_sleeps = self.writer.wait_for_room(length)
        assert self.writer_sleeps == (self.used() + layout.piece_bytes(length) > CAPACITY)

    @invariant()
    def nothing_is_written_past_the_region(self) -> None:
        assert self.region.words[layout.WORD_TAIL] - self.region.words[layout.WORD_HEAD] <= CAPACITY

    def teardown(self) -> None:
        self.region.detach()


RingMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=80, deadline=None)
test_a_ring_behaves_as_a_bounded_queue_that_rings_each_sleeper_once = RingMachine.TestCase


def test_every_length_passes_at_every_position_of_the_wrap() -> None:
    with new_ring() as (_, writer, reader):
        for number in range(3 * LONGEST):
            frame = bytes([number & 255]) * (number % (LONGEST + 1))
            assert writer.try_write(frame) and reader.read() == frame
            reader.release()


def test_a_frame_in_pieces_arrives_whole_and_only_when_its_last_piece_is_there() -> None:
    with new_ring() as (_, writer, reader):
        for piece in (b"1" * LONGEST, b"2" * LONGEST):
            assert writer.try_write(piece, more=True) and reader.read() is None
        assert writer.try_write(b"frame") and reader.read() == b"1" * LONGEST + b"2" * LONGEST + b"frame"


@pytest.mark.parametrize("length", [0, 1, LONGEST - 1])
def test_a_piece_that_more_follow_is_a_full_one_so_that_a_ring_holds_few_of_a_frame(length: int) -> None:
    with new_ring() as (_, writer, reader):
        assert writer.try_write(bytes(length), more=True)
        with pytest.raises(ProtocolError, match=f"a piece of {length} bytes at byte 0 is not the last of its frame"):
            reader.read()


def test_a_piece_longer_than_a_quarter_of_the_ring_is_damage() -> None:
    with new_ring() as (_, writer, reader):
        assert writer.try_write(bytes(LONGEST + 1))
        with pytest.raises(ProtocolError, match=f"is longer than {LONGEST} bytes"):
            reader.read()


def test_a_reader_that_joins_nothing_takes_no_part_of_a_frame() -> None:
    attached = Region.attach(region.create(CAPACITY, 1), 1)
    writer, reader = RingWriter(attached), RingReader(attached, joins=False)
    assert writer.try_write(bytes(LONGEST)) and reader.read() == bytes(LONGEST)
    assert writer.try_write(bytes(LONGEST), more=True)
    with pytest.raises(ProtocolError, match="is not the whole of its frame"):
        reader.read()
    attached.detach()


def test_pieces_without_end_are_refused_at_the_bound() -> None:
    with new_ring(1 << 20) as (_, writer, reader), pytest.raises(ProtocolError, match=f"at most {FRAME_BYTES_MAX} bytes"):
        piece = bytes(layout.piece_max(1 << 20))
        for _ in range(FRAME_BYTES_MAX // len(piece) + 1):
            assert writer.try_write(piece, more=True) and reader.read() is None
            reader.release()


def test_a_piece_written_and_not_published_is_not_there() -> None:
    with new_ring() as (attached, writer, reader):
        assert writer.try_write(b"published")
        tail = attached.words[layout.WORD_TAIL]
        assert writer.try_write(b"not yet")
        attached.words[layout.WORD_TAIL] = tail
        assert reader.read() == b"published" and reader.read() is None


def test_a_tail_that_moves_over_the_zeroes_of_a_new_ring_is_damage() -> None:
    with new_ring() as (attached, _, reader):
        attached.words[layout.WORD_TAIL] = 8
        with pytest.raises(ProtocolError, match="does not match its CRC-32C"):
            reader.read()


def test_a_piece_left_from_an_earlier_lap_is_damage() -> None:
    with new_ring() as (attached, writer, reader):
        piece = bytes(CAPACITY // 8 - 8)
        for _ in range(8):
            assert writer.try_write(piece) and reader.read() == piece
            reader.release()
        attached.words[layout.WORD_TAIL] += layout.piece_bytes(len(piece))
        with pytest.raises(ProtocolError, match="does not match its CRC-32C"):
            reader.read()


@settings(max_examples=300, deadline=None)
@given(st.lists(st.binary(max_size=60), min_size=1, max_size=6), st.integers(0), st.integers(0, 63))
def test_a_flipped_bit_in_the_ring_lets_no_altered_frame_through(frames: list[bytes], word: int, bit: int) -> None:
    with new_ring() as (attached, writer, reader):
        assert all(writer.try_write(frame) for frame in frames)
        padded = attached.words[layout.WORD_TAIL] // 8
        attached.words[layout.WORD_RING + word % padded] ^= 1 << bit
        found: list[bytes | None] = []
        try:
            found = [reader.read() for _ in frames]
        except ProtocolError:
            return
        # No error: the bit lay in padding.
        assert found == frames


@pytest.mark.parametrize("tail", [1, 7, CAPACITY + 8, 2**64 - 8, 2**63])
def test_a_tail_that_makes_no_sense_is_damage_and_never_a_crash(tail: int) -> None:
    with new_ring() as (attached, _, reader):
        attached.words[layout.WORD_TAIL] = tail
        with pytest.raises(ProtocolError, match="expected the writer between"):
            reader.read()


def test_a_tail_that_goes_back_is_damage() -> None:
    with new_ring() as (attached, writer, reader):
        assert writer.try_write(b"x") and reader.read() == b"x"
        attached.words[layout.WORD_TAIL] = 0
        with pytest.raises(ProtocolError, match="expected the writer between"):
            reader.read()


@pytest.mark.parametrize("head", [2**64 - 8, CAPACITY * 2])
def test_a_head_that_makes_no_sense_is_damage_and_nothing_is_overwritten(head: int) -> None:
    with new_ring() as (attached, writer, _):
        while writer.try_write(bytes(LONGEST)):
            pass
        kept = bytes(attached.memory)[layout.HEADER_BYTES:]
        attached.words[layout.WORD_HEAD] = head
        with pytest.raises(ProtocolError, match="expected the reader between"):
            writer.try_write(b"\xff" * LONGEST)
        assert bytes(attached.memory)[layout.HEADER_BYTES:] == kept


@settings(max_examples=300, deadline=None)
@given(st.binary(min_size=64, max_size=200), st.integers(0, CAPACITY))
def test_garbage_in_the_ring_is_a_protocol_error_or_nothing(data: bytes, tail: int) -> None:
    with new_ring() as (attached, _, reader):
        attached.memory[layout.HEADER_BYTES:layout.HEADER_BYTES + len(data)] = data
        attached.words[layout.WORD_TAIL] = tail
        try:
            while reader.read() is not None:
                pass
        except ProtocolError:
            pass
