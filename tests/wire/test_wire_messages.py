from __future__ import annotations

from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusee_mp.bounds import SHARDS_MAX
from fusee_mp.errors import ProtocolError
from fusee_mp.wire import messages
from fusee_mp.wire.frames import Frame, decode_frame
from fusee_mp.wire.kinds import Kind
from fusee_mp.wire.messages import Message
from fusee_mp.wire.records import pack_records, unpack_records

U64 = st.integers(0, 2**64 - 1)
FACTS = st.dictionaries(st.text(max_size=5), st.one_of(st.none(), st.booleans(), U64, st.text(max_size=9)), max_size=4)
BY_HINT: dict[Any, st.SearchStrategy[Any]] = {
    str: st.text(max_size=30),
    bytes: st.binary(max_size=60),
    bool: st.booleans(),
    int: U64,
    messages.Name: st.text(max_size=30),
    messages.Shard: st.integers(0, SHARDS_MAX - 1),
    messages.Number: U64,
    messages.Number | None: st.none() | U64,
    list[messages.Name]: st.lists(st.text(max_size=9), max_size=4),
    list[messages.Number]: st.lists(U64, max_size=4),
    list[messages.Shard]: st.lists(st.integers(0, SHARDS_MAX - 1), max_size=9),
    dict[str, Any]: FACTS,
}


def strategy_of(hint: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(get_args(hint)) if get_origin(hint) is Literal else BY_HINT[hint]


def values_of(kind: type[Message]) -> st.SearchStrategy[Message]:
    hints = get_type_hints(kind, include_extras=True)
    fields = {name: strategy_of(hints[name]) for name in kind.__struct_fields__}
    if kind is messages.Append:
        fields["count"] = st.integers(0, 2**32 - 1)
    return st.builds(kind, **fields)


KINDS = Message.__subclasses__()
MESSAGES = st.one_of([values_of(kind) for kind in KINDS])


def test_every_kind_has_one_message_and_every_number_fits_a_byte() -> None:
    assert sorted(kind.KIND for kind in KINDS) == sorted(Kind)
    assert all(0 < kind < 256 for kind in Kind)


@settings(max_examples=500)
@given(MESSAGES, U64, st.integers(0, 2**32 - 1), U64)
def test_every_message_comes_back_equal_with_its_head(message: Message, request: int, shard: int, epoch: int) -> None:
    frame = decode_frame(messages.encode(message, request, shard, epoch))
    assert (frame.kind, frame.request, frame.shard, frame.epoch) == (message.KIND, request, shard, epoch)
    assert messages.decode(frame) == message


@settings(max_examples=500)
@given(st.integers(0, 255), st.binary(max_size=120))
def test_any_body_of_any_kind_decodes_or_raises_a_protocol_error(kind: int, body: bytes) -> None:
    try:
        message = messages.decode(Frame(kind, 0, 0, 0, body))
    except ProtocolError as error:
        assert error.fields["kind"] in (kind, Kind(kind).name if kind in set(Kind) else kind)
    else:
        assert message.KIND == kind


@settings(max_examples=500)
@given(MESSAGES, st.data())
def test_a_mutated_body_decodes_or_raises_a_protocol_error(message: Message, data: st.DataObject) -> None:
    body = bytearray(decode_frame(messages.encode(message)).body)
    for _ in range(data.draw(st.integers(1, 3))):
        if body:
            body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    body = body[:data.draw(st.integers(0, len(body)))]
    try:
        found = messages.decode(Frame(message.KIND, 0, 0, 0, bytes(body)))
    except ProtocolError:
        return
    assert type(found) is type(message)


@given(MESSAGES)
def test_a_reader_skips_fields_that_a_later_version_appends(message: Message) -> None:
    if message.KIND in (Kind.APPEND, Kind.DURABLE):
        return
    fields = msgspec.msgpack.decode(decode_frame(messages.encode(message)).body)
    later = msgspec.msgpack.encode([*fields, "new", 1])
    assert messages.decode(Frame(message.KIND, 0, 0, 0, later)) == message


@pytest.mark.parametrize(
    ("kind", "body", "field"),
    [
        (Kind.HELLO, ["w", "i", [1]], "workflows"),
        (Kind.HELLO, ["w"], "instance"),
        (Kind.HELLO, ["w" * 1025, "i", []], "worker"),
        (Kind.LEASE, ["w", "i", SHARDS_MAX], "shard"),
        (Kind.LEASE, ["w", "i", -1], "shard"),
        (Kind.ASSIGN, [[0, 1, "x"]], "shards"),
        (Kind.GRANTED, [1, 2, 3, 4, "text"], "state"),
        (Kind.ERROR, ["code", "message", []], "fields"),
    ],
)
def test_a_malformed_body_names_kind_and_field(kind: Kind, body: list[Any], field: str) -> None:
    with pytest.raises(ProtocolError, match=f'field "{field}" of {kind.name} is malformed') as caught:
        messages.decode(Frame(kind, 0, 0, 0, msgspec.msgpack.encode(body)))
    assert caught.value.fields == {"kind": kind.name, "field": field}


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x91" * 100_000, b"\xdd\xff\xff\xff\xff", b"\x93\xa1w\xa1i\xdd\xff\xff\xff\xff"])
def test_a_body_that_is_no_message_pack_names_the_kind(body: bytes) -> None:
    with pytest.raises(ProtocolError, match="HELLO is malformed"):
        messages.decode(Frame(Kind.HELLO, 0, 0, 0, body))


def test_nesting_without_end_is_a_protocol_error() -> None:
    body = b"\x93\xa1c\xa1m\x81\xa1f" + b"\x91" * 100_000
    with pytest.raises(ProtocolError, match="ERROR is malformed"):
        messages.decode(Frame(Kind.ERROR, 0, 0, 0, body))


@pytest.mark.parametrize(("kind", "size"), [(Kind.APPEND, 11), (Kind.DURABLE, 23), (Kind.DURABLE, 25)])
def test_a_fixed_body_of_another_size_is_a_protocol_error(kind: Kind, size: int) -> None:
    with pytest.raises(ProtocolError, match=f"the body of {kind.name} is malformed"):
        messages.decode(Frame(kind, 0, 0, 0, bytes(size)))


def test_an_unknown_kind_says_so() -> None:
    with pytest.raises(ProtocolError, match="kind 250 is unknown"):
        messages.decode(Frame(250, 0, 0, 0, b""))


def test_only_frames_that_bring_descriptors_call_for_them() -> None:
    wanted = {kind: messages.descriptors_of(decode_head(kind)) for kind in Kind}
    assert {kind: count for kind, count in wanted.items() if count} == {Kind.ADOPT: 1, Kind.RING: 3, Kind.KEYS: 1}
    assert messages.descriptors_of(b"") == messages.descriptors_of(b"12345678") == 0


def decode_head(kind: Kind) -> bytes:
    return bytes(8) + bytes([kind]) + bytes(20)


@given(st.lists(st.binary(max_size=50), max_size=20))
def test_records_come_back_equal(records: list[bytes]) -> None:
    assert unpack_records(pack_records(records), len(records)) == records


@given(st.lists(st.binary(max_size=20), max_size=5), st.data())
def test_records_cut_short_or_miscounted_are_refused(records: list[bytes], data: st.DataObject) -> None:
    packed = pack_records(records)
    with pytest.raises(ProtocolError, match="expected"):
        unpack_records(packed, len(records) + 1)
    if packed:
        with pytest.raises(ProtocolError, match="expected"):
            unpack_records(packed[:data.draw(st.integers(0, len(packed) - 1))], len(records))


@given(st.binary(max_size=60), st.integers(0, 5))
def test_any_bytes_are_records_or_refused(data: bytes, count: int) -> None:
    try:
        assert pack_records(unpack_records(data, count)) == data
    except ProtocolError:
        pass
