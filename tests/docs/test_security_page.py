"""The commands of docs/features/security.md make files that a server and those who connect to it can use as they are."""
from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cli.harness import Running, running

PAGE = (Path(__file__).parents[2] / "docs" / "features" / "security.md").read_text("utf-8")
PATIENCE_S = 60


def made(folder: Path) -> None:
    found = re.search(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert found and "IP:10.0.0.5" in found[1]
    commands = "umask 022\n" + found[1].replace("IP:10.0.0.5", "IP:127.0.0.1")
    subprocess.run(["sh", "-eu", "-c", commands], cwd=folder, check=True, capture_output=True, timeout=PATIENCE_S)


def asked(folder: Path, *arguments: str) -> int:
    return Running(*arguments, cwd=folder).end().code


@pytest.mark.skipif(shutil.which("openssl") is None, reason="the page's commands are those of OpenSSL")
def test_the_files_that_its_commands_make_let_in_whom_they_should(tmp_path: Path) -> None:
    made(tmp_path)
    server = ("--tls-cert=server.pem", "--tls-key=server.key", "--tls-ca=ca.pem", "--tokens=tokens")
    with running("serve", "data", "--listen=127.0.0.1:0", "--shards=1", *server, cwd=tmp_path) as served:
        address = "--address=" + served.line().split(" ready on ")[1].split()[0]
        shop = ("--ca=ca.pem", "--cert=client.pem", "--key=client.key", "--token-file=shop.token")
        assert asked(tmp_path, "limits", "bank", "--concurrent=1", address, *shop) == 0
        assert asked(tmp_path, "count", address, *shop[:3], "--token-file=wall.token") == 0
        assert asked(tmp_path, "limits", "bank", "--concurrent=2", address, *shop[:3], "--token-file=wall.token") == 1
        assert asked(tmp_path, "count", address, shop[0], shop[3]) == 1
