# Links within one process, on asyncio's loop and on uvloop: every path of one end.
from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st
from peers import Ends, sample_frames

from fusee_mp.bounds import FRAME_BYTES_MAX, RING_OFFERED_BYTES_MAX
from fusee_mp.errors import ProtocolError, Rejected, Unavailable
from fusee_mp.ring import layout, region
from fusee_mp.ring.doorbell import Doorbell
from fusee_mp.ring.link import Link, LinkFds, pair
from fusee_mp.ring.region import Region
from fusee_mp.ring.ring import RingWriter

Run = Callable[[Coroutine[Any, Any, Any]], Any]
both_loops = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def mapped_again(ends: LinkFds) -> Region:
    """What `ends` sends through, as its peer could write to it."""
    return Region.attach(os.dup(ends.send_region), ends.generation)


@both_loops
def test_frames_go_both_ways_and_nothing_stays_open_after_the_end(run: Run) -> None:
    async def main() -> None:
        one, other = map(Ends, pair(1, 4096))
        for frame in sample_frames(1, 500, 6000):
            one.link.send(frame)
            other.link.send(frame[::-1])
        await one.until(lambda: len(one.frames) == 500)
        await other.until(lambda: len(other.frames) == 500)
        assert other.frames == list(sample_frames(1, 500, 6000))
        assert one.frames == [frame[::-1] for frame in other.frames]
        assert one.link.queued_bytes == other.link.queued_bytes == 0
        one.link.close()
        assert await other.closed() == "the peer closed the link"
        assert one.reasons == [] and one.link.is_closed and other.link.is_closed

    run(asyncio.sleep(0))  # what uvloop opens once for the process
    before = open_descriptors()
    run(main())
    assert open_descriptors() == before


@both_loops
def test_a_full_ring_queues_in_memory_in_order_and_drains_as_room_is_made(run: Run) -> None:
    async def main() -> None:
        mine, theirs = pair(1, 4096)
        one = Ends(mine)
        sent = [bytes([number % 251]) * 500 for number in range(100)]
        for frame in sent:
            one.link.send(frame)
        assert one.link.queued_bytes > 40_000
        drained = asyncio.ensure_future(one.link.drained())
        await asyncio.sleep(0)
        assert not drained.done()
        other = Ends(theirs)
        await drained
        assert one.link.queued_bytes == 0
        await other.until(lambda: len(other.frames) == 100)
        assert other.frames == sent
        await one.link.drained()
        one.link.close()
        other.link.close()

    run(main())


@both_loops
def test_a_frame_larger_than_the_ring_passes_in_pieces_and_one_over_the_bound_is_refused(run: Run) -> None:
    async def main() -> None:
        one, other = map(Ends, pair(1, 65536))
        large = bytes(range(256)) * (FRAME_BYTES_MAX // 256)
        with pytest.raises(Rejected, match="send less at once"):
            one.link.send(large + b"x")
        for frame in (b"before", large, b"after"):
            one.link.send(frame)
        await other.until(lambda: len(other.frames) == 3)
        assert other.frames == [b"before", large, b"after"]
        one.link.close()
        other.link.close()

    run(main())


def test_an_idle_link_makes_no_call_and_a_busy_one_rings_once_for_a_thousand_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    counted(monkeypatch, calls, "ring")
    counted(monkeypatch, calls, "clear")

    async def main() -> None:
        one, other = map(Ends, pair(1))
        await asleep(one.link, other.link)
        turns = counted_turns(one.link, other.link)
        await asyncio.sleep(0.05)
        assert not turns and not calls
        for _ in range(1000):
            one.link.send(b"x")
        await other.until(lambda: len(other.frames) == 1000)
        assert calls == ["ring", "clear"]
        one.link.close()
        other.link.close()

    asyncio.run(main())


def counted(monkeypatch: pytest.MonkeyPatch, calls: list[str], name: str) -> None:
    original = getattr(Doorbell, name)

    def counting(bell: Doorbell) -> Any:
        calls.append(name)
        return original(bell)

    monkeypatch.setattr(Doorbell, name, counting)


async def asleep(*links: Link) -> None:
    async with asyncio.timeout(10):
        while not all(link._is_asleep for link in links):
            await asyncio.sleep(0)


def counted_turns(*links: Link) -> list[Link]:
    turns: list[Link] = []
    for link in links:
        def counting(link: Link = link, turn: Callable[[], None] = link._turn) -> None:
            turns.append(link)
            turn()
        link._turn = counting  # type: ignore[method-assign]
    return turns


@both_loops
def test_a_handler_that_raises_loses_no_later_frame(run: Run) -> None:
    async def main() -> None:
        mine, theirs = pair(1)
        problems: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context))
        got: list[bytes] = []

        def handle(frame: bytes) -> None:
            if frame == b"bad":
                raise ValueError("handler")
            got.append(frame)

        one, other = Ends(mine), Ends(theirs, handle)
        for frame in (b"1", b"bad", b"2", b"bad", b"3"):
            one.link.send(frame)
        one.link.close()
        assert await other.closed() == "the peer closed the link"
        assert got == [b"1", b"2", b"3"]
        assert [str(problem["exception"]) for problem in problems] == ["handler", "handler"]

    run(main())


@both_loops
def test_a_handler_may_answer_and_may_close(run: Run) -> None:
    async def main() -> None:
        mine, theirs = pair(1)
        one = Ends(mine)

        def handle(frame: bytes) -> None:
            other.link.send(b"answer to " + frame)
            if frame == b"last":
                other.link.close()

        other = Ends(theirs, handle)
        for frame in (b"first", b"last", b"too late"):
            one.link.send(frame)
        assert await one.closed() == "the peer closed the link"
        assert one.frames == [b"answer to first", b"answer to last"]
        with pytest.raises(Unavailable, match="the link is closed: the peer closed the link"):
            one.link.send(b"x")
        with pytest.raises(Unavailable):
            await one.link.drained()

    run(main())


def test_what_was_queued_at_the_end_is_reported_to_who_waits_for_it() -> None:
    async def main() -> None:
        mine, theirs = pair(1, 4096)
        one = Ends(mine)
        one.link.send(bytes(100_000))
        waiting = asyncio.ensure_future(one.link.drained())
        await asyncio.sleep(0)
        theirs.close()
        with pytest.raises(Unavailable, match="the peer's process ended"):
            await waiting
        assert one.link.queued_bytes == 0 and one.reasons == ["the peer's process ended"]

    asyncio.run(main())


def test_an_owner_that_learns_of_the_peers_end_first_says_so_and_still_gets_its_last_frames() -> None:
    async def main() -> None:
        one, other = map(Ends, pair(1))
        other.link.send(b"last words")
        one.link.peer_lost("shard 3 was killed")
        one.link.peer_lost("and again")
        assert one.frames == []
        assert await one.closed() == "shard 3 was killed"
        assert one.frames == [b"last words"] and one.reasons == ["shard 3 was killed"]
        other.link.close()

    asyncio.run(main())


@both_loops
def test_damage_closes_the_link_after_the_frames_before_it_and_the_writer_learns_why(run: Run) -> None:
    async def main() -> None:
        mine, theirs = pair(1)
        shared = mapped_again(mine)
        one = Ends(mine)
        one.link.send(b"good")
        one.link.send(b"damaged")
        shared.words[layout.WORD_RING + 3] ^= 1 << 40
        other = Ends(theirs)
        assert "does not match its CRC-32C" in await other.closed()
        assert other.frames == [b"good"]
        assert await one.closed() == "the peer closed the link, because what it read from this side was damaged"
        shared.detach()

    run(main())


@both_loops
def test_whatever_comes_over_the_life_line_is_a_ring(run: Run) -> None:
    async def main() -> None:
        mine, theirs = pair(1)
        copy = os.dup(theirs.life)
        one, other = Ends(mine), Ends(theirs)
        await asleep(one.link, other.link)
        os.write(copy, os.urandom(100_000))
        other.link.send(b"after it")
        await one.until(lambda: one.frames == [b"after it"])
        os.close(copy)
        one.link.close()
        other.link.close()

    run(main())


def test_a_bell_that_cannot_be_rung_ends_the_link() -> None:
    async def main() -> None:
        one, other = map(Ends, pair(1))
        with socket.socket(fileno=os.dup(other.link.life_line)) as line:
            line.shutdown(socket.SHUT_RD)
        one.link._bell.ring()
        assert await one.closed() == "the peer's process ended"
        assert await other.closed() == "the peer closed the link"

    asyncio.run(main())


@pytest.mark.parametrize("peer_bytes", [65536, RING_OFFERED_BYTES_MAX * 2])
def test_an_offered_link_has_small_rings_and_whole_frames(peer_bytes: int) -> None:
    async def main() -> None:
        before = open_descriptors()
        mine, theirs = pair(1, peer_bytes)
        shared = mapped_again(theirs)
        reasons: list[str] = []
        if peer_bytes > RING_OFFERED_BYTES_MAX:
            with pytest.raises(ProtocolError, match="offer a smaller one"):
                Link(asyncio.get_running_loop(), mine, print, print, is_offered=True)
        else:
            Link(asyncio.get_running_loop(), mine, print, reasons.append, is_offered=True)
            RingWriter(shared).try_write(bytes(layout.piece_max(peer_bytes)), more=True)
            async with asyncio.timeout(10):
                while not reasons:
                    await asyncio.sleep(0)
            assert "is not the whole of its frame" in reasons[0]
        shared.detach()
        theirs.close()
        assert open_descriptors() == before

    asyncio.run(main())


SCRIBBLES = st.lists(
    st.tuples(
        st.sampled_from([layout.WORD_TAIL, layout.WORD_HEAD, layout.WORD_WRITER_WAITS, layout.WORD_READER_WAITS, layout.WORD_STATE])
        | st.integers(layout.WORD_RING, layout.WORD_RING + 511),
        st.integers(0, 2**64 - 1) | st.sampled_from([0, 8, 16, 4096]),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=60, deadline=None)
@given(SCRIBBLES, SCRIBBLES, st.lists(st.binary(max_size=2000), min_size=1, max_size=12))
def test_whatever_a_peer_writes_into_shared_memory_ends_the_link_at_worst(
    forward: list[tuple[int, int]], backward: list[tuple[int, int]], frames: list[bytes]
) -> None:
    async def main() -> None:
        problems: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context))
        mine, theirs = pair(1, 4096)
        shared = [mapped_again(mine), mapped_again(theirs)]
        one, other = Ends(mine), Ends(theirs)
        for turn, frame in enumerate(frames):
            if not one.link.is_closed:
                one.link.send(frame)
            await asyncio.sleep(0)
            if turn == len(frames) // 2:
                scribble(shared[0], forward)
                scribble(shared[1], backward)
        for _ in range(30):
            await asyncio.sleep(0)
        assert other.frames == frames[:len(other.frames)]
        for end in (one, other):
            end.link.close()
        for attached in shared:
            attached.detach()
        assert problems == []

    asyncio.run(main())


def scribble(attached: Region, writes: list[tuple[int, int]]) -> None:
    for word, value in writes:
        attached.words[word] = value


def test_a_link_of_another_generation_is_refused_and_everything_closed() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        before = open_descriptors()
        for wrong in (0, 1):
            mine, theirs = pair(7)
            descriptors = list(mine.descriptors())
            os.close(descriptors[wrong])
            descriptors[wrong] = region.create(4096, 6)
            with pytest.raises(ProtocolError, match="generation 7, found 6"):
                Link(loop, LinkFds.of(7, descriptors), print, print)
            theirs.close()
            assert open_descriptors() == before

    asyncio.run(main())


def test_descriptors_that_are_not_three_are_no_link() -> None:
    with pytest.raises(ProtocolError, match="expected 3 descriptors of a link, found 4"):
        LinkFds.of(1, [1, 2, 3, 4])


def test_an_end_that_was_used_before_is_refused() -> None:
    async def main() -> None:
        before = open_descriptors()
        mine, theirs = pair(1)
        copy = LinkFds.of(1, [os.dup(descriptor) for descriptor in mine.descriptors()])
        one = Ends(mine)
        one.link.send(b"x")
        one.link.close()
        with pytest.raises(ProtocolError, match="a restarted process needs new rings"):
            Ends(copy)
        theirs.close()
        assert open_descriptors() == before

    asyncio.run(main())


def test_a_pair_that_cannot_be_made_leaves_nothing_open() -> None:
    before = open_descriptors()
    with pytest.raises(ValueError, match="power of two"):
        pair(1, 1000)
    assert open_descriptors() == before
