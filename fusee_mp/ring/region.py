# Regions: shared memory of one ring, with one life cycle.
#
#   create   makes an anonymous file (memfd), fills in the header, seals its size and returns the descriptor
#   attach   maps it and closes the descriptor, on every path, also when it raises
#   detach   unmaps it
#   destroy  is the kernel's: the memory goes with the last descriptor and the last mapping. There is no name to unlink, so a
#            killed process leaves nothing behind.
#
# The size is sealed because a peer that truncates a mapped file kills whoever touches it (SIGBUS). An unsealed one is refused.
"""Regions: `create` for the maker, `Region.attach` for both ends."""
from __future__ import annotations

import fcntl
import mmap
import os
import platform
import struct
import sys

from fusee_mp.bounds import RING_BYTES_MAX, RING_BYTES_MIN
from fusee_mp.errors import ProtocolError, Unavailable
from fusee_mp.ring import layout

# Python 3.11 has no names for these; the numbers are the kernel's (linux/fcntl.h).
_F_ADD_SEALS, _F_GET_SEALS = 1033, 1034
_SEAL_SEAL, _SEAL_SHRINK, _SEAL_GROW = 1, 2, 4
_SEALS = _SEAL_SEAL | _SEAL_SHRINK | _SEAL_GROW
_HEADER = struct.Struct("=QQQQ")


def require_platform() -> None:
    """Raises Unavailable where the memory order that ring.py relies on has not been shown."""
    system, machine, python = sys.platform, platform.machine(), platform.python_implementation()
    if (system, machine, python) != ("linux", "x86_64", "CPython"):
        raise Unavailable(f"shared-memory rings need CPython on Linux on x86_64, this is {python} on {system} on {machine}: use sockets")


def create(capacity: int, generation: int) -> int:
    """A new region's descriptor, closed by whoever holds it. `capacity` is a power of two from RING_BYTES_MIN to RING_BYTES_MAX."""
    require_platform()
    if not RING_BYTES_MIN <= capacity <= RING_BYTES_MAX or capacity & (capacity - 1):
        raise ValueError(f"a ring has a power of two from {RING_BYTES_MIN} to {RING_BYTES_MAX} bytes, not {capacity}")
    descriptor = os.memfd_create("fusee-mp-ring", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, layout.HEADER_BYTES + capacity)
        os.pwrite(descriptor, _HEADER.pack(layout.MAGIC, layout.VERSION, generation, capacity), 0)
        fcntl.fcntl(descriptor, _F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


class Region:
    """A mapped region. `memory` is the whole of it, `words` the same as native 8-byte numbers."""

    __slots__ = ("capacity", "generation", "memory", "words")

    def __init__(self, memory: mmap.mmap, capacity: int, generation: int) -> None:
        self.memory = memory
        self.words = memoryview(memory).cast("Q")
        self.capacity = capacity
        self.generation = generation

    @classmethod
    def attach(cls, descriptor: int, generation: int, capacity_max: int = RING_BYTES_MAX) -> Region:
        """Map the region of this generation. Closes the descriptor in any case.

        Raises ProtocolError for a descriptor that is no sealed region, of another version or of another generation, too large, or not to
        be read and written.
        """
        try:
            require_platform()
            capacity = _checked_capacity(descriptor, generation, capacity_max)
            memory = mmap.mmap(descriptor, layout.HEADER_BYTES + capacity)
        except OSError as error:
            raise ProtocolError(f"expected a region that can be read and written, found one that cannot: {error}") from error
        finally:
            os.close(descriptor)
        return cls(memory, capacity, generation)

    def detach(self) -> None:
        """Unmap. Reading or writing it afterwards raises ValueError. A second call does nothing."""
        self.words.release()
        self.memory.close()


def _checked_capacity(descriptor: int, generation: int, capacity_max: int) -> int:
    size = os.fstat(descriptor).st_size
    if _seals(descriptor) & _SEALS != _SEALS:
        raise ProtocolError("expected a region sealed against resizing, found one that is not: truncating it would kill this process")
    magic, version, found, capacity = _header(descriptor)
    if magic != layout.MAGIC:
        raise ProtocolError(f"expected a ring's region (magic {layout.MAGIC:016x}), found {magic:016x}", found=magic)
    if version != layout.VERSION:
        raise ProtocolError(f"expected version {layout.VERSION} of a ring's layout, found {version}: upgrade the older side", found=version)
    if found != generation:
        raise ProtocolError(f"expected a ring of generation {generation}, found {found}: its process was replaced", found=found)
    if size != layout.HEADER_BYTES + capacity or not RING_BYTES_MIN <= capacity <= RING_BYTES_MAX or capacity & (capacity - 1):
        raise ProtocolError(f"a region of {size} bytes cannot hold a ring of {capacity} bytes", found=size)
    if capacity > capacity_max:
        raise ProtocolError(f"a ring of {capacity} bytes is over the {capacity_max} that are taken: offer a smaller one", found=capacity)
    return int(capacity)


def _seals(descriptor: int) -> int:
    try:
        return fcntl.fcntl(descriptor, _F_GET_SEALS)
    except OSError:  # a file that cannot be sealed: a socket, a pipe, a file on disk
        return 0


def _header(descriptor: int) -> tuple[int, int, int, int]:
    data = os.pread(descriptor, _HEADER.size, 0)
    magic, version, generation, capacity = _HEADER.unpack(data.ljust(_HEADER.size, b"\0"))
    return magic, version, generation, capacity
