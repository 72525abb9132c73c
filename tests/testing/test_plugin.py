"""The pytest plugin, in a pytest of its own."""
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

USERS_TEST = '''
import itertools
from datetime import timedelta
from fusee_mp import Ctx, workflow

COUNTER = itertools.count()

async def double(n):
    return 2 * n

@workflow
async def sound(ctx: Ctx, n: int) -> int:
    await ctx.sleep("30d")
    return await ctx.step("double", double, n)

@workflow
async def broken(ctx: Ctx, n: int) -> int:
    await ctx.step("double", double, n)
    return next(COUNTER)

async def test_sound(fusee_engine, tmp_path):
    assert tmp_path.is_dir()
    async with fusee_engine(workflows=[sound]) as engine:
        began = engine.now()
        assert await engine.execute(sound, "a", 2) == 4
        assert engine.now() - began == timedelta(days=30)

async def test_broken(fusee_engine):
    async with fusee_engine(workflows=[broken]) as engine:
        assert await engine.execute(broken, "b", 1) == 0

async def test_wrong(fusee_engine):
    async with fusee_engine(workflows=[sound]) as engine:
        assert await engine.execute(sound, "a", 2) == 5

def test_plain():
    pass
'''


def users_pytest(folder: Path, *arguments: str) -> tuple[int, str]:
    (folder / "test_users.py").write_text(USERS_TEST)
    (folder / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-p", "fusee_mp.testing.plugin", "-p", "no:cacheprovider", "-q",
               f"--basetemp={folder / 'temporary'}", *arguments, "test_users.py"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # else an installed one is loaded twice
    done = subprocess.run(command, check=False, cwd=folder, capture_output=True, text=True, timeout=60, env=environment)
    return done.returncode, done.stdout + done.stderr


def test_coroutine_tests_run_and_fail_as_plain_ones_do(tmp_path: Path) -> None:
    code, output = users_pytest(tmp_path)
    assert code == 1 and "1 failed, 3 passed" in output, output
    assert "test_wrong" in output and "assert 4 == 5" in output


def test_crashing_every_step_finds_the_workflow_that_counts_beside_its_journal(tmp_path: Path) -> None:
    code, output = users_pytest(tmp_path, "--crash-every-step", "-k", "not wrong")
    assert code == 1 and "1 failed, 2 passed" in output, output
    assert 'workflow ID "b" (broken), crashed after record 0 of 3' in output
    assert "it is ok with 1; without the crash it is ok with 0" in output
    assert "--crash-every-step: 8 crashes in 2 runs" in output  # of tests that failed by it, too


def test_crashing_every_step_says_when_there_was_nothing_to_crash(tmp_path: Path) -> None:
    code, output = users_pytest(tmp_path, "--crash-every-step", "-k", "plain")
    assert code == 0 and "--crash-every-step: 0 crashes in 0 runs" in output
    assert "crashes in" not in users_pytest(tmp_path, "-k", "sound")[1]


def test_the_plugin_says_what_its_option_does(tmp_path: Path) -> None:
    code, output = users_pytest(tmp_path, "--help")
    assert code == 0 and "--crash-every-step" in output and "demand that it comes to the same end" in output


def test_loading_the_plugin_does_not_load_the_engine(tmp_path: Path) -> None:
    program = "import sys, fusee_mp.testing.plugin; sys.exit('fusee_mp.sdk.engine' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=60)
