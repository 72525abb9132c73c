"""What each kind of record does to the tables."""
from __future__ import annotations

import random
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_records import PARENT, attributes, contents, done, folded, history, quiet, start, step

from fusee_mp.bounds import REQUESTS_KEEP_MS
from fusee_mp.core import records as r
from fusee_mp.errors import StorageError
from fusee_mp.store import CannotFold, Place, Store, StoreLocked, open_reader
from fusee_mp.store.fold import _OF_RUN, _OF_SHARD
from fusee_mp.store.results import Request, Sent
from fusee_mp.store.schema import UPGRADES


def test_a_start_makes_a_running_run_with_all_its_facts() -> None:
    store = folded(start(7, request="q", deadline=99, attributes=b'{"n":1}', parent=PARENT, source=r.Source(2, 1)))
    found = store.read("find", ("order-1",))
    assert (found.run, found.type, found.status, found.started, found.deadline) == (7, "checkout", "running", 1007, 99)
    assert (found.request, found.parent, found.attributes, found.lsn) == ("q", PARENT, b'{"n":1}', 1)
    assert store.read("request", ("q",)) == Request(7, "order-1", 1)
    state = store.read("state", ())
    assert state.next_run == 8 and state.inbox == [(2, 1)]


def test_a_run_is_suspended_with_its_due_time_until_its_next_record() -> None:
    store = folded(start(), quiet(due=5000))
    assert store.read("find", ("order-1",)).status == "suspended"
    assert [(due.due, due.run, due.id) for due in store.read("due", (5000,))] == [(5000, 1, "order-1")]
    assert store.read("due", (4999,)) == [] and store.read("open_runs", ()) == []
    folded(step(), store=store)
    assert store.read("find", ("order-1",)).status == "running"
    assert store.read("due", (9000,)) == [] and len(store.read("open_runs", ())) == 1


def test_an_update_and_its_end_belong_to_the_journal_and_wake_a_quiet_run() -> None:
    update, end = r.Update(1, 1007, "add", "u-1", b"5", "q-7"), r.UpdateDone(1, 1008, "u1/1", "add", "u-1", "ok", b"5")
    store = folded(start(), quiet(due=5000), update, end)
    assert store.read("find", ("order-1",)).status == "running"
    assert store.read("request", ("q-7",)) == Request(1, "order-1", 3)
    assert [r.decode(data) for data in r.unframe(store.read("fetch", (1,)).data)] == [start(), update, end]


def test_a_start_keeps_the_update_that_came_with_it() -> None:
    first = r.Start(1, 1007, "order-1", "checkout", b"null", "q-7", update=r.Update(1, 1007, "add", "u-1", b"5", "q-7"))
    store = folded(first)
    assert store.read("request", ("q-7",)) == Request(1, "order-1", 1)
    assert [r.decode(data) for data in r.unframe(store.read("fetch", (1,)).data)] == [first]


def test_a_paused_run_stays_paused_with_its_reason_until_it_is_resumed() -> None:
    paused = r.Paused(1, 1010, "used up", "1", "q-8")
    store = folded(start(), paused, r.Signal(1, 1011, "go", b"1"), step())
    assert (store.read("find", ("order-1",)).status, store.read("find", ("order-1",)).reason) == ("paused", "used up")
    assert store.read("request", ("q-8",)) == Request(1, "order-1", 2) and len(store.read("open_runs", ())) == 1
    folded(quiet(due=5000), store=store)
    assert store.read("find", ("order-1",)).status == "paused" and len(store.read("due", (5000,))) == 1
    folded(r.Resumed(1, 1012, "q-9"), store=store)
    assert (store.read("find", ("order-1",)).status, store.read("find", ("order-1",)).reason) == ("running", "")
    assert store.read("due", (9000,)) == [] and store.read("request", ("q-9",)) == Request(1, "order-1", 6)


@pytest.mark.parametrize(("record", "status"), [
    (r.CancelRequested(1, 1020, "why"), "running"), (done(status="terminated"), "terminated"),
    (r.Quarantined(1, 1020, "c", "m", 1), "quarantined"),
    (r.Heartbeat(1, 1020, "1", "n", 1, b"1"), "paused"), (r.Completed(1, 1020, "6", "n", 1, "ok", b"1"), "paused"),
])
def test_what_lifts_a_pause(record: r.Record, status: str) -> None:
    assert folded(start(), r.Paused(1, 1010, "used up"), record).read("find", ("order-1",)).status == status


def test_a_quarantine_is_not_hidden_by_a_pause() -> None:
    store = folded(start(), r.Quarantined(1, 5, "c", "m", 1), r.Paused(1, 6, "why"))
    assert (store.read("find", ("order-1",)).status, store.read("find", ("order-1",)).reason) == ("quarantined", "m")


def test_a_parked_run_is_listed_as_parked() -> None:
    store = folded(start(), quiet(due=None, parked=True))
    assert store.read("status", ("order-1",)).status == "parked"


def test_quiet_is_no_part_of_the_journal_but_moves_the_last_lsn() -> None:
    store = folded(start(), step(), quiet())
    journal = store.read("fetch", (1,))
    assert journal.lsn == 3 and journal.data == b"".join(r.frame(r.encode(record)) for record in (start(), step()))


@pytest.mark.parametrize("status", ["ok", "failed", "cancelled", "terminated", "timed_out", "reset", "continued_as_new"])
def test_an_end_keeps_its_status_result_and_time(status: r.FinalStatus) -> None:
    store = folded(start(), quiet(), done(status=status, reason="why", request="q2"))
    found = store.read("by_run", (1,))
    assert (found.status, found.result, found.reason, found.finished, found.due) == (status, b'"result"', "why", 4000, None)
    assert store.read("request", ("q2",)) == Request(1, "order-1", 3)


def test_records_after_the_end_go_to_the_journal_and_change_nothing_else() -> None:
    store = folded(start(), done(), step(), quiet(), r.Quarantined(1, 5, "c", "m", 1), r.Unquarantined(1, 6))
    found = store.read("find", ("order-1",))
    assert (found.status, found.finished, found.due, found.reason, found.lsn) == ("ok", 4000, None, "", 6)


def test_messages_wait_in_the_outbox_until_they_are_acknowledged() -> None:
    child = r.Child(1, 5, "1", to=3, no=1, id="kid", type="t", input=b"")
    send = r.Send(1, 5, "2", to=3, no=2, kind="signal", id="other", name="go")
    end = done(parent=PARENT, to=2, no=1)
    store = folded(start(), child, send, end)
    assert store.read("outbox", (3,)) == [Sent(3, 1, 1, "order-1", r.encode(child)), Sent(3, 2, 1, "order-1", r.encode(send))]
    assert store.read("outbox", (3, 1)) == [Sent(3, 2, 1, "order-1", r.encode(send))]
    assert [(sent.to, sent.no) for sent in store.read("outbox", ())] == [(2, 1), (3, 1), (3, 2)]
    folded(r.Acked(3, 1), store=store)
    assert [(sent.to, sent.no) for sent in store.read("outbox", ())] == [(2, 1), (3, 2)]
    folded(r.Acked(3, 2), r.Acked(2, 1), store=store)
    assert store.read("outbox", ()) == [] and store.read("state", ()).outbox == [(2, 2), (3, 3)]


def test_a_refused_child_is_a_message_to_its_parent() -> None:
    refused = r.Refused(5, "kid", to=2, no=1, parent=PARENT, failure=b"f", source=r.Source(2, 4))
    store = folded(refused)
    assert store.read("outbox", (2,)) == [Sent(2, 1, 0, "kid", r.encode(refused))]
    assert store.read("state", ()).inbox == [(2, 4)]


@pytest.mark.parametrize("arrival", [
    r.Signal(1, 5, "go", b"", "q", r.Source(4, 7)), r.CancelRequested(1, 5, "why", "q", r.Source(4, 7)),
    r.ChildDone(1, 5, "1", "ok", b"", r.Source(4, 7)), done(source=r.Source(4, 7), request="q"), r.Skipped(5, r.Source(4, 7), "gone"),
])
def test_an_arrival_moves_the_inbox_position_and_keeps_its_request(arrival: r.Record) -> None:
    store = folded(start(), arrival)
    assert store.read("state", ()).inbox == [(4, 7)]
    assert store.read("request", ("q",)) == (Request(1, "order-1", 2) if getattr(arrival, "request", "") else None)


def test_the_first_record_of_a_request_answers_it() -> None:
    store = folded(start(), r.Signal(1, 5, "go", b"", "q"), r.Signal(1, 6, "go", b"", "q"))
    assert store.read("request", ("q",)) == Request(1, "order-1", 2)


def test_a_grant_raises_the_epoch() -> None:
    assert folded(r.Grant(1, 3, "w"), r.Grant(2, 4, "v")).read("state", ()).epoch == 4


def test_a_quarantine_lasts_until_it_is_lifted_and_the_run_stays_open() -> None:
    store = folded(start(), quiet(), r.Quarantined(1, 5, "nondeterminism", "asked for other", 3))
    folded(r.Signal(1, 6, "go", b""), quiet(), store=store)
    found = store.read("find", ("order-1",))
    assert (found.status, found.reason, found.due) == ("quarantined", "asked for other", None)
    assert [journal.run for journal in store.read("open_runs", ())] == [1]
    folded(r.Unquarantined(1, 7), store=store)
    assert store.read("find", ("order-1",)).status == "running" and store.read("find", ("order-1",)).reason == ""


def test_attributes_merge_and_null_stays_a_value() -> None:
    store = folded(start(attributes=b'{"a":1,"b":2}'), attributes(1, b'{"b":null}'))
    folded(attributes(1, b'{"c":"x"}'), store=store)
    assert store.read("find", ("order-1",)).attributes == b'{"a":1,"b":null,"c":"x"}'


def test_a_deleted_run_leaves_nothing_but_its_messages() -> None:
    send = r.Send(1, 5, "2", to=3, no=1, kind="signal", id="other")
    store = folded(start(1, request="q"), step(), send)
    folded(r.Signal(1, 6, "go", b"", "q2"), done(), start(2), store=store)
    folded(r.Deleted(1, 9), store=store)
    assert store.read("by_run", (1,)) is None and store.read("fetch", (1,)) is None
    assert [store.read("request", (key,)).run for key in ("q", "q2")] == [1, 1], "a repeat of them still has no effect"
    assert store.read("find", ("order-1",)).run == 2
    assert [sent.run for sent in store.read("outbox", ())] == [1]
    assert store.db.execute("select count(*) from chunk where run = 1").fetchone() == (0,)
    folded(start(3, "late"), r.Deleted(3, 9 + REQUESTS_KEEP_MS, "q3"), store=store)
    assert store.read("request", ("q",)).run == 1
    folded(start(4, "later"), r.Deleted(4, 10 + REQUESTS_KEEP_MS, "q4"), store=store)
    assert [row for row in store.db.execute("select key from request order by key")] == [("q3",), ("q4",)]


def test_a_run_without_history_keeps_its_result_and_no_record() -> None:
    store = folded(start(1, request="q"), step())
    folded(step(), done(history=False), store=store)
    found = store.read("find", ("order-1",))
    assert (found.status, found.result) == ("ok", b'"result"')
    assert store.read("fetch", (1,)).data == b"" and store.read("request", ("q",)).run == 1
    assert store.db.execute("select count(*) from chunk").fetchone() == (0,)
    folded(r.Deleted(1, 9), store=store)
    assert store.read("find", ("order-1",)) is None


def test_the_newest_run_of_an_id_is_found() -> None:
    store = folded(start(1), done(1, "continued_as_new"), start(2), start(3, "other"))
    assert store.read("find", ("order-1",)).run == 2 and store.read("find", ("nobody",)) is None


def test_records_of_unknown_runs_are_counted_and_change_nothing() -> None:
    store = folded(start(), step(9), start(1, "again"), done(9, source=r.Source(1, 1)))
    state = store.read("state", ())
    assert (state.strays, state.stray_lsn, state.inbox) == (3, 4, [(1, 1)])
    assert store.read("find", ("again",)) is None and store.read("find", ("order-1",)).status == "running"


def test_every_kind_is_folded_by_rule_or_only_kept_in_the_journal() -> None:
    only_kept = {r.StepDone, r.Attempt, r.Timer, r.Fired, r.Inherited, r.Patched, r.Heartbeat, r.Awaiting, r.UpdateDone}
    assert set(r.KIND) == set(_OF_RUN) | set(_OF_SHARD) | only_kept | {r.Start}


def test_a_journal_keeps_the_lsn_of_each_record() -> None:
    store = folded(start(1), start(2, "b"), step(1), step(2))
    folded(step(2), step(1), step(1), store=store)
    assert store.read("describe", ("order-1",)).lsns == [1, 3, 6, 7]
    assert store.read("describe", ("b",)).lsns == [2, 4, 5]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 30), length=st.integers(1, 80), data=st.data())
def test_however_a_log_is_cut_into_batches_and_commits_the_rows_are_the_same(seed: int, length: int, data: st.DataObject) -> None:
    records = list(map(r.encode, history(seed, length)))
    whole, cut = Store.open(":memory:"), Store.open(":memory:")
    whole.fold_records(1, records)
    whole.commit()
    rng, at = data.draw(st.randoms(use_true_random=False)), 0
    while at < len(records):
        end = at + rng.randrange(1, 12)
        cut.fold_records(at + 1, records[at:end])
        at = end
        if rng.random() < 0.5:
            cut.commit(full=rng.random() < 0.2)
    cut.commit()
    assert contents(whole) == contents(cut)
    whole.close()
    cut.close()


def test_histories_reach_every_kind() -> None:
    assert {type(record) for seed in range(10) for record in history(seed, 80)} == set(r.KIND)


def test_a_batch_that_was_folded_before_is_skipped_and_a_gap_is_refused() -> None:
    store = folded(start(), step())
    store.fold_records(1, [r.encode(start()), r.encode(step())], Place(1, 512, 2))
    store.commit()
    assert store.applied_lsn == 2 and store.place == Place(1, 512, 2)
    with pytest.raises(CannotFold, match="the next record to fold has LSN 3"):
        store.fold_records(4, [r.encode(step())])


@pytest.mark.parametrize(("bad", "reason"), [
    (b"\xff\xff", "bytes begin ffff"), (b"\x92\x03\x01", "at least length"), (b"", "truncated"), (b"\x92\xcc\xc8\x01", "Invalid value 200"),
])
def test_a_malformed_record_is_named_by_lsn_and_nothing_of_its_batch_is_folded(bad: bytes, reason: str) -> None:
    store = folded(start())
    store.fold_records(2, [r.encode(step())])
    with pytest.raises(CannotFold, match=f"LSN 4 cannot be folded.*{reason}") as failed:
        store.fold_records(3, [r.encode(step()), bad])
    assert failed.value.lsn == 4
    assert store.commit() == 2


@pytest.mark.parametrize("body", [b"\x05\x00\x00\x00ab", b"\x05\x00", b"\xff\xff\xff\xff" + bytes(20)])
def test_a_record_cut_off_is_refused(body: bytes) -> None:
    with pytest.raises(CannotFold, match="LSN 1 cannot be folded: its length says"):
        Store.open(":memory:").fold(1, body)


@pytest.mark.parametrize("record", [attributes(1, b"[1]"), attributes(1, b"{"), start(1, attributes=b"nonsense")])
def test_attributes_that_are_no_json_object_are_refused(record: r.Record) -> None:
    with pytest.raises(CannotFold, match="LSN 1 "):
        Store.open(":memory:").fold_records(1, [r.encode(record)])


def test_a_number_beyond_its_bound_stops_at_its_batch_and_keeps_those_before() -> None:
    store = Store.open(":memory:")
    store.fold_records(1, [r.encode(start())])
    with pytest.raises(CannotFold, match="LSN 2 .*Expected `int` <= 9007199254740991"):
        store.fold_records(2, [r.encode(start(2, at=1 << 63))])
    store.commit()
    assert store.applied_lsn == 1 and store.read("by_run", (1,)) is not None and store.read("by_run", (3,)) is None


def test_a_locked_store_keeps_its_stage_until_the_lock_is_gone(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store.db")
    user = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    user.execute("begin immediate")
    store.fold_records(1, [r.encode(start())])
    for full in (False, True):
        with pytest.raises(StoreLocked, match="locked by another program"):
            store.commit(full)
    assert store.applied_lsn == 0 and store.read("find", ("order-1",)) is None
    user.execute("rollback")
    assert store.commit(full=True) == 1 and store.checkpoint_lsn == 1
    user.close()
    store.close()


def test_an_opened_store_goes_on_where_it_was(tmp_path: Path) -> None:
    rng, records = random.Random(5), list(map(r.encode, history(5, 200)))
    path, at, whole = tmp_path / "store.db", 0, folded(*map(r.decode, records))
    while at < len(records):
        store = Store.open(path)
        assert store.applied_lsn == at
        end = min(len(records), at + rng.randrange(1, 60))
        store.fold_records(at + 1, records[at:end])
        store.commit(full=rng.random() < 0.5)
        at = end
        # Staged and never committed: as if it had never been read.
        store.fold_records(at + 1, [r.encode(step())])
        store.close()
    store = Store.open(path)
    assert contents(store) == contents(whole)
    store.close()


def test_a_file_of_another_program_is_refused_and_left_alone(tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as db:
        db.execute("create table t(a)")
    db.close()
    before = other.read_bytes()
    with pytest.raises(StorageError, match="SQLite database of another program"):
        Store.open(other)
    assert other.read_bytes() == before
    garbage = tmp_path / "garbage.db"
    garbage.write_bytes(b"not a database" * 100)
    with pytest.raises(StorageError, match="cannot be opened"):
        Store.open(garbage)
    assert garbage.read_bytes() == b"not a database" * 100


def test_a_store_of_a_later_format_is_refused(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store.db")
    store.db.execute("pragma user_version = 77")
    store.close()
    with pytest.raises(StorageError, match="has format 77, this version reads 2: use the version that wrote it"):
        Store.open(tmp_path / "store.db")


def make_first_format(store: Store) -> None:
    for name in ("new", "set", "gone"):
        store.db.execute(f"drop trigger attributes_{name}")
    store.db.execute("drop table attribute")
    store.db.execute("pragma user_version = 1")


def test_a_store_that_cannot_be_brought_to_this_format_stays_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "store.db"
    old = folded(*history(3, 100), store=Store.open(path))
    make_first_format(old)
    rows = old.db.execute("select * from run").fetchall()
    old.close()
    with monkeypatch.context() as patch:
        patch.setitem(UPGRADES, 1, (*UPGRADES[1], "insert into no_such_table values(1)"))
        with pytest.raises(StorageError, match="no_such_table"):
            Store.open(path)
    with sqlite3.connect(path) as db:
        assert db.execute("pragma user_version").fetchone() == (1,) and db.execute("select * from run").fetchall() == rows
    db.close()
    Store.open(path).close()


def test_a_store_of_the_first_format_gets_its_index_when_it_is_opened_and_not_by_a_reader(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    new, old = folded(*history(3, 400)), folded(*history(3, 400), store=Store.open(path))
    make_first_format(old)
    old.close()
    with pytest.raises(StorageError, match="has format 1, this version reads 2: open its directory once with this version"):
        open_reader(path)
    old = Store.open(path)
    assert contents(old) == contents(new) and contents(old)["attributes"]
    more = [start(9_000, "more", attributes=b'{"a":7}'), attributes(9_000, b'{"a":8}')]
    assert contents(folded(*more, store=old)) == contents(folded(*more, store=new))
    assert [line.run for line in old.read("list", ({"a": 8},))] == [9_000]
    old.close()
    new.close()
