"""Commands on directories and code, without a server: export, replay, check."""
from __future__ import annotations

import asyncio
import importlib.util
import sys
from pathlib import Path

import pytest

from fusee_mp import Engine, Journal
from tests.cli.harness import Cli

SHOP = '''
from fusee_mp import Ctx, workflow

async def act(name: str) -> str:
    return name

@workflow("shop")
async def shop(ctx: Ctx, n: int) -> int:
    await ctx.step("price", act, "price")
    await ctx.step("charge", act, "charge")
    return n

@workflow("other")
async def other(ctx: Ctx) -> None:
    await ctx.sleep("1ms")
'''
CHANGED = SHOP.replace('"charge", act', '"refund", act')


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory that the first version of the module made; nothing here writes to it."""
    place = tmp_path_factory.mktemp("made")
    (place / "shop_first.py").write_text(SHOP)
    spec = importlib.util.spec_from_file_location("shop_first", place / "shop_first.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    async def fill() -> None:
        async with Engine.open(place / "data", workflows=[module.shop, module.other], shards=2) as engine:
            for n in range(4):
                await engine.execute("shop", f"s{n}", n)
            await engine.execute("other", "o/1")

    asyncio.run(fill())
    return place / "data"


@pytest.fixture
def folder(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with that data and two versions of the module."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    for name, text in (("shop_before", SHOP), ("shop_after", CHANGED)):
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
    importlib.invalidate_caches()
    (tmp_path / "data").symlink_to(data)
    return tmp_path


def test_export_lists_what_a_directory_has(offline: Cli, folder: Path) -> None:
    answer = offline("export", "data")
    assert answer.code == 0 and len(answer.out.splitlines()) == 6
    assert all(word in answer.out for word in ("s0", "o/1", "shop", "ok"))
    assert len(offline("export", "data", "--limit", "2").out.splitlines()) == 3


def test_export_writes_files_that_read_as_journals(offline: Cli, folder: Path) -> None:
    found = offline("export", "data", "--out", "journals", "--json").json
    assert {row["id"] for row in found} == {"s0", "s1", "s2", "s3", "o/1"}
    assert all(Journal.read(row["path"]).workflow_id == row["id"] for row in found)
    assert offline("export", "data", "s1", "--out", "one.json").code == 0
    assert Journal.read("one.json").workflow_id == "s1"


def test_export_prints_journals_for_programs(offline: Cli, folder: Path) -> None:
    document, = offline("export", "data", "s1", "--json").json
    assert document["workflow_id"] == "s1" and [record["kind"] for record in document["records"]] == ["start", "step", "step", "done"]


def test_export_says_what_it_lacks(offline: Cli, folder: Path) -> None:
    assert (offline("export", "data", "nobody").code, offline("export", ".").code, offline("export", "nowhere").code) == (1, 1, 2)
    assert '"nobody"' in offline("export", "data", "nobody").err


@pytest.mark.parametrize("source", ["data", "journals", "one.json"])
def test_replay_says_ok_of_the_code_that_ran(offline: Cli, folder: Path, source: str) -> None:
    offline("export", "data", "--out", "journals")
    offline("export", "data", "s1", "--out", "one.json")
    answer = offline("replay", source, "shop_before")
    assert answer.code == 0 and f"{'1 run' if source == 'one.json' else '5 runs'}, 0 would not go on with shop_before" in answer.err
    assert "s1" in answer.out


def test_replay_of_changed_code_names_run_and_line_and_exits_with_one(offline: Cli, folder: Path) -> None:
    answer = offline("replay", "data", "shop_after")
    assert answer.code == 1 and "5 runs, 4 would not go on with shop_after" in answer.err
    assert f"{folder}/shop_after.py:10" in answer.err and '"refund"' in answer.err and '"charge"' in answer.err
    assert answer.err.count('step "refund"') == 4 and "set aside" not in answer.err  # each is said once, and nothing was done to it


def test_replay_answers_programs_with_both_sides(offline: Cli, folder: Path) -> None:
    answer = offline("replay", "data", "shop_after", "--json", "--last", "5")
    assert answer.code == 1
    by_id = {row["id"]: row for row in answer.json}
    assert by_id["o/1"]["ok"] and by_id["o/1"]["finished"]
    error = by_id["s2"]["error"]
    assert (error["code"], error["journal"], error["asked"], error["position"]) == ("nondeterminism", 'step "charge"', 'step "refund"', 2)
    assert error["where"].endswith("shop_after.py:10")


def test_replay_takes_the_newest_runs_over_all_shards(offline: Cli, folder: Path) -> None:
    found = offline("replay", "data", "shop_before:shop", "--json", "--last", "2").json
    assert [row["id"] for row in found] == ["s3", "s2"]


def test_replay_of_something_else_is_wrong_use(offline: Cli, folder: Path) -> None:
    (folder / "empty").mkdir()
    (folder / "bad.json").write_text("{}")
    assert offline("replay", "empty", "shop_before").code == 2
    assert offline("replay", "data", "no_such_module").code == 2
    assert offline("replay", "bad.json", "shop_before").code == 1


def test_check_says_nothing_of_sound_code(offline: Cli, folder: Path) -> None:
    answer = offline("check", "shop_before")
    assert (answer.code, answer.out) == (0, "")
    assert offline("check", "shop_before", "--json").json == []


def test_check_names_place_and_what_to_use_instead(offline: Cli, folder: Path) -> None:
    (folder / "clocked.py").write_text("import time\n" + SHOP.replace("    return n\n", "    return int(time.time())\n"))
    answer = offline("check", "clocked.py")
    assert answer.code == 1 and "clocked.py:12:" in answer.out and "ctx.now()" in answer.out
    finding, = offline("check", "clocked", "--json").json
    assert (finding["rule"], finding["line"]) == ("clock", 12) and "ctx.now()" in finding["instead"]


def test_check_of_what_is_not_there_is_wrong_use(offline: Cli, folder: Path) -> None:
    assert offline("check", "no_such_module").code == 2
