"""The doors of payloads: what is sealed by them, and that there is no way past."""
from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusee_mp.core import calls, sealed_list
from fusee_mp.core import records as r
from fusee_mp.core.wishes import close_of
from fusee_mp.errors import PayloadError, Rejected
from fusee_mp.payload.cipher import AesGcm
from fusee_mp.payload.sealing import CLEAR, PLAIN, TEXTS, Payloads, fields_of, is_closed, said_of_closed

SEALING = Payloads(AesGcm({"k1": b"k" * 32}))
WORD = "xyzzy"
KINDS = [*r.KIND, *(kind for kind in calls.Call.__args__ if issubclass(kind, msgspec.Struct)), calls.Outcome]


def filled(kind: type[Any]) -> Any:
    """One of the kind, whose every payload and text holds the word."""
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        marked = dict(fields_of(kind)).get(field.name)
        if marked is bytes:
            values[field.name] = f'"{WORD}"'.encode()
        elif marked is str:
            values[field.name] = WORD
        elif marked is msgspec.Struct:
            values[field.name] = filled(r.Update)
        elif field.required:
            values[field.name] = b"{}" if field.type is bytes else 0
    return kind(**values)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_kind_of_record_and_call_is_sealed_and_comes_back(kind: type[Any]) -> None:
    clear = filled(kind)
    sealed = SEALING.sealed(clear)
    assert WORD.encode() not in msgspec.msgpack.encode(sealed)
    assert SEALING.opened(sealed) == clear
    assert SEALING.sealed(sealed) is sealed  # once is enough
    assert PLAIN.sealed(clear) is clear and PLAIN.opened(clear) is clear
    if sealed is not clear and any(marked is not str for _, marked in fields_of(kind)):
        with pytest.raises(PayloadError, match='"k1"'):
            PLAIN.opened(sealed)
        PLAIN.shown(sealed)  # as far as that is possible


def test_every_field_of_bytes_is_sealed_but_those_named_as_clear() -> None:
    for kind in KINDS:
        for field in msgspec.structs.fields(kind):
            if field.type in (bytes, bytes | None):
                assert (field.name in CLEAR) != (field.name in dict(fields_of(kind))), f"{kind.__name__}.{field.name}"
            if field.name in TEXTS and field.type is str:
                assert dict(fields_of(kind))[field.name] is str


def test_no_module_of_the_runtime_makes_bytes_of_a_record_that_holds_payloads() -> None:
    """They go through `ShardRuntime.encode`. A kind without any may be encoded anywhere."""
    without = {kind.__name__ for kind in r.KIND if not fields_of(kind)} | {"Skipped"}
    modules = sorted((Path(r.__file__).parents[1] / "runtime").glob("*.py"))
    assert len(modules) > 20
    for module in modules:
        for line in module.read_text().splitlines():
            for encoded in re.findall(r"\br\.encode\((?:r\.)?(\w+)", line):
                assert encoded in without or "self.encode" in line or line.strip().startswith("size ="), f"{module.name}: {line.strip()}"


@given(st.lists(st.one_of(st.just(b'{"a":1}'), st.just(b"[2]"), st.builds(lambda: SEALING._seal(b'"sealed"'))), min_size=1, max_size=6))
def test_a_batch_of_sealed_and_clear_events_is_one_list_to_its_run(inputs: list[bytes]) -> None:
    wish = close_of("batch", "w", inputs, 1, r.Closing("k@1", 0, 1))
    opened = SEALING.opened(wish).input
    assert opened == b"[" + b",".join(SEALING._open(item) for item in inputs) + b"]"
    assert is_closed(wish.input) == any(map(is_closed, inputs))
    if is_closed(wish.input):
        assert said_of_closed(wish.input) == {"sealed": ["k1"]}


@given(st.binary(max_size=64))
def test_bytes_of_any_kind_are_opened_or_refused_and_never_more(data: bytes) -> None:
    for payloads in (PLAIN, SEALING):
        try:
            payloads.opened(r.Signal(1, 1, "s", data))
        except PayloadError:
            pass
    if data[:1] == bytes((sealed_list.FIRST,)):
        with pytest.raises(PayloadError):
            sealed_list.unpack(data[:1] + b"\xc1" + data[1:])


def test_what_an_error_says_is_sealed_on_its_way_and_opened_by_who_has_the_key() -> None:
    sent = SEALING.sealed_error(Rejected(f"no {WORD}", id="x"))
    assert WORD not in sent.message and sent.fields == {"id": "x"}
    assert SEALING.opened_error(sent).message == f"no {WORD}"
    strange = PLAIN.opened_error(SEALING.sealed_error(Rejected(f"no {WORD}")))
    assert strange.message == '[sealed with key "k1"]'
