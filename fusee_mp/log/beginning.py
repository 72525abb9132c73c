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
from pathlib import Path

from fusee_mp.errors import FuseeError, StorageError, StorageFull
from fusee_mp.log.disk import Disk, run_script
from fusee_mp.log.format import BATCHES_OFFSET, COPY_OFFSETS, batch_bytes
from fusee_mp.log.helper import Script
from fusee_mp.log.options import LogOptions
from fusee_mp.log.recovery import Recovered, SegmentFile, damage, recover
from fusee_mp.log.segment import FILLING, RESERVE, Chain, segment_name, spare_name
from fusee_mp.log.supply import FULL, SPARES_MAX, promoted, retired
from fusee_mp.log.tail import Tail


@dataclass
class Beginning:
    """The new segment, and what is left of the others: those with records, oldest first, and spares."""

    tail: Tail
    kept: list[SegmentFile]
    spares: list[tuple[str, int]]
    copied: int


def recover_and_begin(
    directory: Path, disk: Disk, options: LogOptions, proven_lsn: int, salt: Callable[[], int],
) -> tuple[Recovered, Beginning]:
    """Read the log and make the segment to go on in. Raises DamagedLog, StorageFull, StorageError."""
    try:
        found = recover(directory, proven_lsn=proven_lsn, disk=disk)
        if found.gaps:
            raise damage(directory, found.gaps)
        return found, begin(disk, options, found, salt)
    except FuseeError:
        raise
    except OSError as error:
        raise StorageError(f"the log in {directory} cannot be opened: {error}. Nothing was lost; mend the disk and start again.") from error


def begin(disk: Disk, options: LogOptions, found: Recovered, salt: Callable[[], int]) -> Beginning:
    """Make the new segment durable, copies included. Raises StorageFull or OSError; what was there is then unharmed."""
    chain = _chain_to_continue(found)
    number = found.next_number
    source = _claim_file(disk, options, found, number)
    tail = Tail(disk, number, salt=salt(), block_bytes=options.block_bytes, chain=chain, is_fresh=source == FILLING)
    try:
        _copy(disk, tail, found)
        spares = [spare for spare in found.spares if spare[0] != source]
        spares += _put_away(disk, options, [idle for idle in _idle(found, chain) if segment_name(idle[0]) != source], len(spares))
    except BaseException:
        tail.close()
        raise
    kept = [segment for segment in found.segments if segment.header.first_sequence < chain.sequence]
    return Beginning(tail, kept, spares, len(found.unproven))


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


def _claim_file(disk: Disk, options: LogOptions, found: Recovered, number: int) -> str:
    """Give some file the new segment's name and return the name it had."""
    needed = BATCHES_OFFSET + sum(batch_bytes(len(batch.body), options.block_bytes) for batch in found.unproven)
    source = _reusable(options, found, needed)
    scripts: list[Script] = [] if source else [_new_file(options, needed)]
    try:
        for script in (*scripts, promoted(source or FILLING, number)):
            _run_with_reserve(disk, script, needed)
    finally:
        disk.let_go()
    return source or FILLING


def _reusable(options: LogOptions, found: Recovered, needed: int) -> str | None:
    """A spare, or a last segment that holds nothing: the open before made it and was killed, so opening costs no space each time.

    Never a superseded one: the header that supersedes it may be known to the page cache alone.
    """
    spares = [*((name, size) for _, name, size in found.marked), *found.spares]
    empty = [(segment.name, segment.size) for segment in found.segments[-1:] if segment.header.first_sequence == found.chain.sequence]
    if found.unproven or found.torn:
        empty = []
    for name, size in (*sorted(spares, key=lambda spare: -spare[1]), *empty):
        if max(needed, BATCHES_OFFSET + options.block_bytes) <= size <= options.segment_bytes:
            return name
    return None


def _idle(found: Recovered, chain: Chain) -> list[tuple[int, int]]:
    """Number and size of segment files that hold nothing, now that the new one is durable.

    First those marked as spares: their marks may be known to the page cache alone, and must be durable before a later segment goes.
    """
    marked = [(number, size) for number, _, size in found.marked]
    last = [(segment.number, segment.size) for segment in found.segments if segment.header.first_sequence >= chain.sequence]
    return [*marked, *found.superseded, *last]


def _put_away(disk: Disk, options: LogOptions, idle: list[tuple[int, int]], spares: int) -> list[tuple[str, int]]:
    """Make idle files spares, or delete them; now and not in the helper, or a process that dies at each start would pile them up."""
    kept: list[tuple[str, int]] = []
    for number, size in idle:
        keep = spares + len(kept) < (SPARES_MAX if size == options.segment_bytes else 1)
        try:
            run_script(disk, retired(number, keep))
        finally:
            disk.let_go()
        if keep:
            kept.append((spare_name(number), size))
    return kept


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
