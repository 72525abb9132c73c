"""A shard process without a log: what the router sees of one, and ways to misbehave.

Started as the real one is. `fake-<shard>.json` beside the data directory says how it misbehaves, and may be changed while it runs:
{"exit": code at start, "words": its GOODBYE before that, "times": only in its first lives, "deaf": true: no answer to STATUS,
"slow_ms": until READY, "hold": true: no end on STOP, "stuck": true: the store does not follow}.
"""
from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from fusee_mp.ring.fdpass import Channel
from fusee_mp.ring.link import Link, LinkFds
from fusee_mp.wire import messages as m
from fusee_mp.wire.frames import Frame, decode_frame
from fusee_mp.wire.stream import Stream

PR_SET_PDEATHSIG = 1


class Connection(Stream):
    """A worker's or a client's; both may LEASE here, and a client's CALL is answered with what this process knows."""

    def __init__(self, shard: FakeShard, preface: bytes) -> None:
        super().__init__()
        self.shard = shard
        self.preface = preface

    def received(self, frame: Frame) -> None:
        message = m.decode(frame)
        if isinstance(message, m.Lease):
            self.shard.lease(self, message, frame.request)
        elif isinstance(message, m.Return):
            self.shard.end_lease("handed back")
        elif isinstance(message, m.Call):
            self.send(m.Reply(json.dumps(self.shard.known()).encode()), frame.request)

    def lost(self, reason: str) -> None:
        self.shard.connections.discard(self)
        if self.shard.holder is self:
            self.shard.end_lease(reason)


class FakeShard:
    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.number: int = options["shard"]
        self.epoch = self.lives = 0
        self.holder: Connection | None = None
        self.holder_name = ""
        self.connections: set[Connection] = set()
        self.links: dict[int, tuple[int, Link]] = {}
        self.heard: list[str] = []
        self.loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[int] = self.loop.create_future()
        # A keeper's stand-in: it ends when its pipe does.
        self.keeper = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        control = socket.socket(fileno=options["control"])
        self.channel = Channel(self.loop, control, self.from_router, self.router_gone, m.descriptors_of)

    @property
    def misbehaviour(self) -> dict[str, Any]:
        path = Path(self.options["data"]).parent / f"fake-{self.number}.json"
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return found

    async def run(self) -> int:
        wrong = self.misbehaviour
        self.lives = self.count_life()
        if "exit" in wrong and self.lives <= wrong.get("times", 1000):
            if "words" in wrong:
                self.tell(m.Goodbye(wrong["words"]))
            return int(wrong["exit"])
        await asyncio.sleep(wrong.get("slow_ms", 0) / 1000)
        self.tell(m.Ready())
        code = await self.ended
        self.end_lease("stopping")
        return code

    def count_life(self) -> int:
        path = Path(self.options["data"]) / f"lives-{self.number}"
        lives = int(path.read_text()) + 1 if path.exists() else 1
        path.write_text(str(lives))
        return lives

    def tell(self, message: m.Message, request: int = 0) -> None:
        if not self.channel.is_closed:
            self.channel.send(m.encode(message, request, self.number))

    def from_router(self, data: bytes, descriptors: list[int]) -> None:
        frame = decode_frame(data)
        match m.decode(frame):
            case m.Adopt(preface):
                self.loop.create_task(self.adopt(preface, descriptors[0]))
            case m.Ring(shard, generation):
                self.link(shard, generation, descriptors)
            case m.Revoke(_, reason):
                self.heard.append(f"revoke: {reason}")
                self.end_lease(reason)
            case m.Status() if not self.misbehaviour.get("deaf"):
                self.tell(m.Status(self.facts()), frame.request)
            case m.Stop() if not self.misbehaviour.get("hold"):
                self.finish(0)

    async def adopt(self, preface: bytes, descriptor: int) -> None:
        connection = Connection(self, preface)
        self.connections.add(connection)
        sock = socket.socket(fileno=descriptor)
        try:
            await self.loop.connect_accepted_socket(lambda: connection, sock)
        except OSError:
            self.connections.discard(connection)
            sock.close()

    def link(self, shard: int, generation: int, descriptors: list[int]) -> None:
        if shard in self.links:
            self.links[shard][1].close()
        ends = LinkFds.of(generation, descriptors)
        link = Link(self.loop, ends, lambda frame: self.heard.append(frame.decode()), lambda reason: None)
        self.links[shard] = (generation, link)
        link.send(f"from {self.number} over {generation}".encode())

    def lease(self, connection: Connection, ask: m.Lease, request: int) -> None:
        if self.holder is not None:
            connection.send(m.Error("busy", f"shard {self.number} is held"), request)
            return
        self.epoch += 1
        self.holder, self.holder_name = connection, f"{ask.worker}/{ask.instance}"
        connection.send(m.Granted(self.epoch, 0, 0, 0, b""), request, self.number, self.epoch)
        self.tell(m.Held(self.number, self.holder_name, self.epoch))

    def end_lease(self, reason: str) -> None:
        if self.holder is not None:
            holder, self.holder, self.holder_name = self.holder, None, ""
            holder.send(m.Revoked(reason), 0, self.number, self.epoch)
            holder.close(reason)
            self.tell(m.Free(self.number))

    def facts(self) -> dict[str, Any]:
        applied = 1 if self.misbehaviour.get("stuck") else 7
        return {
            "shard": self.number, "pid": os.getpid(), "keeper_pid": self.keeper.pid, "epoch": self.epoch, "worker": self.holder_name,
            "durable_lsn": 7, "applied_lsn": applied, "clients": len(self.connections),
        }

    def known(self) -> dict[str, Any]:
        links = {shard: [generation, not link.is_closed] for shard, (generation, link) in self.links.items()}
        descriptors = len(os.listdir("/proc/self/fd"))
        return {**self.facts(), "heard": self.heard, "links": links, "options": self.options, "descriptors": descriptors}

    def router_gone(self, reason: str) -> None:
        self.finish(3)

    def finish(self, code: int) -> None:
        if not self.ended.done():
            self.ended.set_result(code)


async def serve(options: dict[str, Any]) -> int:
    shard = FakeShard(options)
    code = await shard.run()
    for _, link in shard.links.values():
        link.close()
    shard.channel.close()
    assert shard.keeper.stdin is not None
    shard.keeper.stdin.close()
    shard.keeper.wait()
    return code


def main() -> int:
    options = json.loads(sys.argv[1])
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != options["parent"]:
        return 4
    return asyncio.run(serve(options))


if __name__ == "__main__":
    sys.exit(main())
