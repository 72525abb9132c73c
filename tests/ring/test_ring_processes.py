# Rings and links between real processes: inherited and passed descriptors, killed peers, lost wake-ups.
from __future__ import annotations

import asyncio
import contextlib
import os
import random
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import uvloop
from peers import TIMEOUT_SECONDS, Ends, forked, peer, sample_frames

from fusee_mp.ring import doorbell, fdpass, layout, region
from fusee_mp.ring.doorbell import Doorbell
from fusee_mp.ring.link import LinkFds, pair
from fusee_mp.ring.region import Region
from fusee_mp.ring.ring import RingReader, RingWriter

ROOT = Path(__file__).parents[2]


async def echo(ends: LinkFds) -> None:
    end: Ends = Ends(ends, lambda frame: end.link.send(frame))
    assert await end.closed() == "the peer closed the link"


@pytest.mark.parametrize("ring_bytes", [4096, 1 << 20])
def test_thousands_of_frames_of_all_sizes_come_back_from_another_process_in_order(ring_bytes: int) -> None:
    async def main(ends: LinkFds) -> None:
        end = Ends(ends)
        for frame in sample_frames(2, 3000, 5000):
            end.link.send(frame)
            if end.link.queued_bytes > 200_000:
                await end.link.drained()
        await end.until(lambda: len(end.frames) == 3000)
        assert end.frames == list(sample_frames(2, 3000, 5000))
        end.link.close()

    mine, theirs = pair(1, ring_bytes)
    with peer(mine, theirs, echo):
        uvloop.run(main(mine))


def test_frames_larger_than_the_ring_come_back_from_another_process() -> None:
    async def main(ends: LinkFds) -> None:
        end = Ends(ends)
        large = [bytes([number]) * (3_000_000 + number) for number in range(3)]
        for frame in large:
            end.link.send(frame)
            end.link.send(b"small")
        await end.until(lambda: len(end.frames) == 6)
        assert end.frames == [frame for one in large for frame in (one, b"small")]
        end.link.close()

    mine, theirs = pair(1, 65536)
    with peer(mine, theirs, echo):
        uvloop.run(main(mine))


def test_one_frame_at_a_time_wakes_sleepers_on_both_sides_every_time() -> None:
    async def main(ends: LinkFds) -> None:
        chance = random.Random(3)
        end = Ends(ends)
        for number in range(1500):
            end.link.send(b"%d" % number)
            await end.until(lambda number=number: len(end.frames) == number + 1)  # type: ignore[misc]
            for _ in range(chance.choice((0, 5, 9, 10, 11, 12, 15))):
                await asyncio.sleep(0)
        end.link.close()

    mine, theirs = pair(1)
    with peer(mine, theirs, echo):
        uvloop.run(main(mine))


async def flood(ends: LinkFds) -> None:
    end = Ends(ends)
    number = 0
    while True:
        end.link.send(number.to_bytes(8, "little") * (number % 300))
        number += 1
        if end.link.queued_bytes > 100_000:
            await end.link.drained()
        elif number % 64 == 0:
            await asyncio.sleep(0)


@pytest.mark.parametrize("trial", range(12))
def test_a_peer_killed_while_it_writes_leaves_whole_frames_in_order_and_is_noticed(trial: int) -> None:
    async def main(ends: LinkFds, child: int) -> None:
        end = Ends(ends)
        await end.until(lambda: len(end.frames) > trial * 100)
        os.kill(child, signal.SIGKILL)
        assert await end.closed() == "the peer's process ended"
        assert all(frame == number.to_bytes(8, "little") * (number % 300) for number, frame in enumerate(end.frames))

    mine, theirs = pair(1, 16384)
    with peer(mine, theirs, flood) as child:
        uvloop.run(main(mine, child))


def test_a_peer_killed_between_writing_and_publishing_leaves_no_trace_of_the_frame() -> None:
    def write_and_die(ends: LinkFds) -> None:
        attached = Region.attach(ends.send_region, ends.generation)
        writer = RingWriter(attached)
        assert writer.try_write(b"whole") and writer.try_write(bytes(layout.piece_max(4096)), more=True)
        tail = attached.words[layout.WORD_TAIL]
        assert writer.try_write(b"never published")
        attached.words[layout.WORD_TAIL] = tail
        os.kill(os.getpid(), signal.SIGKILL)

    async def main(ends: LinkFds) -> None:
        end = Ends(ends)
        assert await end.closed() == "the peer's process ended"
        assert end.frames == [b"whole"]

    mine, theirs = pair(1, 4096)

    def run() -> None:
        mine.close()
        write_and_die(theirs)

    with forked(run):
        theirs.close()
        asyncio.run(main(mine))


def test_a_peer_that_damages_its_ring_costs_the_link_and_not_the_process() -> None:
    async def damaging(ends: LinkFds) -> None:
        attached = Region.attach(os.dup(ends.send_region), ends.generation)
        end = Ends(ends)
        end.link.send(b"good")
        await end.until(lambda: end.frames == [b"go on"])
        attached.words[layout.WORD_TAIL] += 1 << 40
        end.link._bell.ring()
        assert await end.closed() == "the peer closed the link, because what it read from this side was damaged"

    async def main(ends: LinkFds) -> None:
        end = Ends(ends)
        await end.until(lambda: end.frames == [b"good"])
        end.link.send(b"go on")
        assert "a ring was damaged by the process at its other end" in await end.closed()

    mine, theirs = pair(1, 4096)
    with peer(mine, theirs, damaging):
        uvloop.run(main(mine))


def test_a_peer_that_hears_no_ring_and_makes_all_it_has_block_blocks_nobody() -> None:
    def ring_and_hear() -> None:
        bell = Doorbell(mine.life)
        for _ in range(10_000):
            bell.ring()
        assert bell.clear()
        bell.clear()

    mine, theirs = pair(1)
    copies = [os.dup(descriptor) for descriptor in (*mine.descriptors()[:-1], *theirs.descriptors())]
    for descriptor in copies:
        os.set_blocking(descriptor, True)
    os.write(theirs.life, b"ring")
    with forked(ring_and_hear):
        pass
    for descriptor in copies:
        os.close(descriptor)
    mine.close()
    theirs.close()


ECHO_PROGRAM = """
import asyncio, sys
from fusee_mp.ring.link import Link, LinkFds
async def main():
    loop = asyncio.get_running_loop()
    ended = loop.create_future()
    link = Link(loop, LinkFds.of(9, [int(text) for text in sys.argv[1:]]), lambda frame: link.send(frame), ended.set_result)
    print(await ended)
asyncio.run(main())
"""


def test_a_new_process_takes_its_end_by_inheritance() -> None:
    async def main(ends: LinkFds) -> None:
        end = Ends(ends)
        end.link.send(b"over exec")
        await end.until(lambda: end.frames == [b"over exec"])
        end.link.close()

    mine, theirs = pair(9)
    command = [sys.executable, "-c", ECHO_PROGRAM, *map(str, theirs.descriptors())]
    with subprocess.Popen(command, pass_fds=theirs.descriptors(), cwd=ROOT, stdout=subprocess.PIPE) as child:
        theirs.close()
        asyncio.run(main(mine))
        assert child.communicate(timeout=TIMEOUT_SECONDS)[0] == b"the peer closed the link\n"
    assert child.returncode == 0


def test_a_running_process_takes_its_end_over_a_channel() -> None:
    here, there = fdpass.pair()

    async def theirs() -> None:
        loop = asyncio.get_running_loop()
        taken: asyncio.Future[LinkFds] = loop.create_future()
        channel = fdpass.Channel(
            loop, there, lambda frame, got: taken.set_result(LinkFds.of(int(frame), got)), print, lambda frame: LinkFds.COUNT
        )
        await echo(await taken)
        channel.close()

    async def mine() -> None:
        loop = asyncio.get_running_loop()
        ended = loop.create_future()
        channel = fdpass.Channel(loop, here, lambda frame, got: None, ended.set_result, lambda frame: 0)
        kept, passed = pair(12)
        channel.send(b"12", passed.descriptors())
        end = Ends(kept)
        end.link.send(b"hello")
        await end.until(lambda: end.frames == [b"hello"])
        end.link.close()
        assert await asyncio.wait_for(ended, TIMEOUT_SECONDS) == "the peer closed the channel, or its process ended"

    def run() -> None:
        here.close()
        uvloop.run(theirs())

    with forked(run):
        there.close()
        uvloop.run(mine())


ROUNDS = 300_000
BUDGET_SECONDS = 8  # on a busy machine fewer rounds, not more time
LOST_SECONDS = 20


def test_no_wake_up_is_lost_in_hundreds_of_thousands_of_rounds() -> None:
    """The reader falls asleep at the moment the writer writes. Asleep it looks at nothing but its bell, as an event loop does."""
    attached = Region.attach(region.create(4096, 1), 1)
    mine, theirs = map(Doorbell, doorbell.pair())
    with forked(lambda: read_all(RingReader(attached), theirs)):
        rounds = write_all(RingWriter(attached), attached, mine)
    attached.detach()
    mine.close()
    theirs.close()
    assert rounds > 1000


def read_all(reader: RingReader, bell: Doorbell) -> None:
    chance = random.Random(6)
    number, frame = -1, b""
    while frame != b"end":
        frame = next_frame(reader, bell)
        reader.release()
        number += 1
        assert frame in (b"%d" % number, b"end")
        pause(chance)


def next_frame(reader: RingReader, bell: Doorbell) -> bytes:
    # More than once: a ring may come after the reader found the frame by itself, and the next sleep then ends early.
    while (frame := reader.read()) is None:
        if reader.wait_for_data():
            rung(bell)
            reader.awake()
    return frame


def write_all(writer: RingWriter, attached: Region, bell: Doorbell) -> int:
    chance = random.Random(5)
    end = time.monotonic() + BUDGET_SECONDS
    for number in range(ROUNDS):
        pause(chance)
        last = number + 1 == ROUNDS or time.monotonic() > end
        assert writer.try_write(b"end" if last else b"%d" % number)
        if writer.must_ring():
            bell.ring()
        if last:
            return number
        until_read(attached)
    raise AssertionError("the last round returns")


def until_read(attached: Region) -> None:
    tail, looks, end = attached.words[layout.WORD_TAIL], 0, 0.0
    while attached.words[layout.WORD_HEAD] != tail:
        looks += 1
        if looks % 1000 == 0:
            os.sched_yield()
            end = end or time.monotonic() + LOST_SECONDS * 2
            assert time.monotonic() < end, "the reader stopped"


def pause(chance: random.Random) -> None:
    """Up to a few microseconds: on both sides, so that in one round of ten falling asleep and writing coincide."""
    for _ in range(chance.getrandbits(6)):
        pass


def rung(bell: Doorbell) -> None:
    """Return at the first ring; looking without blocking at first keeps a round short."""
    line = socket.socket(fileno=os.dup(bell.descriptor))
    line.setblocking(False)
    with line:
        for _ in range(200):
            with contextlib.suppress(BlockingIOError):
                assert line.recv(64)
                return
    assert select.select([bell.descriptor], [], [], LOST_SECONDS)[0], "a wake-up was lost"
    bell.clear()
