"""Links against sockets: ping-pong between two processes, and frames per second one way.

Run: python benches/ring.py [--rounds N] [--frames N] [--bytes N] [--plain]. Each line is one measurement; all use uvloop unless
`--plain`. The receiver of the one-way test answers once, at the end, so the time covers the handling of every frame.
"""
from __future__ import annotations

import argparse
import asyncio
import os
import resource
import socket
import time
from collections.abc import Callable, Coroutine
from functools import partial
from itertools import pairwise
from typing import Any, cast

import uvloop

from fusee_mp.ring.link import Link, LinkFds, pair
from fusee_mp.wire.frames import FrameDecoder, encode_frame

Send = Callable[[bytes], None]
OnFrame = Callable[[Send, bytes], None]
Connect = Callable[[OnFrame, Callable[[], None]], Coroutine[Any, Any, tuple[Send, Callable[[], None]]]]
run: Callable[[Coroutine[Any, Any, None]], None] = uvloop.run


class Stream(asyncio.Protocol):
    """Frames over a socket, as a connection carries them."""

    def __init__(self, on_frame: OnFrame, on_end: Callable[[], None]) -> None:
        self.on_frame, self.on_end, self.decoder = on_frame, on_end, FrameDecoder()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        for frame in self.decoder.feed(data):
            self.on_frame(self.send, frame.body)

    def connection_lost(self, exc: Exception | None) -> None:
        self.on_end()

    def send(self, body: bytes) -> None:
        self.transport.write(encode_frame(1, body))


def over_socket(sock: socket.socket) -> Connect:
    async def connect(on_frame: OnFrame, on_end: Callable[[], None]) -> tuple[Send, Callable[[], None]]:
        _, stream = await asyncio.get_running_loop().create_connection(lambda: Stream(on_frame, on_end), sock=sock)
        return stream.send, stream.transport.close

    return connect


def over_link(ends: LinkFds) -> Connect:
    async def connect(on_frame: OnFrame, on_end: Callable[[], None]) -> tuple[Send, Callable[[], None]]:
        link = Link(asyncio.get_running_loop(), ends, lambda frame: on_frame(link.send, frame), lambda reason: on_end())
        return link.send, link.close

    return connect


def socket_pair() -> tuple[tuple[Connect, Callable[[], None]], tuple[Connect, Callable[[], None]]]:
    one, other = socket.socketpair()
    return (over_socket(one), one.close), (over_socket(other), other.close)


def tcp_pair() -> tuple[tuple[Connect, Callable[[], None]], tuple[Connect, Callable[[], None]]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        other, _ = server.accept()
    for end in (one, other):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return (over_socket(one), one.close), (over_socket(other), other.close)


def link_pair() -> tuple[tuple[Connect, Callable[[], None]], tuple[Connect, Callable[[], None]]]:
    one, other = pair(generation=1)
    return (over_link(one), one.close), (over_link(other), other.close)


async def answering(connect: Connect, every: int) -> None:
    """The peer: answers each frame whose number is a multiple of `every` with the frame itself."""
    ended = asyncio.get_running_loop().create_future()
    count = 0

    def on_frame(send: Send, frame: bytes) -> None:
        nonlocal count
        count += 1
        if count % every == 0:
            send(frame)

    await connect(on_frame, lambda: ended.set_result(None))
    await ended


async def pinging(connect: Connect, rounds: int, size: int, name: str) -> None:
    done = asyncio.get_running_loop().create_future()
    times: list[float] = []
    body = bytes(size)

    def on_frame(send: Send, frame: bytes) -> None:
        times.append(time.perf_counter())
        if len(times) <= rounds:
            send(frame)
        else:
            done.set_result(None)

    send, close = await connect(on_frame, lambda: None)
    before = resource.getrusage(resource.RUSAGE_SELF)
    send(body)
    await done
    after = resource.getrusage(resource.RUSAGE_SELF)
    gaps = sorted((b - a) * 1e6 for a, b in pairwise(times))
    cpu = (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / rounds * 1e6
    p50, p99 = gaps[rounds // 2], gaps[rounds * 99 // 100]
    print(f"{name:12} ping-pong {size} B: p50 {p50:.1f} us, p99 {p99:.1f} us, CPU per side and round {cpu:.1f} us")
    close()


async def flooding(connect: Connect, frames: int, size: int, name: str) -> None:
    done = asyncio.get_running_loop().create_future()
    send, close = await connect(lambda send, frame: done.set_result(None), lambda: None)
    body = bytes(size)
    start = time.perf_counter()
    for number in range(frames):
        send(body)
        if number % 256 == 0:
            await asyncio.sleep(0)
    await done
    seconds = time.perf_counter() - start
    print(f"{name:12} one way {size} B: {frames / seconds:,.0f} frames/s, {frames * size / seconds / 1e6:,.0f} MB/s")
    close()


def between_processes(make: Callable[[], Any], mine: Callable[[Connect], Coroutine[Any, Any, None]], every: int) -> None:
    (here, close_here), (there, close_there) = make()
    child = os.fork()
    if child == 0:
        close_here()
        run(answering(there, every))
        os._exit(0)
    close_there()
    run(mine(here))
    os.waitpid(child, 0)


def main() -> None:
    global run
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=20_000)
    options.add_argument("--frames", type=int, default=200_000)
    options.add_argument("--bytes", type=int, default=64)
    options.add_argument("--plain", action="store_true", help="asyncio's own loop instead of uvloop")
    given = options.parse_args()
    run = asyncio.run if given.plain else uvloop.run
    for name, make in (("link", link_pair), ("socketpair", socket_pair), ("TCP loopback", tcp_pair)):
        between_processes(make, partial(pinging, rounds=given.rounds, size=given.bytes, name=name), 1)
        between_processes(make, partial(flooding, frames=given.frames, size=given.bytes, name=name), given.frames)


if __name__ == "__main__":
    main()
