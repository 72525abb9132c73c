"""The keeper as a program: `python -m fusee_mp.keeper FD OWNER_PID SHARD_DIRECTORY CHECKPOINT_MS`, started by owner.py only."""
from __future__ import annotations

import ctypes
import fcntl
import os
import select
import signal
import socket
import sys
from pathlib import Path
from typing import Final

import msgspec

from fusee_mp.errors import FuseeError, ProtocolError, StorageError
from fusee_mp.keeper import protocol as p
from fusee_mp.keeper.process import Process
from fusee_mp.keeper.tail import Tail
from fusee_mp.store import Store

_PR_SET_PDEATHSIG: Final = 1
LOCK_POLL_S: Final = 0.02


def main() -> None:
    """Serve the owner at the other end of the descriptor; end with status 0 when it closes or is gone, 1 when there is no store."""
    fd, owner_pid, directory, checkpoint_ms = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
    _depend_on(owner_pid)
    if cores := os.environ.get("FUSEE_CORES"):  # the owner stays on one, and is not to be disturbed there
        os.sched_setaffinity(0, map(int, cores.split(",")))
    owner = socket.socket(fileno=fd)
    try:
        if not _lock(directory / "keeper.lock", owner):
            return
        _serve(owner, directory, checkpoint_ms / 1000)
    except (StorageError, OSError) as e:
        _give_up(owner, e)
    except (ProtocolError, msgspec.MsgspecError) as e:
        sys.exit(f"keeper of {directory}: {e}")


def _depend_on(owner_pid: int) -> None:
    # Stopping is the owner's decision: a signal to the whole process group, such as Ctrl-C, must not end a fold that it waits for.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != owner_pid:
        sys.exit(0)


def _lock(path: Path, owner: socket.socket) -> bool:
    """Wait until no other keeper has the store; False when the owner is gone first. The descriptor stays open, and with it the lock."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            readable, _, _ = select.select([owner], [], [], LOCK_POLL_S)
            if readable and not owner.recv(1, socket.MSG_PEEK):
                return False
            if readable:
                select.select([], [], [], LOCK_POLL_S)


def _serve(owner: socket.socket, directory: Path, checkpoint_s: float) -> None:
    store = Store.open(directory / "store.db")
    try:
        owner.sendall(p.pack(p.Hello(store.applied_lsn, store.checkpoint_lsn, store.epoch)))
        tail = Tail(store, directory / "log", lambda kind, reason: process.report(kind, reason))
        process = Process(owner, tail, checkpoint_s)
        process.run()
    finally:
        store.close()


def _give_up(owner: socket.socket, error: StorageError | OSError) -> None:
    known = error if isinstance(error, FuseeError) else StorageError(f"the keeper cannot begin: {error}")
    try:
        owner.sendall(p.pack(p.Failure(0, known.code, known.message, known.fields)))
    except OSError:
        pass
    sys.exit(1)
