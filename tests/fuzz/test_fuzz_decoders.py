"""No bytes make a decoder raise anything but its own error. FUSEE_LONG=1 tries many more; with -s the number of inputs is printed."""
from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.decoders import DECODERS, FRAMES, Decoder
from tests.fuzz.mutations import byte_by_byte, mutated
from tests.wire.test_wire_frames import FRAMES as ANY_FRAME
from tests.wire.test_wire_frames import encoded

IS_LONG = bool(os.environ.get("FUSEE_LONG"))
# Of each decoder: mutated inputs, and the time after which no more are tried.
ROUNDS, PATIENCE_S = (200_000, 10.0) if IS_LONG else (1_000, 0.5)
SPOILT = 20_000 if IS_LONG else 1_500
TRIED: dict[str, int] = {}
each = pytest.mark.parametrize("decoder", DECODERS, ids=lambda decoder: decoder.name)


@pytest.fixture(scope="module", autouse=True)
def figures() -> Iterator[None]:
    yield
    print(f"\nfuzz: {sum(TRIED.values()):,} inputs to {len(TRIED)} decoders, nothing but their own errors")


def tried(decoder: Decoder, count: int) -> None:
    TRIED[decoder.name] = TRIED.get(decoder.name, 0) + count


@each
def test_the_examples_are_valid(decoder: Decoder) -> None:
    assert all(map(decoder.holds, decoder.examples)) and decoder.examples


@each
def test_an_example_spoilt_at_any_byte_decodes_or_is_refused(decoder: Decoder) -> None:
    spoilt = [data for example in decoder.examples for data in byte_by_byte(example)]
    chosen = spoilt if len(spoilt) <= SPOILT else random.Random(1).sample(spoilt, SPOILT)
    for data in chosen:
        decoder.holds(data)
    tried(decoder, len(chosen))


@each
def test_mutated_examples_decode_or_are_refused(decoder: Decoder) -> None:
    seed = int(os.environ.get("FUSEE_SEED", time.time_ns() % 1_000_000 if IS_LONG else 1))
    chance, end = random.Random(seed), time.monotonic() + PATIENCE_S
    count = 0
    while count < ROUNDS and time.monotonic() < end:
        data = mutated(decoder.examples, chance)
        try:
            decoder.holds(data)
        except Exception as error:
            raise AssertionError(f"FUSEE_SEED={seed}, input {count}, {data!r}: {error!r}") from error
        count += 1
    tried(decoder, count)


@each
@settings(max_examples=2_000 if IS_LONG else 30, deadline=None)
@given(data=st.binary(max_size=300))
def test_any_bytes_decode_or_are_refused(decoder: Decoder, data: bytes) -> None:
    decoder.holds(data)
    tried(decoder, 1)


@settings(max_examples=5_000 if IS_LONG else 100, deadline=None)
@given(st.lists(ANY_FRAME, min_size=1, max_size=4), st.integers(0, 1 << 16), st.binary(max_size=3))
def test_whole_frames_of_any_kind_and_body_decode_or_are_refused_message_by_message(frames, at: int, noise: bytes) -> None:  # type: ignore[no-untyped-def]
    data = b"".join(map(encoded, frames))
    place = at % (len(data) + 1)
    stream = next(decoder for decoder in DECODERS if decoder.name == "stream of frames")
    stream.holds(data[:place] + noise + data[place:])
    stream.holds(data + FRAMES[at % len(FRAMES)])
    tried(stream, 2)
