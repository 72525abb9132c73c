# Listening sockets, and every way in which they cannot be had.
#
# Who closes: `bind_tcp` and `bind_unix` give sockets to their caller, and close what they opened when they raise.
#
# A Unix socket's file outlives its process. One that nobody answers at is replaced; the directory is locked while that is decided, so
# that two servers that start at the same time do not replace each other's.
"""`bind_tcp`, `bind_unix`: listening sockets, or an error that says what to do."""
from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from fusee_mp.errors import Unavailable
from fusee_mp.router.options import split_address

BACKLOG: Final = 1024
# Not on this machine, or not in this kernel: skipped when the name has another address.
_ABSENT: Final = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})


def bind_tcp(address: str) -> list[socket.socket]:
    """Listen on every address that the host has. With port 0 all of them get the same free port. Raises Unavailable."""
    host, port = split_address(address)
    failure: OSError | None = None
    with ExitStack() as undo:
        sockets: list[socket.socket] = []
        for family, place in _resolve(address, host, port):
            if port == 0 and sockets:
                place = (place[0], sockets[0].getsockname()[1], *place[2:])
            try:
                sockets.append(undo.enter_context(_listen(family, place)))
            except OSError as error:
                if error.errno not in _ABSENT:
                    raise _explain(error, address, place) from error
                failure = error
        if not sockets:
            assert failure is not None, "a resolved name has an address"
            raise _explain(failure, address, (host, port)) from failure
        undo.pop_all()
    return sockets


def bound_address(sock: socket.socket) -> str:
    """How a client writes the address, in whichever directory it is; of all interfaces it is the wildcard."""
    if sock.family == socket.AF_UNIX:
        return f"unix:{os.path.abspath(sock.getsockname())}"
    host, port = sock.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _resolve(address: str, host: str, port: int) -> list[tuple[int, tuple[Any, ...]]]:
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        raise Unavailable(
            f'cannot listen on {address}: the host "{host}" does not resolve ({error}). Use a name or an address of this machine',
            address=address,
        ) from error
    return list(dict.fromkeys((int(family), place) for family, _, _, _, place in found))


def _listen(family: int, place: tuple[Any, ...]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(place)
        sock.listen(BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


def _explain(error: OSError, address: str, place: tuple[Any, ...]) -> Unavailable:
    where = f"cannot listen on {address}: port {place[1]} of {place[0] or 'this machine'}"
    return Unavailable({
        errno.EADDRINUSE: f"{where} is in use. Stop the process that has it (`ss -ltnp` names it), or use another port; 0 takes a free one",
        errno.EACCES: f"{where} needs a privilege that this process lacks. Use a port from 1024 on, or give it CAP_NET_BIND_SERVICE",
        errno.EADDRNOTAVAIL: f"{where}: no interface of this machine has the address. Use one that `ip address` shows",
    }.get(error.errno or 0, f"{where}: {error}"), address=address)


class UnixSocket:
    """A listening Unix socket and its file. `close` removes the file, unless another process has put its own there."""

    def __init__(self, sock: socket.socket, path: Path) -> None:
        self.sock, self._path = sock, path
        self._identity = _identity(path)

    def close(self) -> None:
        self.sock.close()
        with contextlib.suppress(OSError):
            if _identity(self._path) == self._identity:
                self._path.unlink()


def bind_unix(path: Path, mode: int = 0o600) -> UnixSocket:
    """Listen on a path, in place of a dead server's socket but not of anything else. The file never has more than the mode. Raises
    Unavailable."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        with _locked(path.parent):
            _clear(path)
            os.fchmod(sock.fileno(), 0o600)  # the file gets the socket's mode at its birth
            sock.bind(str(path))
            os.chmod(path, mode)
            sock.listen(BACKLOG)
            return UnixSocket(sock, path)
    except OSError as error:
        sock.close()
        raise _refused(path, f"{error}. Use a path in a directory that exists and can be written") from error
    except BaseException:
        sock.close()
        raise


def _clear(path: Path) -> None:
    """Remove a socket that nobody listens on."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise _refused(path, "a file that is no socket is there. Remove it, or use another path")
    if _is_alive(path):
        raise _refused(path, "another server listens there. Stop it, or use another path")
    path.unlink(missing_ok=True)


def _refused(path: Path, why: str) -> Unavailable:
    return Unavailable(f"cannot listen on unix:{path}: {why}", address=f"unix:{path}")


def _is_alive(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        # Anything but a refusal means that somebody has it open: a full backlog, another type of socket.
        return probe.connect_ex(str(path)) not in (errno.ECONNREFUSED, errno.ENOENT)


def _identity(path: Path) -> tuple[int, int]:
    status = path.lstat()
    return status.st_dev, status.st_ino


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """The directory itself as a lock, so that no file is left over. Held for a few system calls."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
