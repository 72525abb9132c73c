from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusee_mp.bounds import FRAME_BYTES_MAX
from fusee_mp.errors import ProtocolError, Rejected
from fusee_mp.wire.frames import BODY_BYTES_MAX, OVERHEAD_BYTES, Frame, FrameDecoder, decode_frame, encode_frame

U64 = st.integers(0, 2**64 - 1)
FRAMES = st.builds(Frame, st.integers(0, 255), U64, st.integers(0, 2**32 - 1), U64, st.binary(max_size=80))


def encoded(frame: Frame) -> bytes:
    return encode_frame(frame.kind, frame.body, frame.request, frame.shard, frame.epoch)


def decoded_in_pieces(decoder: FrameDecoder, data: bytes, cuts: list[int]) -> tuple[list[Frame], bool]:
    """The frames of `data`, fed in the pieces between the cuts, and whether damage ended it."""
    frames: list[Frame] = []
    bounds = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    try:
        for start, end in pairwise(bounds):
            frames += decoder.feed(data[start:end])
    except ProtocolError:
        return frames, True
    return frames, False


@given(FRAMES)
def test_a_frame_comes_back_equal(frame: Frame) -> None:
    assert decode_frame(encoded(frame)) == frame
    assert FrameDecoder().feed(encoded(frame)) == [frame]


@given(st.lists(FRAMES, max_size=8), st.lists(st.integers(0, 1000), max_size=10))
def test_a_stream_decodes_the_same_however_it_is_cut(frames: list[Frame], cuts: list[int]) -> None:
    data = b"".join(map(encoded, frames))
    decoder = FrameDecoder()
    assert decoded_in_pieces(decoder, data, cuts) == (frames, False)
    assert decoder.held_bytes == 0


@given(st.lists(FRAMES, max_size=4))
def test_a_stream_decodes_the_same_byte_by_byte(frames: list[Frame]) -> None:
    data = b"".join(map(encoded, frames))
    assert decoded_in_pieces(FrameDecoder(), data, list(range(len(data)))) == (frames, False)


@given(st.lists(FRAMES, min_size=1, max_size=4), st.integers(0), st.integers(0, 7), st.lists(st.integers(0, 1000), max_size=10))
def test_a_flipped_bit_lets_no_altered_frame_through(frames: list[Frame], byte: int, bit: int, cuts: list[int]) -> None:
    data = bytearray(b"".join(map(encoded, frames)))
    data[byte % len(data)] ^= 1 << bit
    found, _ = decoded_in_pieces(FrameDecoder(), bytes(data), cuts)
    assert len(found) < len(frames)
    assert found == frames[:len(found)]


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_garbage_is_refused_alike_whole_and_byte_by_byte(data: bytes) -> None:
    whole, by_byte = FrameDecoder(1000), FrameDecoder(1000)
    frames, failed = decoded_in_pieces(whole, data, [])
    assert (frames, failed) == decoded_in_pieces(by_byte, data, list(range(len(data))))
    assert failed or whole.held_bytes == by_byte.held_bytes == len(data) - sum(OVERHEAD_BYTES + len(frame.body) for frame in frames)


def test_an_oversized_frame_is_refused_by_its_first_4_bytes() -> None:
    limit = 1000
    fits = encode_frame(1, bytes(limit - OVERHEAD_BYTES))
    assert len(fits) == limit and len(FrameDecoder(limit).feed(fits)) == 1
    with pytest.raises(ProtocolError, match="expected a frame length from 21 to 992, found 993"):
        FrameDecoder(limit).feed(encode_frame(1, bytes(limit - OVERHEAD_BYTES + 1))[:4])


def test_an_empty_or_undersized_length_is_refused_by_its_first_4_bytes() -> None:
    for length in (0, 20):
        with pytest.raises(ProtocolError, match=f"found {length}"):
            FrameDecoder().feed(length.to_bytes(4, "little"))


def test_a_decoder_that_saw_damage_stays_dead() -> None:
    damaged = bytearray(encode_frame(7, b"body"))
    damaged[-1] ^= 1
    decoder = FrameDecoder()
    for data in (bytes(damaged), encode_frame(7, b"body"), b""):
        with pytest.raises(ProtocolError, match="a frame of kind 7 does not match its CRC-32C"):
            decoder.feed(data)
    assert decoder.held_bytes == 0


def test_frames_before_the_damage_arrive_when_they_came_in_an_earlier_read() -> None:
    good, damaged = encode_frame(1, b"good"), bytearray(encode_frame(1, b"bad"))
    damaged[-1] ^= 1
    decoder = FrameDecoder()
    assert [frame.body for frame in decoder.feed(good)] == [b"good"]
    with pytest.raises(ProtocolError):
        decoder.feed(bytes(damaged))


def test_the_largest_frame_passes_and_a_larger_one_is_refused_at_the_sender() -> None:
    body = bytes(BODY_BYTES_MAX)
    data = encode_frame(1, body)
    assert len(data) == FRAME_BYTES_MAX
    decoder = FrameDecoder()
    frames = [frame for at in range(0, len(data), 65536) for frame in decoder.feed(data[at:at + 65536])]
    assert [frame.body for frame in frames] == [body]
    with pytest.raises(Rejected, match="send less at once"):
        encode_frame(1, body + b"x")


def test_a_large_frame_in_small_reads_holds_each_byte_once() -> None:
    data = encode_frame(1, bytes(1 << 20))
    decoder = FrameDecoder()
    for at in range(0, len(data) - 100, 100):
        assert decoder.feed(data[at:at + 100]) == []
        assert decoder.held_bytes == at + 100


def test_a_buffer_that_the_caller_reuses_is_copied() -> None:
    data = encode_frame(1, b"first body", 5)
    buffer = bytearray(data)
    decoder = FrameDecoder()
    assert decoder.feed(memoryview(buffer)[:20]) == []
    frames = decoder.feed(memoryview(buffer)[20:])
    buffer[:] = bytes(len(buffer))
    assert frames == [decode_frame(data)]


@pytest.mark.parametrize("data", [b"", b"x" * 28, encode_frame(1, b"a") + b"x", encode_frame(1, b"a")[:-1], encode_frame(1, b"") * 2])
def test_one_frame_is_neither_less_nor_more_than_one(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="expected"):
        decode_frame(data)


@given(FRAMES, st.integers(0), st.integers(0, 7))
def test_one_frame_with_a_flipped_bit_is_refused(frame: Frame, byte: int, bit: int) -> None:
    data = bytearray(encoded(frame))
    data[byte % len(data)] ^= 1 << bit
    with pytest.raises(ProtocolError):
        decode_frame(bytes(data))
