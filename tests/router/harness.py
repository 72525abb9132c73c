"""Servers in processes of their own, and peers that connect to them."""
from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import psutil

from fusee_mp.wire import messages as m
from fusee_mp.wire.frames import Frame, FrameDecoder
from fusee_mp.wire.preface import ConnectionKind, Preface
from tests.processes import is_alive

PATIENCE_SECONDS = 15.0
M = TypeVar("M", bound=m.Message)
T = TypeVar("T")
CONTROL = Preface(ConnectionKind.CONTROL)
ANY = Preface(ConnectionKind.CLIENT_ANY)


def until(look: Callable[[], T]) -> T:
    """What `look` gives once that is true."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (found := look()):
        assert time.monotonic() < deadline, f"it did not come true: {look}"
        time.sleep(0.01)
    return found


class Peer:
    """A connection to a server. Answers PING while it receives, unless it is to be silent."""

    def __init__(self, address: str, preface: Preface | bytes = CONTROL) -> None:
        self.sock = dial(address)
        self.sock.settimeout(PATIENCE_SECONDS)
        self.sock.sendall(preface if isinstance(preface, bytes) else preface.encode())
        self._decoder = FrameDecoder()
        self._frames: deque[Frame] = deque()

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.sock.close()

    def send(self, message: m.Message, request: int = 0, epoch: int = 0) -> None:
        self.sock.sendall(m.encode(message, request, 0, epoch))

    def frame(self) -> Frame | None:
        """The next frame that is no PING, or None at the end of the stream. PINGs alone are not waited for any longer than nothing."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            while not self._frames:
                if time.monotonic() > deadline:
                    raise TimeoutError("nothing but PINGs came")
                data = self.sock.recv(65536)
                if not data:
                    return None
                self._frames.extend(self._decoder.feed(data))
            frame = self._frames.popleft()
            message = m.decode(frame)
            if not isinstance(message, m.Ping):
                return frame
            self.send(m.Pong(message.stamp))

    def expect(self, kind: type[M]) -> M:
        """The next message, which must be of this kind."""
        frame = self.frame()
        message = m.decode(frame) if frame is not None else None
        assert isinstance(message, kind), f"expected {kind.__name__}, found {message}"
        return message

    def goodbye(self) -> str:
        """The reason of a GOODBYE, which must be the last that comes."""
        reason = self.expect(m.Goodbye).reason
        assert self.frame() is None
        return reason

    def ended(self) -> bool:
        """It has ended, in whatever way; frames before are skipped."""
        try:
            while self.frame() is not None:
                pass
        except OSError:
            pass
        return True

    def ask(self, message: m.Message, kind: type[M], request: int = 77) -> M:
        self.send(message, request)
        frame = self.frame()
        assert frame is not None and frame.request == request, f"expected an answer, found {frame}"
        answer = m.decode(frame)
        assert isinstance(answer, kind)
        return answer


def dial(address: str) -> socket.socket:
    if address.startswith("unix:"):
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(address.removeprefix("unix:"))
        return sock
    host, _, port = address.rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)))


class Worker(Peer):
    """A worker's session that leases what it is assigned, when told so."""

    def __init__(self, address: str, name: str, instance: str = "1", most: int = 0, workflows: tuple[str, ...] = ()) -> None:
        super().__init__(address)
        self._address, self.name, self.instance = address, name, instance
        self.leases: dict[int, Peer] = {}
        self.welcome = self.ask(m.Hello(name, instance, list(workflows), most, 0, "1"), m.Welcome)

    def __exit__(self, *exception: Any) -> None:
        for lease in self.leases.values():
            lease.sock.close()
        super().__exit__(*exception)

    def assigned(self) -> list[int]:
        return self.expect(m.Assign).shards

    def lease(self, shard: int) -> m.Granted:
        self.leases[shard] = Peer(self._address, Preface(ConnectionKind.WORKER, shard))
        return self.leases[shard].ask(m.Lease(self.name, self.instance, shard), m.Granted)

    def lease_assigned(self) -> list[int]:
        shards = self.assigned()
        for shard in shards:
            self.lease(shard)
        return shards


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that have not ended."""
    return [process for process in processes if is_alive(process)]


class Server:
    """A router in a process of its own."""

    def __init__(self, directory: Path, fake: bool = True, **options: Any) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.log_path = directory.parent / f"{directory.name}.log"
        given = {"dir": str(directory), "listen": ["127.0.0.1:0"], "shards": 2, "fake": fake, **options}
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("serve.py")), json.dumps(given)], stdout=subprocess.PIPE, stderr=log,
                text=True, env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            )
        self.addresses: list[str] = []

    def ready(self) -> Server:
        """Wait for the ready line, which must be the only one."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert " ready on " in line, f"expected the ready line, found {line!r}; the log:\n{self.log}"
        self.addresses = line.partition(" ready on ")[2].rpartition(" (pid")[0].split()
        return self

    @property
    def address(self) -> str:
        return self.addresses[0]

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def status(self) -> dict[str, Any]:
        with Peer(self.address) as peer:
            return peer.ask(m.Status(), m.Status).facts

    def shard(self, shard: int) -> dict[str, Any]:
        facts: dict[str, Any] = self.status()["shards"][shard]
        return facts

    def known(self, shard: int) -> dict[str, Any]:
        """What a fake shard process knows."""
        with Peer(self.address, Preface(ConnectionKind.CLIENT_SHARD, shard)) as peer:
            found: dict[str, Any] = json.loads(peer.ask(m.Call("known", b""), m.Reply).value)
            return found

    def misbehave(self, shard: int, **how: Any) -> None:
        path = self.directory.parent / f"fake-{shard}.json"
        path.with_suffix(".new").write_text(json.dumps(how))
        path.with_suffix(".new").rename(path)

    def descendants(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def descriptors(self) -> int:
        """How many the router has, without /dev/null, which uvloop opens when it first needs it and keeps."""
        count = 0
        for link in Path(f"/proc/{self.process.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                count += os.readlink(link) != "/dev/null"
        return count

    def terminate(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        return self.process.wait(PATIENCE_SECONDS)

    def close(self) -> None:
        if self.process.poll() is None:
            left = self.descendants()
            self.process.kill()
            self.process.wait()
            until(lambda: not alive(left))
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def serving(directory: Path, **options: Any) -> Iterator[Server]:
    """A server that is ready, and gone afterwards."""
    server = Server(directory, **options)
    try:
        yield server.ready()
    finally:
        server.close()


@contextmanager
def starting(directory: Path, **options: Any) -> Iterator[Server]:
    """A server that may not become ready, and gone afterwards."""
    server = Server(directory, **options)
    try:
        yield server
    finally:
        server.close()
