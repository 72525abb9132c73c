# Calls that clients of this process make on other shards.
#
# Rule 1: a call is known here until it is answered, its client gives it up, or the other process is lost.
# Rule 2: what waits is bounded, of all and of each connection. The other process takes of this one no more than of any who asks there, so
#         all have that together here, and each has less: when it is full, who has most gives way (see waiting.py).
"""`Forwarded`: passes calls on to the shard processes that they are for, and the answers back."""
from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from fusee_mp.bounds import (
    CALLS_OF_ONE_BYTES_MAX,
    CALLS_OF_ONE_MAX,
    FORWARDED_OF_ONE_BYTES_MAX,
    FORWARDED_OF_ONE_MAX,
    FORWARDED_READS_OF_ONE_MAX,
    READS_OF_ONE_MAX,
)
from fusee_mp.errors import Busy, FuseeError, Rejected, Unavailable
from fusee_mp.shardproc.waiting import GAVE_WAY, Bounds, Waiting
from fusee_mp.wire import messages as m
from fusee_mp.wire.frames import Frame, encode_frame
from fusee_mp.wire.kinds import Kind

if TYPE_CHECKING:
    from fusee_mp.shardproc.process import ShardProcess

OF_ALL: Final = Bounds(CALLS_OF_ONE_MAX, CALLS_OF_ONE_BYTES_MAX, READS_OF_ONE_MAX)
OF_ONE: Final = Bounds(FORWARDED_OF_ONE_MAX, FORWARDED_OF_ONE_BYTES_MAX, FORWARDED_READS_OF_ONE_MAX)


class _Away(NamedTuple):
    answer: Callable[[bytes], None]
    owner: object
    request: int
    shard: int
    method: str
    size: int


def _gave_way(call: _Away) -> None:
    call.answer(m.encode(m.error_message(Busy(GAVE_WAY)), call.request, call.shard))


class Forwarded:
    """The calls that wait for other shards."""

    def __init__(self, process: ShardProcess) -> None:
        self._process = process
        self.waiting: Waiting[_Away] = Waiting(OF_ALL, OF_ONE, self._dropped)

    def take(self, frame: Frame, answer: Callable[[bytes], None], owner: object) -> None:
        """Pass a call on, or answer why not. Raises ProtocolError when it cannot be read: who sent it could not be told from afar."""
        message = m.decode(frame)
        assert isinstance(message, m.Call)
        call = _Away(answer, owner, frame.request, frame.shard, message.method, len(message.args))
        if error := self._refusal(call) or self._pass(call, frame):
            answer(m.encode(m.error_message(error), frame.request, frame.shard))

    def _refusal(self, call: _Away) -> FuseeError | None:
        if call.shard >= self._process.shards:
            return Rejected(f"there is no shard {call.shard}: this server has shards 0 to {self._process.shards - 1}")
        if full := self.waiting.lacks_own_room(call):
            return Busy(
                f"{full} of this one connection wait here for other shards, which is all that one connection may have. Nothing of this one"
                " was recorded: wait for answers before you send more")
        if full := self.waiting.make_room(call, _gave_way):
            return Busy(f"{full} wait here for other shards. Nothing of this one was recorded: try later")
        return None

    def _pass(self, call: _Away, frame: Frame) -> FuseeError | None:
        id = self.waiting.add(call)
        passed_on = encode_frame(frame.kind, frame.body, id, call.shard, self.waiting.number_of(call.owner))
        if self._process.relay.to_peer(call.shard, passed_on):
            return None
        self.waiting.take(id)
        return Unavailable(f"shard {call.shard} cannot be reached from shard {self._process.shard} now: try again")

    def answered(self, frame: Frame) -> None:
        """The other process answers."""
        call = self.waiting.get(frame.request) if frame.kind == Kind.PART else self.waiting.take(frame.request)
        if call is not None:
            call.answer(encode_frame(frame.kind, frame.body, call.request, call.shard))

    def unreachable(self, shard: int) -> None:
        """The process of this shard is gone: who waits for it asks again."""
        error = Unavailable(f"shard {shard} was lost while this call waited: ask again")
        for id, call in self.waiting.items():
            if call.shard == shard and self.waiting.take(id):
                call.answer(m.encode(m.error_message(error), call.request, call.shard))

    def _dropped(self, id: int, call: _Away) -> None:
        self._process.relay.to_peer(call.shard, m.encode(m.Cancel(), id, call.shard))
