"""A page of memory that two processes of one host see."""
from __future__ import annotations

import mmap
import os
import sys

PAGE_BYTES = 4096


class Page:
    """`words` are its 64-bit words, each read and written whole; who inherits `fd` may map the page too. On x86-64 another process sees
    the stores of one in their order. Raises OSError where there is none to be had."""

    def __init__(self, name: str) -> None:
        if sys.platform != "linux" or os.uname().machine != "x86_64":
            raise OSError("shared pages need Linux on x86-64")
        self.fd = os.memfd_create(name)
        try:
            os.ftruncate(self.fd, PAGE_BYTES)
            self._memory = mmap.mmap(self.fd, PAGE_BYTES)
        except OSError:
            os.close(self.fd)
            raise
        self.words = memoryview(self._memory).cast("Q")

    def close(self) -> None:
        """Let go of it; others that have mapped it keep theirs."""
        self.words.release()
        self._memory.close()
        os.close(self.fd)
