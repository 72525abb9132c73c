"""The command line with TLS and tokens."""
from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from fusee_mp.security.expiry import end_of
from tests.cli.harness import Cli, Running, running, serving, until
from tests.security.secured import Safe


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Safe, str]]:
    safe = Safe(tmp_path_factory.mktemp("cli"))
    options = (f"--tls-cert={safe.cert}", f"--tls-key={safe.key}", f"--tokens={safe.files['tokens']}", "--unix-mode=660")
    with serving(safe.folder / "data", *options) as (_, address):
        yield safe, address


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], secured: tuple[Safe, str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.setenv("FUSEE_ADDRESS", secured[1])
    return Cli(capsys, secured[1])


def test_options_variables_and_addresses_name_the_files(cli: Cli, secured: tuple[Safe, str], monkeypatch: pytest.MonkeyPatch) -> None:
    safe, address = secured
    given = (f"--ca={safe.authority.ca}", f"--token-file={safe.files['wall']}")
    assert cli("count", *given).out == "0\n"
    status = cli("shards", "--json", *given).json
    assert status["shards"][0]["state"] == "ready" and status["scope"] == "read"
    assert status["certificate_expires"] == end_of(safe.cert.read_bytes())
    assert cli("count", f"--address={address}?ca={safe.authority.ca}&token-file={safe.files['wall']}").code == 0
    monkeypatch.setenv("FUSEE_CA", str(safe.authority.ca))
    monkeypatch.setenv("FUSEE_TOKEN_FILE", str(safe.files["wall"]))
    assert cli("count").code == 0


def test_workers_of_a_supervisor_get_in_and_a_client_runs_on_them(cli: Cli, secured: tuple[Safe, str]) -> None:
    safe, address = secured
    given = (f"--ca={safe.authority.ca}", f"--token-file={safe.files['workers']}")
    with running("worker", "orders", "--processes=2", f"--address={address}", *given) as worker:
        line = worker.line()
        assert f"ready at {address}: holds" in line
        shop = (f"--ca={safe.authority.ca}", f"--token-file={safe.files['shop']}")
        answer = cli("run", "order", "o-1", '{"item": "book"}', *shop)
        assert answer.code == 0, answer.err


def test_an_option_comes_before_the_address_and_the_address_before_a_variable(
    cli: Cli, secured: tuple[Safe, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    safe, address = secured
    monkeypatch.setenv("FUSEE_CA", "/no/ca")
    monkeypatch.setenv("FUSEE_TOKEN_FILE", "/no/token")
    ca, wall = f"ca={safe.authority.ca}", f"token-file={safe.files['wall']}"
    assert cli("count", f"--address={address}?{ca}&{wall}").code == 0
    assert cli("count", f"--address={address}?ca=/not/this&token-file=/nor/this", f"--{ca}", f"--{wall}").code == 0
    assert "/no/token cannot be read" in cli("count", f"--address={address}?{ca}").err


def test_workers_of_a_supervisor_use_its_options_whatever_the_variables_say(secured: tuple[Safe, str]) -> None:
    safe, address = secured
    given = (f"--address={address}", f"--ca={safe.authority.ca}", f"--token-file={safe.files['workers']}")
    variables = {"FUSEE_TOKEN_FILE": str(safe.files["wall"]), "FUSEE_CA": str(safe.cert)}
    with running("worker", "orders", "--processes=2", *given, **variables) as worker:
        assert f"ready at {address}: holds" in worker.line()


@pytest.mark.parametrize("processes", [(), ("--processes=2",)])
def test_a_worker_whose_token_has_another_scope_is_denied_before_its_lifespan(
    secured: tuple[Safe, str], tmp_path: Path, processes: tuple[str, ...]
) -> None:
    safe, address = secured
    given = (f"--address={address}", f"--ca={safe.authority.ca}", f"--token-file={safe.files['wall']}", "--json", *processes)
    answer = Running("worker", "orders", *given, ORDERS_TRACE=str(tmp_path / "trace")).end()
    assert answer.code == 1 and "a worker needs a token of scope full, this one has read" in answer.err
    assert "denied" in answer.err and not (tmp_path / "trace").exists()


def test_a_patient_worker_waits_outside_of_its_lifespan_until_its_token_will_do(secured: tuple[Safe, str], tmp_path: Path) -> None:
    safe, address = secured
    token, trace = tmp_path / "token", tmp_path / "trace"
    shutil.copy(safe.files["wall"], token)
    given = (f"--address={address}", f"--ca={safe.authority.ca}", f"--token-file={token}", "--patient", "--log-level=debug")
    with running("worker", "orders", *given, ORDERS_TRACE=str(trace)) as worker:
        until(lambda: worker.err.count("needs a token of scope full") >= 2)
        assert not trace.exists()
        shutil.copy(safe.files["workers"], tmp_path / "next")
        (tmp_path / "next").replace(token)
        assert "ready" in worker.line()
        assert trace.read_text() == "entered\n"


def test_what_is_denied_ends_with_1_and_says_why(cli: Cli, secured: tuple[Safe, str]) -> None:
    safe, _ = secured
    ca = f"--ca={safe.authority.ca}"
    for arguments, said in (
        (("count", ca), "asks for a token"), (("count",), "over TLS alone"),
        (("shards", ca), "asks for a token"), (("shards",), "over TLS alone"),
        (("start", "order", "o-2", ca, f"--token-file={safe.files['wall']}"), "needs a token of scope client"),
    ):
        answer = cli(*arguments, "--json")
        assert answer.code == 1 and json.loads(answer.err)["error"]["code"] == "denied" and said in answer.err


def test_files_that_cannot_be_used_are_named(cli: Cli, secured: tuple[Safe, str], tmp_path: Path) -> None:
    safe, _ = secured
    answer = cli("count", f"--ca={safe.authority.ca}", f"--token-file={tmp_path / 'missing'}")
    assert answer.code == 1 and f"the token file {tmp_path / 'missing'} cannot be read" in answer.err
    assert cli("count", f"--cert={safe.cert}").code == 2


@pytest.mark.parametrize("options", [("--tls-cert=x",), ("--unix-mode=9",), ("--unix-mode=rw",), ("--connections=0",)])
def test_wrong_use_of_serve_is_2(cli: Cli, tmp_path: Path, options: tuple[str, ...]) -> None:
    assert cli("serve", str(tmp_path / "data"), *options).code == 2
