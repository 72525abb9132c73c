# Every open begins a new segment.
#
# What a killed process wrote and never flushed reads back whole from the page cache, and after a failed flush it reads back whole and
# never reaches the disk. So a batch that nothing proves durable is written again, to a file that is flushed now.
#
# Order: file under its name with spare marks, durably; copies; flush; header copy A; flush; header copy B; flush. The header says
# that the copies are durable, so it must not be there before they are: a crash in between would otherwise leave a header that
# supersedes the only good copy.
"""Making the segment that an open writes to."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fusee_mp.errors import StorageFull
from fusee_mp.log.disk import Disk, run_script
from fusee_mp.log.format import BATCHES_OFFSET, COPY_OFFSETS, batch_bytes
from fusee_mp.log.helper import Script
from fusee_mp.log.options import LogOptions
from fusee_mp.log.recovery import Recovered, SegmentFile
from fusee_mp.log.segment import FILLING, RESERVE, Chain, segment_name
from fusee_mp.log.supply import FULL, promoted
from fusee_mp.log.tail import Tail


@dataclass
class Beginning:
    """The new segment, and what is left of the others: kept ones oldest first, those to retire, spares."""

    tail: Tail
    kept: list[SegmentFile]
    idle: list[tuple[int, int]]
    spares: list[tuple[str, int]]
    copied: int


def begin(disk: Disk, options: LogOptions, found: Recovered, salt: Callable[[], int]) -> Beginning:
    """Make the new segment durable, copies included. Raises StorageFull or OSError; what was there is then unharmed."""
    chain = _chain_to_continue(found)
    number = found.next_number
    source = _claim_file(disk, options, found, number, chain)
    tail = Tail(disk, number, salt=salt(), block_bytes=options.block_bytes, chain=chain)
    try:
        _copy(disk, tail, found)
    except BaseException:
        tail.close()
        raise
    kept = [segment for segment in found.segments if segment.header.first_sequence < chain.sequence and segment.name != source]
    # A spare under a segment's name: its mark may be known to the page cache alone, and must be durable before a later segment goes.
    marked = [(number, size) for number, name, size in found.marked if name != source]
    sizes = {segment.number: segment.size for segment in found.segments}
    idle = [(number, sizes.get(number, 0)) for number in _idle(found, chain, with_source=True) if segment_name(number) != source]
    spares = [spare for spare in found.spares if spare[0] != source]
    return Beginning(tail, kept, [*marked, *idle], spares, len(found.unproven))


def _chain_to_continue(found: Recovered) -> Chain:
    if not found.unproven:
        return found.chain
    first = found.unproven[0].header
    return Chain(first.sequence, first.first_lsn, first.parent, first.epoch)


def _copy(disk: Disk, tail: Tail, found: Recovered) -> None:
    for batch in found.unproven:
        header = batch.header
        tail.place(bytes(batch.body), header.records, header.epoch, header.acked)
    if not found.unproven:
        tail.clear()
    disk.flush_fd(tail.fd)
    for copy in range(len(COPY_OFFSETS)):
        tail.write_header(copy, acked=tail.chain.sequence - 1)
        disk.flush_fd(tail.fd)


def _claim_file(disk: Disk, options: LogOptions, found: Recovered, number: int, chain: Chain) -> str:
    """Give some file the new segment's name and return the name it had."""
    needed = BATCHES_OFFSET + sum(batch_bytes(len(batch.body), options.block_bytes) for batch in found.unproven)
    source = _reusable(options, found, chain, needed)
    scripts: list[Script] = [] if source else [_new_file(options, needed)]
    try:
        for script in (*scripts, promoted(source or FILLING, number)):
            _run_with_reserve(disk, script, needed)
    finally:
        disk.let_go()
    return source or FILLING


def _reusable(options: LogOptions, found: Recovered, chain: Chain, needed: int) -> str | None:
    """A spare, or a segment that holds nothing: the open before made it and was killed, so opening costs no space each time."""
    for name, size in (*((name, size) for _, name, size in found.marked), *found.spares):
        if size == options.segment_bytes and size >= needed:
            return name
    sizes = {segment.number: segment.size for segment in found.segments}
    for number in _idle(found, chain):
        if sizes.get(number, 0) >= max(needed, BATCHES_OFFSET + options.block_bytes):
            return segment_name(number)
    return None


def _idle(found: Recovered, chain: Chain, with_source: bool = False) -> list[int]:
    """Segments that contribute nothing; the one that copies come from is one of them only after copying."""
    last = [segment for segment in found.segments if segment.header.first_sequence >= chain.sequence]
    if not with_source and (found.unproven or found.torn):
        last = []
    return [*found.superseded, *(segment.number for segment in last)]


def _new_file(options: LogOptions, needed: int) -> Script:
    block = options.block_bytes
    size = max(min(options.starter_bytes, options.segment_bytes), needed + block)
    return (("unlink", FILLING), ("allocate", FILLING, size), ("write", FILLING, bytes(size), 0), ("flush", FILLING))


def _run_with_reserve(disk: Disk, script: Script, needed: int) -> None:
    """Run a script; if the disk is full, give up the reserve and try once more."""
    for last in (False, True):
        try:
            return run_script(disk, script)
        except OSError as error:
            if error.errno not in FULL:
                raise
            run_script(disk, (("unlink", RESERVE), ("unlink", FILLING)))
            if last:
                raise StorageFull(
                    f"no new segment can be made in {disk.directory}: {disk.free_bytes()} bytes are free. Free some disk space and "
                    "start again; nothing was lost.",
                    free_bytes=disk.free_bytes(), needed_bytes=needed,
                ) from error
