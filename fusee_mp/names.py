"""Names: what may be one. The same rules hold for workflows, steps, signals, queries, updates and limits."""
from __future__ import annotations

from fusee_mp.bounds import NAME_BYTES_MAX
from fusee_mp.errors import Rejected


def checked_name(kind: str, name: object) -> str:
    """The name itself if it is 1 to 1,024 bytes of UTF-8 without NUL or lone surrogates; else Rejected is raised."""
    what = f"{kind} name"
    if type(name) is not str:
        raise Rejected(f"{what}: expected text, found {type(name).__name__} {name!r:.80}. Pass a str.", what=what)
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        raise Rejected(f"{what} {name!r:.80} has a lone surrogate at position {error.start}. Decode the text it came from correctly.",
                       what=what) from None
    if size == 0:
        raise Rejected(f"{what} is empty. Give it at least one character.", what=what)
    if size > NAME_BYTES_MAX:
        raise Rejected(f"{what}: expected at most {NAME_BYTES_MAX:,} bytes of UTF-8, found {size:,} ({name!r:.80}). "
                       "Choose a shorter one, or a digest of the long one.", what=what)
    if "\0" in name:
        raise Rejected(f"{what} {name!r:.80} has a NUL character at position {name.index(chr(0))}. Leave it out.", what=what)
    return name
