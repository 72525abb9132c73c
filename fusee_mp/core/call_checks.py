# What a call must be like before it becomes records.
#
# The SDK refuses bad values where they are given. A peer may be anything: what it sends is checked once more here, since a record
# that no table can hold would stop its shard, and one that no batch can hold its engine.
from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Struct

from fusee_mp.bounds import DURATION_MS_MAX, FAILURE_BYTES_MAX, NAME_BYTES_MAX, PAYLOAD_BYTES_MAX, RECORD_BYTES_MAX
from fusee_mp.core.calls import CompleteCall
from fusee_mp.core.placement import check_id
from fusee_mp.errors import FuseeError, PayloadError, Rejected

# Of a record, beside what the call brings: names of fields, numbers, what a sealing codec adds.
ENVELOPE_BYTES: Final = 16 << 10
_IDS: Final = frozenset(("id", "key"))
_NAMES: Final = frozenset(("type", "name", "step", "request", "update"))
_NUMBER_MAX: Final = 1 << 62
_attributes: Final = msgspec.json.Decoder(dict[str, Any]).decode


def fault(call: Struct, bytes_max: int = PAYLOAD_BYTES_MAX) -> FuseeError | None:
    """Why this call cannot be carried out, whoever sent it; None when nothing is wrong with its values.

    bytes_max: of one payload. A failure that completes an operation has a bound of its own.
    """
    size, largest = 0, max(bytes_max, FAILURE_BYTES_MAX) if isinstance(call, CompleteCall) else bytes_max
    try:
        for field in call.__struct_fields__:
            value = getattr(call, field)
            if isinstance(value, (str, bytes)):
                size += len(value)
            if isinstance(value, bytes):
                _check_size(field, len(value), largest)
            _check(field, value)
    except FuseeError as e:
        return e
    if size > RECORD_BYTES_MAX - ENVELOPE_BYTES:
        return PayloadError(
            f"the values of this call have {size:,} bytes together, of which {RECORD_BYTES_MAX - ENVELOPE_BYTES:,} fit one record."
            " Keep large values in a store of their own and pass their address", size=size,
        )
    return None


def _check(field: str, value: Any) -> None:
    if field in _IDS:
        check_id(value)
    elif field in _NAMES:
        _check_name(field, value)
    elif field == "deadline_ms":
        if value is not None and not 0 <= value <= DURATION_MS_MAX:
            raise Rejected(f"deadline: expected 0 to {DURATION_MS_MAX} ms, found {value}")
    elif field == "attributes":
        if value is not None:
            _check_attributes(value)
    elif isinstance(value, int) and not -_NUMBER_MAX < value < _NUMBER_MAX:
        raise Rejected(f"{field}: expected a number of at most 62 bits, found {value}")


def _check_size(field: str, size: int, largest: int) -> None:
    if size > largest:
        raise PayloadError(
            f"the {field} of this call is too large: expected at most {largest:,} bytes of JSON, found {size:,}."
            " Store it elsewhere and send its address.", path=field, limit=largest, size=size,
        )


def _check_name(field: str, value: str) -> None:
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise Rejected(f"{field}: expected text that UTF-8 can hold, found {value!r:.80}") from None
    if not 1 <= size <= NAME_BYTES_MAX:
        raise Rejected(f"{field}: expected 1 to {NAME_BYTES_MAX} UTF-8 bytes, found {size}")


def _check_attributes(value: bytes) -> None:
    try:
        _attributes(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise Rejected(f"attributes: expected a JSON object, found {value[:80]!r} ({e})") from None
