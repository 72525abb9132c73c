"""Names and IDs: what may be one. The same rules hold for workflows, steps, signals, queries, updates and limits."""
from __future__ import annotations

from fusee_mp.bounds import NAME_BYTES_MAX, WORKFLOW_ID_BYTES_MAX
from fusee_mp.errors import Rejected


def checked_name(kind: str, name: object) -> str:
    """The name itself if it is 1 to 1,024 bytes of UTF-8 without NUL or lone surrogates; else Rejected is raised."""
    return _checked(f"{kind} name", name, NAME_BYTES_MAX)


def checked_id(kind: str, id: object) -> str:
    """The ID itself if it is 1 to 1,024 bytes of UTF-8 without NUL or lone surrogates; else Rejected is raised."""
    return _checked(f"{kind} ID", id, WORKFLOW_ID_BYTES_MAX)


def _checked(what: str, text: object, bytes_max: int) -> str:
    if not isinstance(text, str):
        raise Rejected(f"{what}: expected text, found {type(text).__name__} {text!r:.80}. Pass a str.", what=what)
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise Rejected(f"{what} {text!r:.80} has a lone surrogate at position {error.start}. Decode the text it came from correctly.",
                       what=what) from None
    if not 1 <= size <= bytes_max:
        raise Rejected(f"{what}: expected 1 to {bytes_max:,} bytes of UTF-8, found {size:,} ({text!r:.80}). "
                       "Choose a shorter name, or a digest of the long one." if size else f"{what} is empty. Give it at least one character.",
                       what=what)
    if "\0" in text:
        raise Rejected(f"{what} {text!r:.80} has a NUL character at position {text.index(chr(0))}. Leave it out.", what=what)
    return text if type(text) is str else str.__str__(text)
