"""Who has which workflow types: what each worker is to know of the others."""
from __future__ import annotations

from collections.abc import Iterable, Iterator

from fusee_mp.bounds import CONTROL_FRAME_BYTES_MAX
from fusee_mp.router.leases import Member

# With room for the length that stands before each name.
_NAMES_BYTES = CONTROL_FRAME_BYTES_MAX * 3 // 4


class Elsewhere:
    """Remembers what each session was told."""

    def __init__(self) -> None:
        self._told: dict[int, list[str]] = {}

    def news(self, members: Iterable[Member]) -> Iterator[tuple[int, list[str]]]:
        """The sessions whose others have other types than when it was said last, with these types: as many as fit a frame."""
        by_session = {member.session: member.workflows for member in members}
        for gone in self._told.keys() - by_session.keys():
            del self._told[gone]
        everywhere = {name for types in by_session.values() for name in types}
        for session, own in by_session.items():
            names = _fitting(sorted(everywhere.difference(own)))
            if names != self._told.get(session, []):
                self._told[session] = names
                yield session, names


def _fitting(names: list[str]) -> list[str]:
    size, fitting = 0, []
    for name in names:
        size += len(name.encode()) + 5
        if size > _NAMES_BYTES:
            break
        fitting.append(name)
    return fitting
