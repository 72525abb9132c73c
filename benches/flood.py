"""What a flood of strangers costs others: latency of calls and of new connections beside it, sockets and memory after it.

The flood comes from a process of its own, over loopback, with connections of every kind that leads nowhere, as fast as it can. The others
are a client that calls, one call after another, and one that connects anew, from another address. Options: --plain for a server without TLS
and tokens, --seconds N. Bound: beside the flood no call fails, and nothing of it is left 15 s later.
"""
from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import resource
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path

import psutil
import uvloop

from benches.certificates import Secured
from benches.tree import ROOT, Tree, folder, quantile, server
from fusee_mp import Client, Ctx, Worker, workflow
from fusee_mp.wire import messages as m
from fusee_mp.wire.preface import ConnectionKind, Preface

SHARDS = 2
# Strangers at once who stay for a second, and who are gone again at once.
STAYING, PASSING = 1500, 64
SETTLED_S = 15.0


@workflow
async def echo(ctx: Ctx, value: int) -> int:
    return value


# The flood, in its own process.


def hello_of_tls() -> bytes:
    outgoing = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="x").do_handshake()
    return outgoing.read()


def kinds() -> list[tuple[bytes, bool]]:
    """What is sent, and whether the connection is then left open for a second."""
    prefaces = [Preface(ConnectionKind.CONTROL), Preface(ConnectionKind.WORKER, 0), Preface(ConnectionKind.CLIENT_SHARD, 1),
                Preface(ConnectionKind.CLIENT_ANY)]
    tls, challenge = hello_of_tls(), m.encode(m.Challenge("x", bytes(32)))
    behind = [(os.urandom(200), False), (b"", True), (tls, True), (tls[:50], True), (tls[:60] + os.urandom(100), False), (challenge, True)]
    alone = [(os.urandom(64), False), (b"", True), (b"GET / HTTP/1.1\r\n\r\n", False), (Preface(ConnectionKind.CONTROL).encode()[:9], True)]
    return alone + [(preface.encode() + data, stays) for preface in prefaces for data, stays in behind]


async def flood(host: str, port: int, seconds: float) -> None:
    loop, end, count, all_kinds = asyncio.get_running_loop(), time.monotonic() + seconds, 0, kinds()

    async def one(kind: tuple[bytes, bool]) -> None:
        sock = socket.socket()
        sock.setblocking(False)
        with sock, contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(1):
                await loop.sock_connect(sock, (host, port))
                await loop.sock_sendall(sock, kind[0])
                if kind[1]:
                    await asyncio.sleep(1)

    async def many(own: list[tuple[bytes, bool]]) -> None:
        nonlocal count
        while time.monotonic() < end:
            count += 1
            await one(own[count % len(own)])

    staying, passing = ([kind for kind in all_kinds if kind[1] is stays] for stays in (True, False))
    await asyncio.gather(*(many(own) for own, at_once in ((staying, STAYING), (passing, PASSING)) for _ in range(at_once)))
    print(count, flush=True)


# The others.


async def calls_ms(client: Client, seconds: float, word: str) -> list[float]:
    times, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.perf_counter()
        assert await client.execute(echo, f"{word}-{len(times)}", 1) == 1
        times.append((time.perf_counter() - began) * 1000)
        await asyncio.sleep(0.001)
    return times


async def connections_ms(host: str, port: int, secured: Secured | None, seconds: float) -> list[float]:
    """Of a client that connects anew again and again, through another address of this machine."""
    times, end = [], time.monotonic() + seconds
    async with _through("127.0.0.2", host, port) as address:
        while time.monotonic() < end:
            began = time.perf_counter()
            async with Client.connect(address, **(secured.given if secured else {})):
                times.append((time.perf_counter() - began) * 1000)
            await asyncio.sleep(0.02)
    return times


@contextlib.asynccontextmanager
async def _through(source: str, host: str, port: int):  # type: ignore[no-untyped-def]
    """A forwarder whose connections come from `source`."""

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
        writer.close()

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        other_reader, other = await asyncio.open_connection(host, port, local_addr=(source, 0))
        await asyncio.gather(carry(reader, other), carry(other_reader, writer))

    forwarder = await asyncio.start_server(accepted, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{forwarder.sockets[0].getsockname()[1]}"
    finally:
        forwarder.close()


def figures(times: list[float]) -> str:
    return f"p50 {quantile(times, 0.5):6.2f} ms  p99 {quantile(times, 0.99):7.2f}  most {max(times):7.2f}  ({len(times)})"


def state(tree: Tree) -> dict[str, tuple[int, float]]:
    """Internet sockets and MiB of the router and the shard processes."""
    found = {}
    for number, process in enumerate(tree.members()):
        if number == 0 or "fusee_mp.shardproc" in process.cmdline():
            name = "router" if number == 0 else f"shard {process.cmdline()[-1].partition(chr(34) + 'shard' + chr(34) + ': ')[2][0]}"
            found[name] = len(process.net_connections("inet")), process.memory_info().rss / (1 << 20)
    return found


async def measure(tree: Tree, secured: Secured | None, seconds: float) -> bool:
    host, _, port = tree.address.rpartition(":")
    given = secured.given if secured else {}
    async with Worker.connect(tree.address, workflows=[echo], **given), Client.connect(tree.address, **given) as client:
        await calls_ms(client, 2, "warm")
        before = state(tree)
        results: dict[str, tuple[list[float], list[float]]] = {}
        for word in ("quiet", "flood"):
            flooding = None
            if word == "flood":
                command = [sys.executable, "-m", "benches.flood", "--flood", tree.address, "--seconds", str(seconds)]
                flooding = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
                await asyncio.sleep(1)
            part = seconds - 2
            calls, connections = await asyncio.gather(calls_ms(client, part, word), connections_ms(host, int(port), secured, part))
            results[word] = calls, connections
            if flooding is not None:
                strangers = int((await asyncio.to_thread(flooding.communicate))[0])
        for word, (calls, connections) in results.items():
            print(f"{word}: calling {figures(calls)};  connecting {figures(connections)}")
        print(f"flood: {strangers} connections, {strangers / seconds:.0f} a second")
        await asyncio.sleep(SETTLED_S)
        after = state(tree)
    for name, (sockets, mib) in after.items():
        print(f"{name:8} sockets {before[name][0]} -> {sockets}   memory {before[name][1]:.1f} -> {mib:.1f} MiB")
    return all(after[name][0] <= before[name][0] for name in before)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--flood", metavar="ADDRESS")
    options = parser.parse_args()
    if options.flood:
        host, _, port = options.flood.rpartition(":")
        os.nice(19)  # its own work would be that of other machines
        resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
        uvloop.run(flood(host, int(port), options.seconds))
        return 0
    psutil.Process()  # fails here, not after the flood
    with folder() as place:
        secured = None if options.plain else Secured(place)
        with server(Path(place) / "data", SHARDS, *(secured.options if secured else ())) as tree:
            return 0 if uvloop.run(measure(tree, secured, options.seconds)) else 1


if __name__ == "__main__":
    sys.exit(main())
