"""A workflow or a signal as the caller names it: a definition or handle, or its name as text."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fusee_mp.bounds import PAYLOAD_BYTES_MAX, REASON_BYTES_MAX
from fusee_mp.errors import Rejected
from fusee_mp.names import checked_name
from fusee_mp.payload.converter import Codec, codec_of
from fusee_mp.sdk.definitions import Workflow
from fusee_mp.sdk.handles import Asks, Changes, Receives, Sends

ANY: Final = codec_of(Any)


def target(workflow: Any, input: Any, bytes_max: int = PAYLOAD_BYTES_MAX) -> tuple[str, bytes, Codec]:
    """The workflow's name, its encoded input, and what carries its result."""
    if isinstance(workflow, Workflow):
        data = workflow.input_codec.encode(input, f'the input of workflow "{workflow.name}"', bytes_max)
        return workflow.name, data, workflow.result_codec
    if not isinstance(workflow, str):
        raise Rejected(f"expected a workflow made by @workflow, or its name, found {workflow!r:.120}: decorate the function")
    name = checked_name("workflow", workflow)
    return name, ANY.encode(input, f'the input of workflow "{name}"', bytes_max), ANY


def encoded_attributes(attributes: Any, bytes_max: int = PAYLOAD_BYTES_MAX) -> bytes:
    """Search attributes as the object they are recorded as. Raises Rejected, PayloadError."""
    if not isinstance(attributes, Mapping):
        raise Rejected(f'search attributes: expected a mapping such as {{"customer": "c7"}}, found {attributes!r:.80}. Name each value')
    return ANY.encode(dict(attributes), "search attributes", bytes_max)


def reason_text(reason: object) -> str:
    """The reason, if it is text that a record can hold; else Rejected."""
    try:
        if isinstance(reason, str) and len(reason.encode()) <= REASON_BYTES_MAX and not "\0" <= reason[:1] < "\t":
            return reason
    except UnicodeEncodeError:
        pass
    raise Rejected(f"reason: expected text of at most {REASON_BYTES_MAX:,} bytes of UTF-8 without lone surrogates, that does not begin with"
                   f" a control character, found {reason!r:.80}. Shorten or decode it.", option="reason")


def named(signal: Any) -> tuple[str, Codec]:
    """The signal's name and what carries its value."""
    if isinstance(signal, str):
        return checked_name("signal", signal), ANY
    if not isinstance(signal, (Receives, Sends)):
        raise Rejected(f"expected a signal made by signal(..), or its name, found {signal!r:.120}")
    return signal.name, signal.codec


def asked(query: Any) -> tuple[str, Codec, Codec]:
    """The query's name, and what carries its argument and its answer."""
    return _both(query, Asks, "query")


def changed(update: Any) -> tuple[str, Codec, Codec]:
    """The update's name, and what carries its value and its result."""
    return _both(update, Changes, "update")


def _both(handle: Any, kind: type[Asks[Any, Any]] | type[Changes[Any, Any]], word: str) -> tuple[str, Codec, Codec]:
    if isinstance(handle, str):
        return checked_name(word, handle), ANY, ANY
    if not isinstance(handle, kind):
        raise Rejected(f"expected a {word} made by {word}(..), or its name, found {handle!r:.120}")
    return handle.name, handle.codec, handle.returns_codec
