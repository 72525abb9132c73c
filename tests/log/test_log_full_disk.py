"""A real file system that is really full: a small tmpfs in a mount namespace of its own, which ends with its process."""
from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OPTIONS = (
    "LogOptions(segment_bytes=256 << 10, starter_bytes=64 << 10, append_bytes_max=64 << 10, batch_bytes_max=128 << 10, "
    "reserve_bytes=512 << 10, flush='helper')"
)
PROGRAM = f"""
import asyncio, contextlib, os, sys
from pathlib import Path
from fusee_mp.errors import StorageFull
from fusee_mp.log import Log, LogOptions, join_records, recover

DIRECTORY = Path(sys.argv[1])
RECORD = join_records([bytes(1000)])
OPTIONS = {OPTIONS}

async def until(condition):
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)

async def append(log, running):
    lsn = log.append(RECORD, 1, 1, running=running)
    await until(lambda: log.durable_lsn >= lsn)

async def until_refused(log, running):
    for _ in range(20000):
        try:
            await append(log, running)
        except StorageFull as error:
            return str(error)
    raise AssertionError("never refused")

def fill(name):
    with open(DIRECTORY / name, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass

async def main():
    log = Log.open(DIRECTORY / "log", OPTIONS, proven_lsn=0, loop=asyncio.get_running_loop())
    failures = []
    log.on_failed = failures.append
    await append(log, False)
    await until(lambda: log._supply.ready is not None)
    fill("hog")
    assert "new work is refused" in await until_refused(log, False)
    before = log.durable_lsn
    await append(log, True)
    assert "this record is refused" in await until_refused(log, True)
    free = os.statvfs(DIRECTORY).f_bavail * os.statvfs(DIRECTORY).f_frsize
    assert free >= OPTIONS.reserve_bytes // 2, "the keeper has its part"
    log.checkpointed(log.durable_lsn)
    fill("hog2")
    await until(lambda: log._supply.ready is not None)
    for _ in range(600):
        await append(log, True)
        log.checkpointed(log.durable_lsn)
    (DIRECTORY / "hog").unlink(); (DIRECTORY / "hog2").unlink()
    await until(lambda: not log.is_full)
    await append(log, False)
    last = log.last_lsn
    await log.close()
    assert failures == []
    found = recover(DIRECTORY / "log", proven_lsn=last)
    assert (found.last_lsn, found.gaps, found.torn) == (last, [], None)
    print("ok", before, last)

asyncio.run(main())
"""


def test_a_full_file_system_refuses_and_resumes_and_loses_nothing(tmp_path: Path) -> None:
    unshare = shutil.which("unshare")
    mount = [unshare or "", "-m", "sh", "-c", 'mount -t tmpfs -o size=3m none "$1" && exec "$2" -c "$3" "$1"', "sh", str(tmp_path)]
    if unshare is None or subprocess.run([*mount, "true", ""], capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount in a namespace of its own")
    done = subprocess.run([*mount, sys.executable, PROGRAM], capture_output=True, text=True, cwd=ROOT, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ok") and not any(tmp_path.iterdir())
