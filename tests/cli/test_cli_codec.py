"""Commands that seal and open, against a server that has no key."""
from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.harness import HERE, Cli, running, serving

SECRET = "4711-0815"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    directory = tmp_path_factory.mktemp("sealed")
    with serving(directory) as (_, address), running("worker", "sealed_orders", "--json", f"--address={address}") as worker:
        worker.line()
        yield directory, address


@pytest.fixture
def sealing(capsys: pytest.CaptureFixture[str], served: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.setitem(os.environ, "FUSEE_ADDRESS", served[1])
    monkeypatch.syspath_prepend(str(HERE))
    return Cli(capsys, served[1])


def test_with_a_codec_commands_seal_what_they_send_and_show_the_rest_in_clear(
    sealing: Cli, served: tuple[Path, str], monkeypatch: pytest.MonkeyPatch,
) -> None:
    """D28"""
    monkeypatch.setenv("FUSEE_CODEC", "sealed_orders")
    assert sealing("start", "sealed", "s-1", f'"{SECRET}"').code == 0
    assert sealing("update", "s-1", "heard", f'"{SECRET}"').out == f'"heard {SECRET}"\n'
    assert json.loads(sealing("query", "s-1", "seen").out) == [SECRET]
    assert sealing("signal", "s-1", "paid", f'"{SECRET}"').code == 0
    assert sealing("result", "s-1", "--json").json["result"] == f"{SECRET} paid by {SECRET}"
    assert SECRET in sealing("describe", "s-1").out
    assert sealing("start", "sealed", "s-2", '"x"').code == sealing("cancel", "s-2", SECRET).code == 0
    assert SECRET in sealing("result", "s-2").err and SECRET in sealing("list", "--json").out
    assert sealing("schedule", "create", "daily", "--workflow=sealed", "--every=1d", "--paused", f'--input="{SECRET}"').code == 0
    assert SECRET in sealing("schedule", "describe", "daily", "--json").out
    assert not [path for path in served[0].rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]


def test_without_it_they_show_what_is_sealed_and_by_which_key(sealing: Cli) -> None:
    assert sealing("start", "sealed", "s-3", '"x"', "--codec=sealed_orders:other").code == 0
    assert sealing("signal", "s-3", "paid", '"y"', "--codec=sealed_orders").code == 0
    assert sealing("result", "s-3", "--codec=sealed_orders").out == '"x paid by y"\n'
    start = sealing("describe", "s-3", "--json").json["journal"][0]
    assert start["fields"]["input"] == {"sealed": "k1"}
    plain = sealing("result", "s-3")
    assert plain.code == 1 and 'sealed with key "k1"' in plain.err
    wrong = sealing("result", "s-3", "--codec=sealed_orders:wrong")
    assert wrong.code == 1 and '"k1"' in wrong.err


@pytest.mark.parametrize(("target", "words"), [
    ("no_such_module", 'no module "no_such_module"'), ("sealed_orders:nothing", 'has no "nothing"'),
    ("sealed_orders:number", "expected something with `seal` and `open`"), ("not a module", "is not the name of a module"),
])
def test_a_codec_that_cannot_be_is_wrong_use(sealing: Cli, target: str, words: str) -> None:
    answer = sealing("count", f"--codec={target}")
    assert answer.code == 2 and words in answer.err
