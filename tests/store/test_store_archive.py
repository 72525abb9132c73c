"""The archive: every journal that was written is read back once, whatever a crash left; damage is said and not skipped."""
from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_records import done, folded, start, step

from fusee_mp.core import records as r
from fusee_mp.errors import StorageError
from fusee_mp.store import Store
from fusee_mp.store import archive as a


def journal(run: int, data: bytes = b"data") -> a.Archived:
    return a.Archived(run, f"id-{run}", [run], data)


def write(directory: Path, *journals: a.Archived) -> Path:
    archive = a.Archive(directory)
    archive.add(journals)
    archive.close()
    return max(directory.glob("*.arc"))


def test_what_several_processes_archived_is_read_once_and_newest_first(tmp_path: Path) -> None:
    write(tmp_path, journal(1), journal(2))
    write(tmp_path, journal(2), journal(3), journal(4, b""))
    assert [found.run for found in a.read_archive(tmp_path)] == [3, 2, 1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000001.arc", "000002.arc"]


def test_a_full_file_is_followed_by_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(a, "ARCHIVE_FILE_BYTES", 1)
    archive = a.Archive(tmp_path)
    for run in range(3):
        archive.add([journal(run)])
    archive.close()
    assert len(list(tmp_path.iterdir())) == 3 and [found.run for found in a.read_archive(tmp_path)] == [2, 1, 0]


@given(st.data())
def test_an_unfinished_end_is_left_out_and_nothing_before_it(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    directory = tmp_path_factory.mktemp("archive")
    path = write(directory, *(journal(run) for run in range(3)))
    whole = path.read_bytes()
    cut = data.draw(st.integers(0, len(whole) - 1))
    path.write_bytes(whole[:cut])
    assert [found.run for found in a.read_archive(directory)] == [*reversed(range(3 * max(0, cut - 8) // (len(whole) - 8)))]


def test_a_damaged_entry_before_the_end_is_said(tmp_path: Path) -> None:
    path = write(tmp_path, journal(1), journal(2))
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)
    with pytest.raises(StorageError, match=r"000001.arc is damaged at offset 16"):
        list(a.read_archive(tmp_path))
    path.write_bytes(b"something else entirely")
    with pytest.raises(StorageError, match="does not begin as an archive"):
        list(a.read_archive(tmp_path))


@pytest.mark.parametrize("cuts", [(), (2,), (1, 3)])
def test_a_deleted_run_leaves_its_whole_journal_in_the_archive(tmp_path: Path, cuts: tuple[int, ...]) -> None:
    store = Store.open(tmp_path / "store.db")
    records: list[r.Record] = [start(1), step(), done(), r.Deleted(1, 9, archive=True), start(2), done(2), r.Deleted(2, 9)]
    for first, last in zip((0, *cuts), (*cuts, len(records)), strict=True):
        folded(*records[first:last], store=store)
    store.close()
    [found] = a.read_archive(tmp_path / "archive")
    assert (found.run, found.id, found.lsns) == (1, "order-1", [1, 2, 3])
    assert [r.decode(data) for data in r.unframe(found.data)] == records[:3]


def test_a_run_stays_in_the_store_until_it_can_be_archived(tmp_path: Path) -> None:
    store = folded(start(1), done(), store=Store.open(tmp_path / "store.db"))
    (tmp_path / "archive").write_bytes(b"a file in the way")
    store.fold_records(3, [r.encode(r.Deleted(1, 9, archive=True))])
    with pytest.raises(StorageError, match="archive"):
        store.commit()
    assert store.read("find", ("order-1",)) is not None
    (tmp_path / "archive").unlink()
    store.commit()
    assert store.read("find", ("order-1",)) is None and len(list(a.read_archive(tmp_path / "archive"))) == 1
    store.close()
