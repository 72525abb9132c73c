# One life of one shard process.
#
# It is over when two things have happened, in any order: the process was reaped, and its channel ended, so that all it had to say was
# heard. `on_over` is called once, then.
#
# Who closes: the process's end of the channel is closed here right after the start, so the channel ends with the process; the pidfd when
# it is reaped. The process gets no descriptor but its end of the channel, and what it inherits by being a child: environment, stderr.
# It is in a session of its own: a Ctrl-C at the terminal is for the router, which then stops it in order.
"""`ShardProcess`: starts a shard process, talks to it, and notices its end."""
from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Sequence
from typing import Final

import fusee_mp
from fusee_mp.errors import ProtocolError, Unavailable
from fusee_mp.ring import fdpass
from fusee_mp.ring.fdpass import Channel
from fusee_mp.wire.frames import Frame, decode_frame
from fusee_mp.wire.messages import Goodbye, Message, decode, descriptors_of, encode

LOG: Final = logging.getLogger("fusee_mp.router")
# More than this unsent: the process does not read, and further connections wait here instead, where they are counted.
UNSENT_BYTES_MAX: Final = 16 * 1024
# So long may the channel outlive its process, or the process its channel.
PARTING_MS: Final = 2_000


class ShardProcess:
    """A running shard process. `command(control, pid)` is its command line for a control descriptor and this process's id.

    Raises OSError if it cannot be started. After `on_over` all descriptors are closed and the process is no zombie.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, shard: int, command: Callable[[int, int], Sequence[str]],
        on_message: Callable[[Message, Frame], None], on_over: Callable[[], None],
    ) -> None:
        self.shard = shard
        self.last_words = ""
        self.exit_code: int | None = None
        self._loop, self._on_message, self._on_over = loop, on_message, on_over
        self._parting_ms = 0
        ours, theirs = fdpass.pair()
        try:
            self._process = _start(command(theirs.fileno(), os.getpid()), theirs)
            self._pidfd = _pidfd(self._process)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        loop.add_reader(self._pidfd, self._on_exit)
        self._channel = Channel(loop, ours, self._on_packet, self._on_channel_closed, descriptors_of)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def takes_connections(self) -> bool:
        return not self._channel.is_closed and self._channel.queued_bytes <= UNSENT_BYTES_MAX

    def send(self, message: Message, descriptors: Sequence[int] = (), request: int = 0) -> None:
        """Send a message; the descriptors are closed on every path. To a process that is ending, nothing is sent."""
        try:
            self._channel.send(encode(message, request, self.shard), descriptors)
        except Unavailable as error:
            LOG.debug("shard %d: %s was not sent: %s", self.shard, message.KIND.name, error)

    def kill(self) -> None:
        """End it at once, if it has not ended; what follows is as for any other end."""
        if self.exit_code is None:
            self._process.kill()

    def tick(self, passed_ms: int) -> None:
        """End what is left of a process that is half gone."""
        if self.exit_code is not None or self._channel.is_closed:
            self._parting_ms += passed_ms
        if self._parting_ms < PARTING_MS:
            return
        if self.exit_code is None:
            self.kill()
        elif not self._channel.is_closed:
            # Somebody it started has kept its end of the channel.
            self._channel.close()
            self._on_over()

    def end(self) -> str:
        """How the process ended, in words."""
        assert self.exit_code is not None, "it has ended"
        if self.exit_code < 0:
            how = f"was killed by {_signal_name(-self.exit_code)}"
        else:
            how = f"exited with code {self.exit_code}"
        return f"{how} ({self.last_words})" if self.last_words else how

    def _on_packet(self, data: bytes, descriptors: list[int]) -> None:
        assert not descriptors, "no frame of a shard process brings any"
        try:
            frame = decode_frame(data)
            message = decode(frame)
        except ProtocolError as error:
            LOG.error("shard %d sent what cannot be read, and it is ignored: %s", self.shard, error)
            return
        if isinstance(message, Goodbye):
            self.last_words = message.reason
        else:
            self._on_message(message, frame)

    def _on_channel_closed(self, reason: str) -> None:
        self._over_if_both()

    def _on_exit(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self.exit_code = self._process.wait()
        self._over_if_both()

    def _over_if_both(self) -> None:
        if self.exit_code is not None and self._channel.is_closed:
            self._on_over()


def _start(command: Sequence[str], theirs: socket.socket) -> subprocess.Popen[bytes]:
    home = os.path.dirname(os.path.dirname(os.path.abspath(fusee_mp.__file__)))
    path = os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH"))))
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, close_fds=True, pass_fds=(theirs.fileno(),),
        env={**os.environ, "PYTHONPATH": path}, start_new_session=True,
    )


def _pidfd(process: subprocess.Popen[bytes]) -> int:
    try:
        return os.pidfd_open(process.pid)
    except OSError:
        process.kill()
        process.wait()
        raise


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
