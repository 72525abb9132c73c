from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fusee_mp.errors import FuseeError, StorageError
from fusee_mp.log.directory import META, Lock, Meta, log_directory, open_directory, read_meta, shard_directory, write_meta


def opened(directory: Path, shards: int | None = None) -> Meta:
    return open_directory(directory, shards, new_id=lambda: "d-1")


def test_a_new_directory_gets_its_shard_count_and_keeps_it(tmp_path: Path) -> None:
    directory = tmp_path / "a" / "data"
    assert opened(directory, 4) == Meta(4, "d-1") == opened(directory) == opened(directory, 4)
    assert (directory / META).read_text() == "format=1\nshards=4\nid=d-1\n"
    assert sorted(os.listdir(directory)) == [META]


def test_without_a_count_a_new_directory_has_one_shard(tmp_path: Path) -> None:
    assert opened(tmp_path).shards == 1


def test_another_shard_count_is_refused_and_names_the_way_out(tmp_path: Path) -> None:
    opened(tmp_path, 2)
    with pytest.raises(StorageError, match=r"has 2 shards, and 3 were asked for. Start with 2.*cannot be changed"):
        opened(tmp_path, 3)


def test_a_directory_with_other_things_in_it_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").write_bytes(b"x")
    with pytest.raises(StorageError, match="holiday.jpg.*not a data directory"):
        opened(tmp_path)
    assert os.listdir(tmp_path) == ["holiday.jpg"]


def test_a_lock_and_a_half_made_meta_file_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    (tmp_path / "fusee.meta.new").write_text("form")
    assert opened(tmp_path).shards == 1


@pytest.mark.parametrize("text, reason", [
    ("format=2\nshards=1\nid=x\n", "has format 2"), ("format=reshard\nshards=1\nid=x\n", "interrupted"),
])
def test_another_format_and_an_unfinished_reshard_are_refused(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / META).write_text(text)
    with pytest.raises(StorageError, match=reason):
        opened(tmp_path)


@pytest.mark.parametrize("data", [
    b"", b"format=1\n", b"format=1\nshards=0\nid=x\n", b"format=1\nshards=\xc2\xb2\nid=x\n", b"\xff\x00",
    b"format=1\nshards=99999\nid=x\n",
])
def test_a_damaged_meta_file_is_refused_with_what_it_has(tmp_path: Path, data: bytes) -> None:
    (tmp_path / META).write_bytes(data)
    with pytest.raises(StorageError, match="should have the lines"):
        opened(tmp_path)


@pytest.mark.parametrize("shards", [0, -1, 1025])
def test_a_shard_count_out_of_bounds_is_refused(tmp_path: Path, shards: int) -> None:
    with pytest.raises(FuseeError, match="1 to 1024"):
        opened(tmp_path, shards)


def test_the_meta_file_is_replaced_whole(tmp_path: Path) -> None:
    opened(tmp_path, 2)
    write_meta(tmp_path, Meta(2, "d-1", "reshard"))
    assert read_meta(tmp_path) == Meta(2, "d-1", "reshard")


def test_a_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError):
        opened(tmp_path / "file")


def test_shards_have_folders_with_three_digits(tmp_path: Path) -> None:
    assert shard_directory(tmp_path, 7) == tmp_path / "shard-007"
    assert log_directory(tmp_path, 12) == tmp_path / "shard-012" / "log"


def test_a_place_for_no_files_is_refused_with_what_to_do() -> None:
    with pytest.raises(StorageError, match="lock file /proc/x/lock cannot be opened: .*Give a directory in which this process may make"):
        Lock.acquire(Path("/proc/x/lock"))


def test_a_second_lock_is_refused_and_names_the_holder(tmp_path: Path) -> None:
    lock = Lock.acquire(tmp_path / "x" / "lock")
    with pytest.raises(StorageError, match=f"in use by process {os.getpid()}"):
        Lock.acquire(tmp_path / "x" / "lock")
    lock.release()
    lock.release()
    Lock.acquire(tmp_path / "x" / "lock").release()


def test_an_inherited_lock_holds_until_the_last_copy_is_gone(tmp_path: Path) -> None:
    lock = Lock.acquire(tmp_path / "lock")
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE, pass_fds=(lock.fd,))
    try:
        lock.release()
        with pytest.raises(StorageError, match="or a helper of it"):
            Lock.acquire(tmp_path / "lock")
        child.kill()
        child.wait()
        Lock.acquire(tmp_path / "lock").release()
    finally:
        child.kill()
        child.communicate()
