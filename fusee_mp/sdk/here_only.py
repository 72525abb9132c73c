"""What has connections, a loop or a thread of this process cannot be handed to another."""
from __future__ import annotations

from typing import NoReturn

from fusee_mp.errors import Rejected


class HereOnly:
    """Refuses to be pickled or copied, and says what to do: `multiprocessing` would otherwise speak of a lock deep inside."""

    __slots__ = ()

    def __reduce__(self) -> NoReturn:
        what = type(self).__name__
        raise Rejected(
            f"a {what} was to be pickled or copied, and its connections are of this process alone."
            f" Pass on the address, and make a {what} where it is used", kind=what)
