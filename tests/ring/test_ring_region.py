from __future__ import annotations

import fcntl
import os
import socket
import struct

import pytest

from fusee_mp.bounds import RING_BYTES_MAX
from fusee_mp.errors import ProtocolError, Unavailable
from fusee_mp.ring import layout, region
from fusee_mp.ring.region import Region
from fusee_mp.ring.ring import RingReader, RingWriter


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def forged(seals: int = 7, size: int = layout.HEADER_BYTES + 4096, **changed: int) -> int:
    """A region as `create` makes it, but for the named header words."""
    words = {"magic": layout.MAGIC, "version": layout.VERSION, "generation": 5, "capacity": 4096} | changed
    descriptor = os.memfd_create("forged", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    os.pwrite(descriptor, struct.pack("=QQQQ", *words.values())[:size], 0)
    fcntl.fcntl(descriptor, 1033, seals)
    return descriptor


def reopened(flags: int) -> int:
    descriptor = forged()
    try:
        return os.open(f"/proc/self/fd/{descriptor}", flags)
    finally:
        os.close(descriptor)


def test_two_attached_regions_share_memory_and_keep_no_descriptor_of_the_caller() -> None:
    before = open_descriptors()
    descriptor = region.create(4096, 5)
    one, other = Region.attach(os.dup(descriptor), 5), Region.attach(descriptor, 5)
    one.words[layout.WORD_TAIL] = 99
    assert other.words[layout.WORD_TAIL] == 99
    assert other.capacity == 4096 and other.generation == 5
    one.detach()
    other.detach()
    other.detach()
    assert open_descriptors() == before


def test_a_region_cannot_be_resized() -> None:
    descriptor = region.create(4096, 1)
    try:
        for size in (0, 1 << 20):
            with pytest.raises(PermissionError):
                os.ftruncate(descriptor, size)
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(
    ("descriptor", "message"),
    [
        (lambda: forged(seals=0), "sealed against resizing"),
        (lambda: socket.socket().detach(), "sealed against resizing"),
        (lambda: forged(magic=1), "magic"),
        (lambda: forged(version=2), "version 1 of a ring's layout, found 2"),
        (lambda: forged(generation=4), "generation 5, found 4"),
        (lambda: forged(capacity=8192), "cannot hold a ring of 8192"),
        (lambda: forged(capacity=4000, size=8096), "cannot hold a ring of 4000"),
        (lambda: forged(size=8), "version 1"),
        (lambda: forged(size=0), "magic"),
        (lambda: os.open(".", os.O_RDONLY), "sealed against resizing"),
        (lambda: forged(seals=7 | 8), "can be read and written"),
        (lambda: forged(seals=7 | 16), "can be read and written"),
        (lambda: reopened(os.O_RDONLY), "can be read and written"),
        (lambda: reopened(os.O_WRONLY), "can be read and written"),
    ],
)
def test_what_is_no_region_is_refused_and_its_descriptor_closed(descriptor: object, message: str) -> None:
    assert callable(descriptor)
    before = open_descriptors()
    with pytest.raises(ProtocolError, match=message):
        Region.attach(descriptor(), 5)
    assert open_descriptors() == before


@pytest.mark.parametrize("capacity", [0, 2048, 5000, RING_BYTES_MAX * 2])
def test_a_capacity_out_of_bounds_is_refused(capacity: int) -> None:
    with pytest.raises(ValueError, match="power of two"):
        region.create(capacity, 1)


@pytest.mark.parametrize(("where", "value"), [("platform.machine", "aarch64"), ("platform.python_implementation", "PyPy")])
def test_a_platform_whose_memory_order_was_not_shown_is_refused(where: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(where, lambda: value)
    with pytest.raises(Unavailable, match="use sockets"):
        region.create(4096, 1)


def test_a_used_ring_is_refused_by_a_second_writer_and_a_second_reader() -> None:
    attached = Region.attach(region.create(4096, 1), 1)
    try:
        writer, reader = RingWriter(attached), RingReader(attached)
        assert writer.try_write(b"x") and reader.read() == b"x"
        with pytest.raises(ProtocolError, match="used"):
            RingWriter(attached)
        reader.release()
        with pytest.raises(ProtocolError, match="used"):
            RingReader(attached)
    finally:
        attached.detach()
