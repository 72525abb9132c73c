from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop
from peers import TIMEOUT_SECONDS

from fusee_mp.bounds import PACKET_BYTES_MAX, PACKET_DESCRIPTORS_MAX
from fusee_mp.errors import Rejected, Unavailable
from fusee_mp.ring import fdpass
from fusee_mp.ring.fdpass import Channel

Run = Callable[[Coroutine[Any, Any, Any]], Any]
both_loops = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def pipe_with(data: bytes) -> int:
    """A descriptor that proves itself by what is read from it."""
    reading, writing = os.pipe()
    os.write(writing, data)
    os.close(writing)
    return reading


def expected(frame: bytes) -> int:
    """The test frames say themselves how many descriptors they bring."""
    return frame[0] - ord("0")


class End:
    def __init__(self, sock: socket.socket) -> None:
        self.packets: list[tuple[bytes, list[int]]] = []
        self.reasons: list[str] = []
        self._changed = asyncio.Event()
        self.channel = Channel(asyncio.get_running_loop(), sock, self._on_packet, self._on_closed, expected)

    def _on_packet(self, frame: bytes, descriptors: list[int]) -> None:
        self.packets.append((frame, descriptors))
        self._changed.set()

    def _on_closed(self, reason: str) -> None:
        self.reasons.append(reason)
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while not condition():
                self._changed.clear()
                await self._changed.wait()


def checked(run: Run, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run, and hold that no descriptor is open that was not before."""
    run(asyncio.sleep(0))
    before = open_descriptors()
    run(main())
    assert open_descriptors() == before


@both_loops
def test_frames_arrive_in_order_each_with_its_own_descriptors(run: Run) -> None:
    async def main() -> None:
        one, other = map(End, fdpass.pair())
        for number in range(200):
            count = number % 4
            one.channel.send(b"%d %d" % (count, number), [pipe_with(b"%d.%d" % (number, index)) for index in range(count)])
        await other.until(lambda: len(other.packets) == 200)
        for number, (frame, descriptors) in enumerate(other.packets):
            assert frame == b"%d %d" % (number % 4, number)
            assert [os.read(descriptor, 99) for descriptor in descriptors] == [b"%d.%d" % (number, index) for index in range(number % 4)]
            assert not any(os.get_inheritable(descriptor) for descriptor in descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
        one.channel.close()
        await other.until(lambda: other.reasons == ["the peer closed the channel, or its process ended"])

    checked(run, main)


@both_loops
def test_a_full_socket_queues_and_drains_in_order(run: Run) -> None:
    async def main() -> None:
        here, there = fdpass.pair()
        one = End(here)
        sent = [b"0" + bytes([number]) * 20_000 for number in range(60)]
        for frame in sent:
            one.channel.send(frame)
        assert one.channel.queued_bytes > 500_000
        other = End(there)
        await other.until(lambda: len(other.packets) == 60)
        assert [frame for frame, _ in other.packets] == sent and one.channel.queued_bytes == 0
        one.channel.close()
        other.channel.close()

    checked(run, main)


@both_loops
def test_descriptors_not_sent_when_the_channel_ends_are_closed(run: Run) -> None:
    async def main() -> None:
        here, there = fdpass.pair()
        one = End(here)
        for _ in range(60):
            one.channel.send(b"1" + bytes(20_000), [pipe_with(b"")])
        assert one.channel.queued_bytes > 500_000
        one.channel.close()
        one.channel.close()
        assert one.channel.queued_bytes == 0
        there.close()

    checked(run, main)


def test_a_frame_refused_at_the_sender_still_closes_its_descriptors() -> None:
    async def main() -> None:
        one, other = map(End, fdpass.pair())
        for frame, count, message in ((b"", 1, "1 to 65536"), (bytes(PACKET_BYTES_MAX + 1), 1, "1 to 65536"), (b"x", 17, "at most 16")):
            with pytest.raises(Rejected, match=message):
                one.channel.send(frame, [pipe_with(b"") for _ in range(count)])
        one.channel.close()
        with pytest.raises(Unavailable, match="closed on this side"):
            one.channel.send(b"1", [pipe_with(b"")])
        other.channel.close()

    checked(asyncio.run, main)


def test_the_largest_packet_passes() -> None:
    async def main() -> None:
        one, other = map(End, fdpass.pair())
        one.channel.send(b"0" + bytes(PACKET_BYTES_MAX - 1))
        await other.until(lambda: len(other.packets) == 1)
        assert len(other.packets[0][0]) == PACKET_BYTES_MAX
        one.channel.close()
        other.channel.close()

    checked(asyncio.run, main)


@pytest.mark.parametrize(("frame", "count"), [(b"0 none wanted", 1), (b"1 one wanted", 0), (b"1 one wanted", 3)])
@both_loops
def test_descriptors_that_a_frame_does_not_call_for_are_closed_and_the_channel_goes_on(run: Run, frame: bytes, count: int) -> None:
    async def main() -> None:
        one, other = map(End, fdpass.pair())
        one.channel.send(frame, [pipe_with(b"") for _ in range(count)])
        one.channel.send(b"0 next")
        await other.until(lambda: len(other.packets) == 1)
        assert other.packets == [(b"0 next", [])] and other.channel.refused == 1
        one.channel.close()
        other.channel.close()

    checked(run, main)


def test_more_descriptors_than_any_packet_brings_are_refused_without_a_leak() -> None:
    async def main() -> None:
        here, there = fdpass.pair()
        other = End(there)
        many = [pipe_with(b"") for _ in range(PACKET_DESCRIPTORS_MAX + 20)]
        socket.send_fds(here, [b"1"], many)
        socket.send_fds(here, [b"0" + bytes(PACKET_BYTES_MAX)], [])
        here.send(b"0 next")
        for descriptor in many:
            os.close(descriptor)
        await other.until(lambda: len(other.packets) == 1)
        assert other.packets == [(b"0 next", [])] and other.channel.refused == 2
        here.close()
        await other.until(lambda: bool(other.reasons))

    checked(asyncio.run, main)


def test_a_passing_shortage_of_the_kernel_delays_a_packet_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        one, other = map(End, fdpass.pair())
        original, failures = Channel._send_packet, [errno.ETOOMANYREFS, errno.ENOBUFS]

        def failing(self: Channel, frame: bytes, descriptors: tuple[int, ...]) -> None:
            if failures:
                raise OSError(failures.pop(), "short of something")
            original(self, frame, descriptors)

        monkeypatch.setattr(Channel, "_send_packet", failing)
        one.channel.send(b"1 first", [pipe_with(b"held")])
        one.channel.send(b"0 second")
        await other.until(lambda: len(other.packets) == 2)
        assert [frame for frame, _ in other.packets] == [b"1 first", b"0 second"]
        assert os.read(other.packets[0][1][0], 9) == b"held"
        os.close(other.packets[0][1][0])
        one.channel.close()
        other.channel.close()

    checked(asyncio.run, main)


@both_loops
def test_a_peer_that_is_gone_is_reported_once_and_not_from_within_send(run: Run) -> None:
    async def main() -> None:
        here, there = fdpass.pair()
        one = End(here)
        there.close()
        one.channel.send(b"1 into the void", [pipe_with(b"")])
        assert one.reasons == []
        await one.until(lambda: bool(one.reasons))
        await asyncio.sleep(0)
        assert len(one.reasons) == 1 and one.channel.is_closed

    checked(run, main)
