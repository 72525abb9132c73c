"""AesGcm: what is sealed opens with the right key and with nothing else, and every refusal names the key."""
from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from fusee_mp.errors import PayloadError, Rejected
from fusee_mp.payload.cipher import AesGcm
from fusee_mp.sdk.config import PayloadCodec

K1, K2 = bytes(range(32)), bytes(range(1, 33))
GOLDEN = bytes.fromhex("01026b31" "000102030405060708090a0b" "6563b478e77a6d36f57455859a84b7d792a5eb8bab")


def counting(length: int) -> bytes:
    return bytes(range(length))


@given(st.binary(max_size=5_000))
def test_what_is_sealed_opens_as_it_was(payload: bytes) -> None:
    codec: PayloadCodec = AesGcm({"k1": K1})
    sealed = codec.seal(payload)
    assert codec.open(sealed) == payload
    assert codec.seal(payload) != sealed
    assert len(payload) < 8 or payload not in sealed


def test_the_layout_is_the_documented_one() -> None:
    sealed = AesGcm({"k1": K1}, nonce=counting).seal(b'"abc"')
    assert sealed[:16] == GOLDEN[:16]
    assert AESGCM(K1).decrypt(sealed[4:16], sealed[16:], sealed[:4]) == b'"abc"'


def test_bytes_sealed_by_the_first_release_open_for_ever() -> None:
    assert AesGcm({"k1": K1}).open(GOLDEN) == b'"abc"'


def test_the_first_key_seals_and_any_key_opens() -> None:
    old, new = AesGcm({"k1": K1}), AesGcm({"k2": K2, "k1": K1})
    assert new.open(old.seal(b"1")) == b"1"
    assert new.seal(b"1")[2:4] == b"k2"
    with pytest.raises(PayloadError, match='"k2".*has only \'k1\'') as caught:
        old.open(new.seal(b"1"))
    assert caught.value.fields == {"key": "k2"}


def test_a_wrong_key_is_named_and_loses_nothing() -> None:
    sealed = AesGcm({"k1": K1}).seal(b"precious")
    with pytest.raises(PayloadError, match='names key "k1"') as caught:
        AesGcm({"k1": K2}).open(sealed)
    assert caught.value.fields == {"key": "k1"}
    assert AesGcm({"k1": K1}).open(sealed) == b"precious"


def test_a_payload_cut_anywhere_is_refused() -> None:
    codec = AesGcm({"k1": K1})
    sealed = codec.seal(b"payload")
    for length in range(len(sealed)):
        with pytest.raises(PayloadError):
            codec.open(sealed[:length])
    with pytest.raises(PayloadError, match='"k1"'):
        codec.open(sealed[:10])
    with pytest.raises(PayloadError, match='"k1"'):
        codec.open(sealed + b"\0")


def test_a_payload_altered_in_any_bit_is_refused() -> None:
    codec = AesGcm({"k1": K1, "k3": K1, "j1": K1})  # Also a key of another name with the same bytes must not open it.
    sealed = codec.seal(b"payload")
    for at in range(len(sealed) * 8):
        altered = bytearray(sealed)
        altered[at // 8] ^= 1 << at % 8
        with pytest.raises(PayloadError):
            codec.open(bytes(altered))


@given(st.binary(max_size=100))
def test_other_bytes_give_an_error_and_nothing_else(data: bytes) -> None:
    with pytest.raises(PayloadError):
        AesGcm({"k1": K1}).open(data)


@pytest.mark.parametrize("clear", [b"{}", b"[1]", b'"x"', b"1", b"null", b"true"])
def test_a_payload_written_in_clear_is_told_from_a_sealed_one(clear: bytes) -> None:
    with pytest.raises(PayloadError, match="without a codec"):
        AesGcm({"k1": K1}).open(clear)


@pytest.mark.parametrize(("keys", "complaint"), [
    ({}, "one at least"), ([("k1", K1)], "mapping"), ({"k1": b"short"}, "found 5"), ({"k1": "x" * 32}, "found str"), ({"": K1}, "1 to 255"),
    ({"k" * 256: K1}, "1 to 255"), ({1: K1}, "text"), ({"\ud800": K1}, "surrogate"),
])
def test_keys_that_cannot_be_are_refused_when_given(keys: object, complaint: str) -> None:
    with pytest.raises(Rejected, match=complaint) as caught:
        AesGcm(keys)  # type: ignore[arg-type]
    assert "x" * 32 not in str(caught.value)


def test_a_codec_never_shows_its_keys() -> None:
    codec = AesGcm({"k1": K1, "ü": K2})
    assert repr(codec) == "AesGcm('k1', 'ü')"
    assert codec.open(codec.seal(b"")) == b""
