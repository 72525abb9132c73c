from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusee_mp.bounds import SHARDS_MAX
from fusee_mp.errors import ProtocolError
from fusee_mp.wire import preface
from fusee_mp.wire.preface import ConnectionKind, Preface

PREFACES = st.one_of(
    st.builds(Preface, st.sampled_from([ConnectionKind.WORKER, ConnectionKind.CLIENT_SHARD]), st.integers(0, SHARDS_MAX - 1)),
    st.builds(Preface, st.sampled_from([ConnectionKind.CONTROL, ConnectionKind.CLIENT_ANY])),
)


@given(PREFACES)
def test_a_preface_has_16_bytes_and_comes_back_equal(given_preface: Preface) -> None:
    data = given_preface.encode()
    assert len(data) == preface.PREFACE_BYTES == 16
    assert preface.decode(data) == given_preface


@given(st.binary(min_size=0, max_size=40))
def test_any_other_bytes_are_refused_by_a_protocol_error(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        preface.decode(data)


@given(PREFACES, st.integers(0, 127))
def test_a_flipped_bit_is_refused_or_names_another_valid_connection(given_preface: Preface, bit: int) -> None:
    data = bytearray(given_preface.encode())
    data[bit // 8] ^= 1 << bit % 8
    try:
        found = preface.decode(bytes(data))
    except ProtocolError:
        return
    assert found.encode() == bytes(data)


@pytest.mark.parametrize(
    ("start", "name"),
    [
        (b"GET / HTTP/1.1\r\nHost: x", "HTTP request"),
        (b"POST /api HTTP/1.1\r\n", "HTTP request"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "HTTP/2 request"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03aaaaaaaaa", "TLS handshake"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "SSH greeting"),
        (b"PROXY TCP4 127.0.0.1 127.0.0.1", "PROXY protocol"),
        (b"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c", "PROXY protocol"),
    ],
)
def test_another_protocol_is_named(start: bytes, name: str) -> None:
    with pytest.raises(ProtocolError, match=name):
        preface.decode(start[:16])


def test_line_ends_rewritten_on_the_way_are_told_apart_from_garbage() -> None:
    data = Preface(ConnectionKind.CONTROL).encode().replace(b"\r\n", b"\n") + b"\0"
    with pytest.raises(ProtocolError, match="altered on its way"):
        preface.decode(data)


def test_another_version_says_which_side_to_upgrade() -> None:
    data = bytearray(Preface(ConnectionKind.CONTROL).encode())
    data[6] = 9
    with pytest.raises(ProtocolError, match=r"expected protocol version 1, found 9: upgrade") as caught:
        preface.decode(bytes(data))
    assert caught.value.fields == {"found": 9}


@pytest.mark.parametrize(
    ("offset", "value", "message"),
    [(8, 77, "kind of connection"), (10, 1, "expected zero"), (13, 0xFF, "below 1024"), (15, 1, "below 1024")],
)
def test_each_field_out_of_bounds_is_named(offset: int, value: int, message: str) -> None:
    data = bytearray(Preface(ConnectionKind.WORKER, 3).encode())
    data[offset] = value
    with pytest.raises(ProtocolError, match=message):
        preface.decode(bytes(data))


def test_a_shard_where_none_belongs_is_refused() -> None:
    data = bytearray(Preface(ConnectionKind.CONTROL).encode())
    data[12:16] = bytes(4)
    with pytest.raises(ProtocolError, match="names no shard"):
        preface.decode(bytes(data))


def test_a_connection_that_closed_early_says_how_much_came() -> None:
    with pytest.raises(ProtocolError, match=r"16 bytes, found 5 \(an HTTP request\)"):
        preface.decode(b"GET /")
    with pytest.raises(ProtocolError, match=r"16 bytes, found 0 \(nothing\)"):
        preface.decode(b"")
