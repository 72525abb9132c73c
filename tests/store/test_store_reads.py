"""Pages, bounds and costs of reads."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from store_records import done, folded, quiet, start, step

from fusee_mp.core import records as r
from fusee_mp.core.idfilter import IdFilter, key
from fusee_mp.errors import StorageError
from fusee_mp.store import Store, open_reader
from fusee_mp.store.pages import PAGE_BYTES
from fusee_mp.store.reads import READS, read


@pytest.fixture(scope="module")
def large() -> Store:
    """20,000 finished runs of five types, then 2,000 sleepers, and one failed run in a thousand."""
    store = Store.open(":memory:")
    for first in range(1, 20_001, 2000):
        made = range(first, first + 2000)
        folded(*(record for run in made for record in (
            start(run, f"i{run}", type=f"t{run % 5}"), done(run, "failed" if run % 1000 == 0 else "ok", at=run))), store=store)
    sleepers = range(20_001, 22_001)
    folded(*(record for run in sleepers for record in (start(run, f"i{run}", type=f"t{run % 5}"), quiet(run, due=run))), store=store)
    return store


def steps_of(store: Store, method: str, *args: Any) -> int:
    """How many steps of SQLite's machine a read takes, in hundreds."""
    hundreds = 0

    def count() -> int:
        nonlocal hundreds
        hundreds += 1
        return 0

    store.db.set_progress_handler(count, 100)
    try:
        store.read(method, args)
    finally:
        store.db.set_progress_handler(None, 0)
    return hundreds


@pytest.mark.parametrize("where", [None, {"type": "t3"}, {"status": "ok"}, {"status": "failed"}, {"status": "open"},
                                   {"type": "t1", "status": "suspended"}, {"type": "none"}, {"id": "i77"}])
def test_a_page_costs_what_it_returns_whatever_the_table_holds(large: Store, where: dict[str, Any] | None) -> None:
    few = steps_of(large, "list", where, 5)
    assert few < 60
    assert steps_of(large, "list", where, 10) < 2 * few + 20


@pytest.mark.parametrize("where", [None, {"type": "t3"}, {"status": ["ok"][0]}, {"status": "open", "type": "t2"}])
def test_a_count_by_type_and_status_reads_no_run(large: Store, where: dict[str, Any] | None) -> None:
    assert steps_of(large, "count", where) < 10
    assert large.read("count", (where,)) == len(large.read("list", (where, 100_000)))


def test_due_runs_come_in_order_page_by_page(large: Store) -> None:
    page, seen = large.read("due", (30_000, 700)), []
    while page:
        seen += [(due.due, due.run) for due in page]
        page = large.read("due", (30_000, 700, seen[-1]))
    assert seen == [(run, run) for run in range(20_001, 22_001)]
    assert steps_of(large, "due", 20_010, 1000) < 5


def test_expired_runs_come_by_their_end(large: Store) -> None:
    assert [due.run for due in large.read("expired", (4,))] == [1, 2, 3]
    assert [due.run for due in large.read("expired", (9, 2, (4, 4)))] == [5, 6]


def test_open_runs_come_by_number_and_only_an_empty_page_is_the_last() -> None:
    store = folded(*(start(run, f"i{run}", type=f"t{run % 3}") for run in range(1, 21)), *(quiet(run) for run in range(1, 21, 2)))
    first = store.read("open_runs", (0, 4))
    assert [journal.run for journal in first] == [2, 4, 6, 8]
    assert [journal.run for journal in store.read("open_runs", (8, 100))] == [10, 12, 14, 16, 18, 20]
    assert store.read("open_runs", (20, 100)) == []


def test_pages_end_early_when_they_grow_large() -> None:
    big = bytes(PAGE_BYTES // 3)
    store = folded(*(start(run, f"i{run}", input=big) for run in range(1, 8)))
    page = store.read("open_runs", (0, 100))
    assert 1 <= len(page) < 7 and sum(len(journal.data) for journal in page) < 2 * PAGE_BYTES


def test_a_journal_of_many_commits_comes_whole_and_in_order() -> None:
    store = folded(start())
    for at in range(300):
        folded(step(at=at), store=store)
    assert store.read("describe", ("order-1",)).lsns == list(range(1, 302))
    journal = store.read("fetch", (1,))
    assert journal.data == b"".join(r.frame(r.encode(record)) for record in (start(), *(step(at=at) for at in range(300))))


def test_a_reader_sees_what_is_committed_and_cannot_write(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "a store?#%.db")
    folded(start(), store=store)
    db = open_reader(tmp_path / "a store?#%.db")
    assert read(db, "find", ("order-1",)).run == 1
    with pytest.raises(Exception, match="readonly"):
        db.execute("delete from run")
    db.close()
    store.close()
    with pytest.raises(StorageError, match="cannot be read"):
        open_reader(tmp_path / "missing.db")


def test_users_read_runs_in_words(tmp_path: Path) -> None:
    store = folded(start(at=1767323045000), done(at=1767323046000))
    row = store.db.execute("select id, workflow, status, started, finished from runs").fetchone()
    assert row == ("order-1", "checkout", "ok", "2026-01-02 03:04:05", "2026-01-02 03:04:06")


def test_every_read_is_either_quick_or_slow() -> None:
    assert {name: asked.lane for name, asked in READS.items() if asked.lane != "at once"} == {
        "describe": "one", "describe_run": "one", "tally": "one", "list": "many", "count": "many"}


def test_the_filter_of_known_ids_survives_with_the_store(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store.db")
    folded(*(start(run, f"i{run}") for run in range(1, 10_001)), store=store)
    store.commit(full=True)
    folded(*(start(run, f"i{run}") for run in range(10_001, 10_101)), store=store)
    store.close()
    store = Store.open(tmp_path / "store.db")
    assert store.db.execute("select filter_run from meta").fetchone() == (10_001,)
    sizes = store.read("state", ()).filter_layers
    filter = IdFilter.from_layers([store.read("layer", (index,)) for index in range(len(sizes))])
    assert filter.is_complete and all(filter.maybe(key(f"i{run}")) for run in range(1, 10_101))
    assert sum(filter.maybe(key(f"x{run}")) for run in range(10_000)) < 100
    assert store.read("layer", (99,)) is None
    store.close()


def test_a_damaged_layer_is_made_anew_from_the_rows(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store.db")
    folded(*(start(run, f"i{run}") for run in range(1, 9000)), store=store)
    store.commit(full=True)
    store.db.execute("update filter set data = zeroblob(100)")
    store.close()
    store = Store.open(tmp_path / "store.db")
    assert store.filter.is_complete and all(store.filter.maybe(key(f"i{run}")) for run in range(1, 9000))
    store.close()


def test_the_filter_shrinks_when_most_of_its_ids_are_gone() -> None:
    store, run = Store.open(":memory:"), 0
    for _ in range(10):
        made = range(run + 1, run + 8001)
        folded(*(start(number, f"i{number}") for number in made), *(r.Deleted(number, 1) for number in made), store=store)
        run += 8000
    folded(start(run + 1, "last"), store=store)
    store.commit(full=True)
    assert len(store.filter) == 1 and store.filter.maybe(key("last")) and not store.filter.maybe(key("i1"))
