"""A link in the place of a socket, and the offer of one over a Unix socket."""
from __future__ import annotations

import array
import asyncio
import os
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from fusee_mp.errors import ProtocolError, Unavailable
from fusee_mp.ring import layout, offer
from fusee_mp.ring.doorbell import Doorbell
from fusee_mp.ring.link import SPIN_TURNS, LinkFds, pair
from fusee_mp.ring.offer import Offer
from fusee_mp.ring.region import Region
from fusee_mp.ring.transport import HIGH_WATER_BYTES, LinkTransport
from fusee_mp.wire.hangup import Hangup

Run = Callable[[Coroutine[Any, Any, Any]], Any]
both_loops = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])


class Told(asyncio.Protocol):
    """Notes what it is told."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.told: list[str] = []
        self.errors: list[Exception | None] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.told.append("made")

    def data_received(self, data: bytes) -> None:
        self.data += data

    def pause_writing(self) -> None:
        self.told.append("pause")

    def resume_writing(self) -> None:
        self.told.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.told.append("lost")
        self.errors.append(exc)


def two(ring_bytes: int = 4096) -> tuple[LinkTransport, Told, LinkTransport, Told, LinkFds]:
    loop, mine, theirs = asyncio.get_running_loop(), Told(), Told()
    one, other = pair(3, ring_bytes)
    copy = LinkFds.of(3, [os.dup(fd) for fd in one.descriptors()])
    transports = LinkTransport(loop, one, mine), LinkTransport(loop, other, theirs)
    for transport in transports:
        transport.begin()
    return transports[0], mine, transports[1], theirs, copy


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():
            await asyncio.sleep(0)


@both_loops
def test_bytes_go_both_ways_and_the_end_is_told_once_to_both(run: Run) -> None:
    async def main() -> None:
        one, mine, other, theirs, copy = two()
        copy.close()
        one.write(b"hello")
        other.write(b"x" * 100_000)  # over many times the ring
        await until(lambda: theirs.data == b"hello" and len(mine.data) == 100_000)
        assert not one.is_closing() and one.get_extra_info("peercert") is None
        one.close()
        one.close()
        assert mine.told == ["made"], "not from within the call"
        await until(lambda: "lost" in mine.told and "lost" in theirs.told)
        assert mine.errors == [None] and theirs.errors == [None]
        one.write(b"late")
        other.abort()
        await asyncio.sleep(0)
        assert mine.told.count("lost") == theirs.told.count("lost") == 1

    run(asyncio.sleep(0))
    before = len(os.listdir("/proc/self/fd"))
    run(main())
    assert len(os.listdir("/proc/self/fd")) == before


@both_loops
def test_closing_sends_what_waits_and_the_writer_is_paused_meanwhile(run: Run) -> None:
    async def main() -> None:
        one, mine, other, theirs, copy = two()
        copy.close()
        other.pause_reading()
        whole = os.urandom(2 * HIGH_WATER_BYTES)
        one.write(whole)
        assert mine.told == ["made", "pause"] and one.get_write_buffer_size() > HIGH_WATER_BYTES
        one.close()
        await asyncio.sleep(0.01)
        assert not theirs.data and "lost" not in mine.told, "held back"
        other.resume_reading()
        await until(lambda: "lost" in theirs.told)
        assert bytes(theirs.data) == whole and mine.told == ["made", "pause", "resume", "lost"]

    run(main())


@both_loops
def test_what_a_reader_that_holds_back_had_taken_stays_in_order(run: Run) -> None:
    async def main() -> None:
        one, _, other, theirs, copy = two(65536)
        copy.close()
        for number in range(300):
            one.write(number.to_bytes(4, "big"))
            if number % 50 == 0:
                await asyncio.sleep(0)
                other.pause_reading()
                await asyncio.sleep(0.001)
                other.resume_reading()
        await until(lambda: len(theirs.data) == 1200)
        assert bytes(theirs.data) == b"".join(number.to_bytes(4, "big") for number in range(300))
        one.abort()
        await until(lambda: "lost" in theirs.told)

    run(main())


@both_loops
def test_damage_in_shared_memory_ends_the_connection_with_an_error(run: Run) -> None:
    async def main() -> None:
        one, mine, other, theirs, copy = two()
        region = Region.attach(os.dup(copy.send_region), 3)
        copy.close()
        region.words[layout.WORD_TAIL] = 12345
        one._link._bell.ring()
        await until(lambda: "lost" in theirs.told and "lost" in mine.told)
        assert isinstance(theirs.errors[0], ConnectionError)
        region.detach()

    run(main())


def test_an_offer_is_received_over_the_socket_which_becomes_the_life_line() -> None:
    async def main() -> None:
        loop, here, there = asyncio.get_running_loop(), *socket.socketpair()
        for sock in (here, there):
            sock.setblocking(False)
        made = Offer(4096)
        made.send(here)
        generation, descriptors = await offer.receive(loop, there)
        mine, theirs = Told(), Told()
        one = LinkTransport(loop, made.take(here), mine)
        other = LinkTransport(loop, LinkFds.of(generation, (*descriptors, there.detach())), theirs)
        made.close()
        one.write(b"over rings")
        await until(lambda: theirs.data == b"over rings")
        other.abort()
        await until(lambda: "lost" in mine.told)

    before = len(os.listdir("/proc/self/fd"))
    asyncio.run(main())
    assert len(os.listdir("/proc/self/fd")) == before


@both_loops
def test_while_the_loop_is_kept_awake_nobody_is_rung(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    rings: list[int] = []
    ring = Doorbell.ring
    monkeypatch.setattr(Doorbell, "ring", lambda self: (rings.append(0), ring(self)))

    async def main() -> None:
        one, mine, other, theirs, copy = two()
        copy.close()
        is_awake = True
        one.stay_awake_while(lambda: is_awake)
        for round in (1, 2):
            for _ in range(10 * SPIN_TURNS):
                await asyncio.sleep(0)
            rings.clear()
            other.write(b"hello")
            await until(lambda round=round: mine.data == b"hello" * round)  # type: ignore[misc]
            assert bool(rings) is not is_awake
            is_awake = False
        one.abort()
        other.abort()
        await until(lambda: "lost" in mine.told and "lost" in theirs.told)

    run(main())


def test_the_end_of_a_link_is_seen_before_the_loop_hears_of_it() -> None:
    async def main() -> None:
        one, mine, other, theirs, copy = two()
        copy.close()
        hangup = Hangup(one)
        other.write(b"what was sent before does not hide it")
        assert not hangup.has_come()
        other.abort()
        assert hangup.has_come() and mine.told == ["made"]  # nothing was awaited meanwhile
        one.abort()
        await until(lambda: "lost" in mine.told and "lost" in theirs.told)

    asyncio.run(main())


@pytest.mark.parametrize(("data", "count"), [(b"12345678", 0), (b"12345678", 1), (b"1234", 2), (b"12345678", 4)])
def test_what_is_no_offer_is_refused_and_its_descriptors_are_closed(data: bytes, count: int) -> None:
    async def main() -> None:
        loop, here, there = asyncio.get_running_loop(), *socket.socketpair()
        with here, there:
            there.setblocking(False)
            sent = [os.open("/dev/null", os.O_RDONLY) for _ in range(count)]
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", sent))] if sent else []
            here.sendmsg([data], ancillary)
            for descriptor in sent:
                os.close(descriptor)
            before = len(os.listdir("/proc/self/fd"))
            with pytest.raises(ProtocolError, match="expected the 2 descriptors of a ring pair"):
                await offer.receive(loop, there)
            assert len(os.listdir("/proc/self/fd")) == before

    asyncio.run(main())


def test_an_offer_that_is_not_sent_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    before = len(os.listdir("/proc/self/fd"))
    Offer(4096).close()
    here, there = socket.socketpair()
    there.close()
    made = Offer(4096)
    with here, pytest.raises(OSError):
        made.send(here)
    made.close()
    monkeypatch.setattr("fusee_mp.ring.region.require_platform", lambda: (_ for _ in ()).throw(Unavailable("no rings here")))
    with pytest.raises(Unavailable):
        Offer(4096)
    assert len(os.listdir("/proc/self/fd")) == before
