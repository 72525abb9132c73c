"""Files of keys and tokens: read whole, within bounds, and only when nobody else can have read or written them."""
from __future__ import annotations

import os
import stat
from typing import Final

from fusee_mp.errors import Rejected

# Writing by the group, and anything by others. A group may read: services are often given their secrets so.
_FORBIDDEN: Final = stat.S_IWGRP | stat.S_IRWXO


def read_file(path: str, what: str, most: int) -> bytes:
    """The content. Raises Rejected that names the file and what to do."""
    return _read(path, what, most, is_secret=False)


def read_secret(path: str, what: str, most: int) -> bytes:
    """The content of a file that must be ours alone. Raises Rejected for one that others may read or change."""
    return _read(path, what, most, is_secret=True)


def _read(path: str, what: str, most: int, is_secret: bool) -> bytes:
    try:
        with open(path, "rb", opener=_opener) as file:
            mode = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(mode):
                raise Rejected(f"the {what} {path} is no file: name the file itself", path=path)
            if is_secret and mode & _FORBIDDEN:
                raise Rejected(
                    f"the {what} {path} has mode {stat.S_IMODE(mode):04o}, so that others can read or change it: chmod 600 {path} (640 if a"
                    " group shall read it). If others may have read it already, make a new one", path=path)
            data = file.read(most + 1)
    except (OSError, ValueError) as error:  # ValueError: a path with a zero byte
        raise Rejected(f"the {what} {path} cannot be read: {error}. Give the path of a file that this user can read", path=path) from None
    if len(data) > most:
        raise Rejected(f"the {what} {path} has over {most} bytes: it is something else", path=path)
    return data


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a pipe without a writer must not hold us up
