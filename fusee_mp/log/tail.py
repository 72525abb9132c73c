"""The segment that is being written."""
from __future__ import annotations

from fusee_mp.log.disk import Disk
from fusee_mp.log.format import BATCHES_OFFSET, COPY_OFFSETS, State, batch_bytes, pack_batch, pack_segment_header
from fusee_mp.log.segment import Chain, segment_name

PAGE_BYTES = 4096


class Tail:
    """Places batches in one file, none of them durable by that. Closing the descriptor is the owner's, with `close`."""

    def __init__(self, disk: Disk, number: int, *, salt: int, block_bytes: int, chain: Chain, is_fresh: bool) -> None:
        self.number = number
        self.name = segment_name(number)
        self.first_lsn = chain.first_lsn
        self.first_chain = chain
        self.chain = chain
        self.offset = BATCHES_OFFSET
        self._disk = disk
        self._salt = salt
        self._block_bytes = block_bytes
        self._is_fresh = is_fresh
        self.fd = disk.open(self.name)
        self.size = disk.size(self.fd)

    def close(self) -> None:
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            self._disk.close(fd)

    def fits(self, body_bytes: int) -> bool:
        return self.offset + batch_bytes(body_bytes, self._block_bytes) <= self.size

    def write_header(self, copy: int, acked: int) -> None:
        """Write copy 0 or 1 of the header. Flush each before the next: at any moment one of the two must be whole on disk."""
        first = self.first_chain
        header = pack_segment_header(
            State.ACTIVE, number=self.number, salt=self._salt, block_bytes=self._block_bytes, parent=first.parent,
            segment_bytes=self.size, first_sequence=first.sequence, first_lsn=first.first_lsn, acked=acked, epoch=first.epoch,
        )
        self._disk.write_at(self.fd, header, COPY_OFFSETS[copy])

    def clear(self) -> None:
        """Write zeroes where the next batch would begin, so that what an earlier use left there is not taken for a torn batch."""
        self._disk.write_at(self.fd, self._zeroes(self.offset), self.offset)

    def place(self, body: bytes, count: int, epoch: int, acked: int) -> int:
        """Write the next batch and return the bytes written. Raises OSError; the file is then not to be written again."""
        chain = self.chain
        packed = pack_batch(
            body, block_bytes=self._block_bytes, salt=self._salt, acked=acked, sequence=chain.sequence, epoch=epoch,
            first_lsn=chain.first_lsn, records=count, parent=chain.parent,
        )
        end = self.offset + packed.length
        data = b"".join((packed.header, body, packed.padding, self._zeroes(end)))
        self._disk.write_at(self.fd, data, self.offset)
        self.chain = Chain(chain.sequence + 1, chain.first_lsn + count, packed.checksum, epoch)
        self.offset = end
        return len(data)

    def _zeroes(self, end: int) -> bytes:
        """What goes behind a batch that ends there. A fresh file is all zeroes."""
        if self._is_fresh:
            return b""
        # To the end of a page: a page written whole need not be read first, which a recycled file would have to wait for.
        return bytes(min(PAGE_BYTES - end % PAGE_BYTES, self.size - end))
