"""Clients and the children of their process: by fork, by spawn, by a fork server."""
from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fusee_mp import Client, Engine, Rejected, Worker
from tests.server.flows import WORKFLOWS
from tests.server.loopback import asynchronous
from tests.server.tree import PATIENCE_S, Tree, serving


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    with serving(tmp_path_factory.mktemp("forks") / "data", shards=1) as tree:
        yield tree


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_children_of_a_process_with_a_client_never_hang_and_are_told_what_to_do(tree: Tree, method: str) -> None:
    """G08"""
    done = subprocess.run(
        [sys.executable, "-m", "tests.server.forking", tree.address, method], check=False, cwd=Path(__file__).parents[2],
        capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.endswith(": None")] == ["the parent: None", "its own: None", "the parent: None"]
    refused = [line for line in lines if not line.endswith(": None")]
    assert refused.pop().startswith("handed over: rejected: a SyncClient was to be pickled or copied")
    if method == "fork":
        assert refused.pop().startswith("the parent's: unavailable: this client was made before a fork")
    assert not refused


@asynchronous
async def test_what_is_of_this_process_alone_cannot_be_handed_to_another(tree: Tree) -> None:
    """G08"""
    async with (
        Client.connect(tree.address) as client, Worker.connect(tree.address, workflows=WORKFLOWS) as worker,
        Engine.memory(workflows=WORKFLOWS) as engine,
    ):
        for one in (client, worker, engine, worker.engine, client.handle("any")):
            for hand_on in (pickle.dumps, copy.deepcopy):
                with pytest.raises(Rejected, match="Pass on the address, and make a"):
                    hand_on(one)
