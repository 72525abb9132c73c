"""`BoundedStream`: a connection that counts, with others, against what they all may make this process hold."""
from __future__ import annotations

from fusee_mp.bounds import UNREAD_BYTES_MAX
from fusee_mp.wire.stream import Stream
from fusee_mp.wire.unfinished import Unfinished
from fusee_mp.wire.unread import Unread


class BoundedStream(Stream):
    """As Stream; what it has begun and not finished counts in `unfinished`, what it does not read in `unread`, which alone bounds it."""

    unsent_bytes_max = UNREAD_BYTES_MAX

    def __init__(self, unfinished: Unfinished, unread: Unread) -> None:
        super().__init__()
        self._unfinished, self._unread = unfinished, unread

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._unfinished.note(self, self._decoder.held_bytes if self.is_open else 0)

    def send_bytes(self, frame: bytes) -> None:
        super().send_bytes(frame)
        if self._room is not None:
            self._unread.sent(len(frame))

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread.behind(self, True)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unread.behind(self, False)

    def connection_lost(self, exc: Exception | None) -> None:
        self._unfinished.note(self, 0)
        super().connection_lost(exc)
