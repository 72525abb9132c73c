from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest

from tests.cli.harness import Cli, running, serving


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with a worker for the tests of a module."""
    directory = tmp_path_factory.mktemp("server")
    options = ("--json", "--turn-timeout=500ms")
    with serving(directory) as (_, address), running("worker", "orders", *options, f"--address={address}") as worker:
        assert json.loads(worker.line())["workflows"] == ["order", "approval", "where", "delivery", "stumbling", "spinning"]
        yield address


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], address: str, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.setitem(os.environ, "FUSEE_ADDRESS", address)
    return Cli(capsys, address)


@pytest.fixture
def offline(capsys: pytest.CaptureFixture[str]) -> Cli:
    """The command line without a server."""
    return Cli(capsys, "")
