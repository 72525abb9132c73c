"""Journals leave their directory whole, and say whether code would go on from them."""
from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from fusee_mp import (
    Config,
    Ctx,
    Engine,
    FuseeError,
    Journal,
    NonDeterminismError,
    NotFound,
    Rejected,
    Replayer,
    StorageError,
    UnknownWorkflow,
    Workflow,
    export,
    signal,
    step,
    workflow,
)
from fusee_mp.bounds import SHARDS_MAX
from fusee_mp.core import records as r
from fusee_mp.core.numbers import Number, Seed, Shard, Signed
from fusee_mp.payload.cipher import AesGcm

ROOT = Path(__file__).resolve().parents[2]
GO = signal("go", int)
RAN: list[str] = []


async def act(name: str) -> str:
    RAN.append(name)
    return name


@workflow("child")
async def child(ctx: Ctx, value: int) -> int:
    return value


@workflow("other")
async def other(ctx: Ctx, value: int) -> int:
    return value


def shop(body: Callable[[Ctx, int], Any]) -> Workflow[int, Any]:
    """The workflow "shop" with this code."""
    async def code(ctx: Ctx, n: int) -> Any:
        return await body(ctx, n)

    return workflow("shop")(code)


async def original(ctx: Ctx, n: int) -> int:
    await ctx.step("price", act, "price")
    await ctx.step("charge", act, "charge")
    await ctx.sleep("5ms", "pause")
    total = await ctx.child(child, f"{ctx.workflow_id}/child", n)
    await ctx.step("ship", act, "ship")
    return total


def journals_of(definition: Workflow[Any, Any], directory: Path, ids: tuple[str, ...] = ("order",), value: int = 1) -> list[Journal]:
    async def run() -> None:
        async with Engine.open(directory, workflows=[definition, child, other]) as engine:
            for id in ids:
                await engine.execute(definition, id, value)

    asyncio.run(run())
    return [export(directory, id)[0] for id in ids]


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Journal:
    return journals_of(shop(original), tmp_path_factory.mktemp("data") / "data")[0]


def mismatch(journal: Journal, body: Callable[[Ctx, int], Any]) -> NonDeterminismError:
    replay = Replayer(workflows=[shop(body), child, other]).replay(journal)
    assert not replay.ok and replay.finished
    assert isinstance(replay.error, NonDeterminismError), replay.error
    assert str(replay.error.fields["where"]).startswith(f"{__file__}:"), replay.error
    assert replay.error.fields["where"] in replay.error.message
    return replay.error


def test_an_exported_journal_replays_clean_without_running_a_step(journal: Journal) -> None:
    """D29"""
    RAN.clear()
    replay = Replayer(workflows=[shop(original)]).replay(journal)
    assert (replay.ok, replay.finished, replay.error) == (True, True, None)
    assert RAN == []


def test_replay_works_inside_a_running_loop(journal: Journal) -> None:
    async def inside() -> bool:
        asyncio.get_running_loop().set_debug(True)
        before = asyncio.current_task()
        replay = Replayer(workflows=[shop(original)]).replay(journal)
        assert asyncio.current_task() is before
        await asyncio.sleep(0)
        return replay.ok

    assert asyncio.run(inside())


# One test per kind of edit (G02).


def test_a_renamed_step_is_named_on_both_sides(journal: Journal) -> None:
    """D30, G02"""
    async def edited(ctx: Ctx, n: int) -> int:
        await ctx.step("price", act, "price")
        await ctx.step("refund", act, "refund")
        return n

    error = mismatch(journal, edited)
    assert (error.fields["journal"], error.fields["code"], error.fields["position"]) == ('step "charge"', 'step "refund"', 2)
    assert "charge" in error.message and "refund" in error.message and error.code == "nondeterminism"
    for way_out in ("patched", "old code", "reset"):
        assert way_out in error.message


def test_an_added_step_is_found(journal: Journal) -> None:
    """G02"""
    async def edited(ctx: Ctx, n: int) -> int:
        await ctx.step("check", act, "check")
        return await original(ctx, n)

    error = mismatch(journal, edited)
    assert (error.fields["journal"], error.fields["code"]) == ('step "price"', 'step "check"')


def test_a_step_added_at_the_end_of_a_finished_run_is_found(journal: Journal) -> None:
    """G02"""
    async def edited(ctx: Ctx, n: int) -> int:
        total = await original(ctx, n)
        await ctx.step("thank", act, "thank")
        return total

    error = mismatch(journal, edited)
    assert (error.fields["journal"], error.fields["code"]) == ("its end (ok)", 'step "thank"')


def test_a_step_added_beside_the_others_is_found(journal: Journal) -> None:
    """G02"""
    async def edited(ctx: Ctx, n: int) -> int:
        total, _ = await asyncio.gather(original(ctx, n), ctx.step("beside", act, "beside"))
        return total

    mismatch(journal, edited)


def test_a_removed_step_is_found(journal: Journal) -> None:
    """G02"""
    async def edited(ctx: Ctx, n: int) -> int:
        await ctx.step("price", act, "price")
        await ctx.sleep("5ms", "pause")
        return n

    error = mismatch(journal, edited)
    assert (error.fields["journal"], error.fields["code"]) == ('step "charge"', 'timer "pause"')


def test_a_last_step_removed_is_found(journal: Journal) -> None:
    """G02"""
    async def edited(ctx: Ctx, n: int) -> int:
        await ctx.step("price", act, "price")
        await ctx.step("charge", act, "charge")
        await ctx.sleep("5ms", "pause")
        return await ctx.child(child, f"{ctx.workflow_id}/child", n)

    assert 'step "ship"' in mismatch(journal, edited).message


def test_reordered_steps_are_found(journal: Journal) -> None:
    """G02"""
    async def edited(ctx: Ctx, n: int) -> int:
        await ctx.step("charge", act, "charge")
        await ctx.step("price", act, "price")
        return n

    error = mismatch(journal, edited)
    assert (error.fields["journal"], error.fields["code"], error.fields["position"]) == ('step "price"', 'step "charge"', 1)


def test_another_name_of_a_timer_is_found(journal: Journal) -> None:
    """G02"""
    async def edited(ctx: Ctx, n: int) -> int:
        await ctx.step("price", act, "price")
        await ctx.step("charge", act, "charge")
        await ctx.sleep("5ms", "rest")
        return n

    error = mismatch(journal, edited)
    assert (error.fields["journal"], error.fields["code"]) == ('timer "pause"', 'timer "rest"')


def test_another_duration_of_a_timer_is_no_mismatch(journal: Journal) -> None:
    """G02"""
    async def edited(ctx: Ctx, n: int) -> int:
        await ctx.step("price", act, "price")
        await ctx.step("charge", act, "charge")
        await ctx.sleep("9d", "pause")
        total = await ctx.child(child, f"{ctx.workflow_id}/child", n)
        await ctx.step("ship", act, "ship")
        return total

    assert Replayer(workflows=[shop(edited)]).replay(journal).ok


def test_another_child_is_found(journal: Journal) -> None:
    """G02"""
    async def edited(ctx: Ctx, n: int) -> int:
        await ctx.step("price", act, "price")
        await ctx.step("charge", act, "charge")
        await ctx.sleep("5ms", "pause")
        return await ctx.child(other, f"{ctx.workflow_id}/child", n)

    error = mismatch(journal, edited)
    assert (error.fields["journal"], error.fields["code"]) == ('child "child"', 'child "other"')


def test_other_arguments_are_no_mismatch(journal: Journal) -> None:
    """G02"""
    async def edited(ctx: Ctx, n: int) -> int:
        await ctx.step("price", act, "another argument")
        await ctx.step("charge", len, "another function")
        await ctx.sleep("5ms", "pause")
        total = await ctx.child(child, f"{ctx.workflow_id}/child", n + 7)
        await ctx.step("ship", act, "ship")
        return total

    assert Replayer(workflows=[shop(edited)]).replay(journal).ok


def test_another_result_is_found(journal: Journal) -> None:
    """G02"""
    async def edited(ctx: Ctx, n: int) -> int:
        return await original(ctx, n) + 1

    error = mismatch(journal, edited)
    assert (error.fields["journal"], error.fields["code"]) == ("ok with 1", "ends as ok with 2")


def test_a_failure_in_place_of_a_result_is_found(journal: Journal) -> None:
    async def edited(ctx: Ctx, n: int) -> int:
        await original(ctx, n)
        raise LookupError("no more")

    assert "failed with LookupError: no more" in mismatch(journal, edited).message


def test_code_that_waits_where_its_journal_ends_is_found(journal: Journal) -> None:
    async def edited(ctx: Ctx, n: int) -> int:
        total = await original(ctx, n)
        await ctx.wait_for(GO)
        return total

    assert "does not come to an end" in mismatch(journal, edited).message


# What else may come of a replay: it is reported, never raised.


def test_a_missing_workflow_is_reported(journal: Journal) -> None:
    replay = Replayer(workflows=[child]).replay(journal)
    assert not replay.ok and isinstance(replay.error, UnknownWorkflow)


def test_code_that_does_not_yield_is_reported_with_its_line(journal: Journal) -> None:
    async def edited(ctx: Ctx, n: int) -> int:
        while True:
            n += 1

    replay = Replayer(workflows=[shop(edited)]).replay(journal)
    assert not replay.ok and isinstance(replay.error, FuseeError)
    assert __file__ in replay.error.message and "without waiting" in replay.error.message


def test_code_that_leaves_the_interpreter_is_reported(journal: Journal) -> None:
    async def edited(ctx: Ctx, n: int) -> int:
        raise SystemExit(3)

    assert not Replayer(workflows=[shop(edited)]).replay(journal).ok


def test_a_run_that_failed_replays_although_its_lines_moved(tmp_path: Path) -> None:
    async def failing(ctx: Ctx, n: int) -> int:
        await ctx.step("price", act, "price")
        raise ValueError("no such price")

    async def moved(ctx: Ctx, n: int) -> int:
        await ctx.step("price", act, "price")

        raise ValueError("no such price")

    async def worded(ctx: Ctx, n: int) -> int:
        await ctx.step("price", act, "price")
        raise ValueError("other words")

    async def run() -> None:
        async with Engine.open(tmp_path / "data", workflows=[shop(failing)]) as engine:
            await (await engine.start("shop", "order", 1)).started()
            with pytest.raises(FuseeError):
                await engine.handle("order").result()

    asyncio.run(run())
    journal = export(tmp_path / "data", "order")[0]
    assert Replayer(workflows=[shop(moved)]).replay(journal).ok
    assert "other words" in mismatch(journal, worded).message


def test_a_terminated_run_replays_although_its_code_had_not_ended(tmp_path: Path) -> None:
    async def waiting(ctx: Ctx, n: int) -> int:
        return await ctx.wait_for(GO)

    async def ending(ctx: Ctx, n: int) -> int:
        return n

    async def run() -> None:
        async with Engine.open(tmp_path / "data", workflows=[shop(waiting)]) as engine:
            handle = await engine.start("shop", "order", 1)
            await handle.terminate("enough")

    asyncio.run(run())
    journal = export(tmp_path / "data", "order")[0]
    replay = Replayer(workflows=[shop(waiting)]).replay(journal)
    assert (replay.ok, replay.finished) == (True, True)
    assert "terminated" in mismatch(journal, ending).message


# Export.


def test_an_export_works_while_the_engine_runs(tmp_path: Path) -> None:
    """D35"""
    async def waiting(ctx: Ctx, n: int) -> int:
        await ctx.step("price", act, "price")
        return await ctx.wait_for(GO)

    definition = shop(waiting)

    async def run() -> None:
        async with Engine.open(tmp_path / "data", workflows=[definition], shards=2) as engine:
            for id in ("a", "b", "c"):
                await engine.start(definition, id, 1)
            one, = export(tmp_path / "data", "b", 1)
            assert one.workflow_id == "b"
            assert one.records[0].kind == "start"
            every = export(tmp_path / "data", limit=10)
            assert sorted(journal.workflow_id for journal in every) == ["a", "b", "c"]
            assert [journal.shard for journal in every] == sorted(journal.shard for journal in every)
            for journal in every:
                replay = Replayer(workflows=[definition]).replay(journal)
                assert (replay.ok, replay.finished, replay.error) == (True, False, None)

    asyncio.run(run())


def test_an_id_gives_its_newest_run_and_the_limit_holds(tmp_path: Path) -> None:
    """D35"""
    journals_of(shop(original), tmp_path / "data", ("order", "order", "second"))
    newest, = export(tmp_path / "data", "order")
    numbers = [journal.run_number for journal in export(tmp_path / "data") if journal.workflow_id == "order"]
    assert len(numbers) == 2 and newest.run_number == numbers[0] == max(numbers)
    assert len(export(tmp_path / "data", limit=2)) == 2
    assert len(export(tmp_path / "data", limit=None)) == 6


def test_what_a_crash_left_in_the_log_is_exported(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    journals_of(shop(original), directory, ("order",))
    full = export(directory)
    for store in (directory / "shard-000").glob("store.db*"):
        store.unlink()  # the most that a store can lag
    assert export(directory) == full
    assert export(directory, "order") == [journal for journal in full if journal.workflow_id == "order"]


CRASHING = """
import asyncio, sys
from fusee_mp import Ctx, Engine, workflow

@workflow("sleeper")
async def sleeper(ctx: Ctx, n: int) -> None:
    await ctx.sleep("1h")

async def main() -> None:
    async with Engine.open(sys.argv[1], workflows=[sleeper]) as engine:
        for n in range(20):
            await engine.start(sleeper, f"s{n}", n)
        print("started", flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


def test_everything_acknowledged_before_a_kill_is_exported(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CRASHING, str(tmp_path / "data")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        process.kill()
    journals = export(tmp_path / "data")
    assert sorted(journal.workflow_id for journal in journals) == sorted(f"s{n}" for n in range(20))
    assert all(journal.records[0].fields["input"] == int(journal.workflow_id[1:]) for journal in journals)


def test_an_unknown_id_and_a_foreign_directory_are_refused(tmp_path: Path) -> None:
    journals_of(shop(original), tmp_path / "data")
    with pytest.raises(NotFound, match='"nobody"'):
        export(tmp_path / "data", "nobody")
    with pytest.raises(StorageError, match="no data directory"):
        export(tmp_path)
    with pytest.raises(Rejected):
        export(tmp_path / "data", limit=0)


def test_an_export_changes_nothing_in_the_directory(tmp_path: Path) -> None:
    def contents() -> dict[str, bytes]:
        files = (path for path in (tmp_path / "data").rglob("*") if path.is_file() and not path.name.endswith(("-wal", "-shm")))
        return {str(path): path.read_bytes() for path in files}

    journals_of(shop(original), tmp_path / "data")
    before = contents()
    export(tmp_path / "data")
    assert contents() == before


# Files.


def test_a_file_gives_back_every_byte(journal: Journal, tmp_path: Path) -> None:
    journal.write(tmp_path / "order.json")
    assert Journal.read(tmp_path / "order.json") == journal
    assert Replayer(workflows=[shop(original)]).replay_file(tmp_path / "order.json").ok
    document = json.loads((tmp_path / "order.json").read_text())
    assert (document["format"], document["workflow_id"], document["records"][0]["kind"]) == (1, "order", "start")


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=9)
SEALED = st.just(AesGcm({"k1": bytes(32)}).seal(b"{}"))
PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    bool: st.booleans(), int: st.integers(-(1 << 63), (1 << 63) - 1), str: TEXT, bytes: SEALED | st.binary(max_size=9),
    Number: st.integers(0, (1 << 53) - 1), Signed: st.integers(1 - (1 << 53), (1 << 53) - 1),
    Shard: st.integers(-1, SHARDS_MAX - 1), Seed: st.integers(0, (1 << 63) - 1),
    type(None): st.none(),
}


def values(type_: Any) -> st.SearchStrategy[Any]:
    """Any value that a record's field of this type may have."""
    if type_ in PLAIN:
        return PLAIN[type_]
    if get_origin(type_) is Literal:
        return st.sampled_from(get_args(type_))
    if get_origin(type_) is list:
        return st.lists(values(*get_args(type_)), max_size=3)
    if get_origin(type_) is tuple:
        return st.tuples(*map(values, get_args(type_)))
    return structures(type_) if isinstance(type_, type) else st.one_of(*map(values, get_args(type_)))


def structures(kind: Any) -> st.SearchStrategy[Any]:
    return st.builds(kind, **{field.name: values(field.type) for field in structs.fields(kind)})


ANY_RECORD = st.sampled_from([kind for kind in r.KIND if kind not in r.NOT_IN_JOURNAL]).flatmap(structures)


@settings(max_examples=200, deadline=None)
@given(st.lists(ANY_RECORD, max_size=4))
def test_every_kind_of_record_survives_a_file(tmp_path_factory: pytest.TempPathFactory, facts: list[Any]) -> None:
    start = r.Start(1, 5, "order", "shop", b"\xff\x00")
    journal = Journal("order", 3, tuple(range(7, 8 + len(facts))), (start, *facts))
    path = tmp_path_factory.getbasetemp() / "any.json"
    journal.write(path)
    assert Journal.read(path) == journal
    assert [r.encode(fact) for fact in Journal.read(path).facts] == [r.encode(fact) for fact in journal.facts]


@pytest.mark.parametrize(("edit", "says"), [
    (lambda d: d.update(format=2), '"format": 1'),
    (lambda d: d.pop("workflow_id"), "workflow_id"),
    (lambda d: d.update(more=1), "more"),
    (lambda d: d["records"][1].update(kind="leap"), "record 1: kind is one of"),
    (lambda d: d["records"][1].pop("payload"), '"payload" is missing'),
    (lambda d: d["records"][1].update(colour="red"), "'colour' is unknown"),
    (lambda d: d["records"][1].update(attempt="x"), "record 1"),
    (lambda d: d["records"][1].update(payload={"base64": "%"}), "record 1"),
    (lambda d: d["records"][1].update(payload=None), "record 1"),
    (lambda d: d["records"].pop(0), '"start"'),
    (lambda d: d["records"].clear(), '"start"'),
    (lambda d: d["records"][0].pop("lsn"), "record 0"),
])
def test_a_file_that_is_no_journal_says_what_is_wrong(journal: Journal, tmp_path: Path, edit: Callable[[Any], object], says: str) -> None:
    document = journal.document()
    edit(document)
    path = tmp_path / "edited.json"
    path.write_text(json.dumps(document))
    with pytest.raises(StorageError, match=says) as caught:
        Journal.read(path)
    assert str(path) in caught.value.message


@pytest.mark.parametrize("data", [b"", b"{", b"[1]", b"\xff", b"[" * 100_000, b"null"])
def test_bytes_that_are_no_json_are_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "bytes.json").write_bytes(data)
    with pytest.raises(StorageError, match="no journal"):
        Journal.read(tmp_path / "bytes.json")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="missing.json"):
        Replayer(workflows=[]).replay_file(tmp_path / "missing.json")


def test_records_are_shown_as_describe_shows_them(tmp_path: Path) -> None:
    definition = shop(original)

    async def run() -> Any:
        async with Engine.open(Config(dir=tmp_path / "data"), workflows=[definition, child]) as engine:
            await engine.execute(definition, "order", 1)
            return await engine.describe("order")

    detail = asyncio.run(run())
    assert export(tmp_path / "data", "order")[0].records == list(detail.journal)


@step
async def shout(text: str) -> str:
    return text.upper()


def test_called_steps_replay_too(tmp_path: Path) -> None:
    async def calling(ctx: Ctx, n: int) -> str:
        return await shout("a")

    journal, = journals_of(shop(calling), tmp_path / "data")
    assert Replayer(workflows=[shop(calling)]).replay(journal).ok
