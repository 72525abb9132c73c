"""Workers as commands: what they load, how many there are, and how they end."""
from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from fusee_mp.cli import work
from fusee_mp.cli.modules import Program, load
from fusee_mp.errors import Denied
from tests.cli.harness import PATIENCE_S, Answer, Cli, Running, running, serving, until
from tests.processes import is_alive


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("server"), shards=3) as (_, address):
        yield address


def holders(offline: Cli, address: str) -> list[list[int]]:
    """The shards of each worker, once all are held."""
    def held() -> Any:
        status = offline("shards", "--json", f"--address={address}").json
        return all(shard["worker"] for shard in status["shards"]) and sorted(worker["held"] for worker in status["workers"])

    found: list[list[int]] = until(held)
    return found


def worker_processes(supervisor: Running) -> list[psutil.Process]:
    found: list[psutil.Process] = until(lambda: len(all_ := psutil.Process(supervisor.pid).children()) == 2 and all_)
    return found


def test_two_processes_share_the_shards_evenly_and_end_with_their_supervisor(server: str, offline: Cli) -> None:
    with running("worker", "orders", "--processes=2", f"--address={server}") as supervisor:
        supervisor.line(), supervisor.line()
        assert sorted(map(len, holders(offline, server))) == [1, 2]
        workers = worker_processes(supervisor)
        assert supervisor.stop().code == 0
    assert not any(map(is_alive, workers))


def test_a_worker_process_that_dies_is_started_again(server: str, offline: Cli) -> None:
    with running("worker", "orders", "--processes=2", f"--address={server}") as supervisor:
        supervisor.line(), supervisor.line()
        victim, other = worker_processes(supervisor)
        victim.kill()
        supervisor.line()
        assert is_alive(other)
        assert victim not in worker_processes(supervisor)
        assert sorted(map(len, holders(offline, server))) == [1, 2]
        assert offline("run", "where", "--address", server, "--timeout=20s").code == 0
    assert f"worker process {victim.pid} was killed by SIGKILL; starting it again" in supervisor.err


def test_no_worker_process_outlives_a_supervisor_that_is_killed(server: str) -> None:
    with running("worker", "orders", "--processes=2", f"--address={server}") as supervisor:
        supervisor.line(), supervisor.line()
        workers = worker_processes(supervisor)
        supervisor.process.kill()
        supervisor.end()
    until(lambda: not any(map(is_alive, workers)))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_worker_in_order_through_its_lifespan(server: str, tmp_path: Path, number: signal.Signals) -> None:
    trace = tmp_path / "trace"
    with running("worker", "orders", f"--address={server}", ORDERS_TRACE=str(trace)) as worker:
        assert "; workflows order, approval, where" in worker.line()
        assert trace.read_text() == "entered\n"
        worker.process.send_signal(number)
        assert worker.end().code == 0
    assert trace.read_text() == "entered\nleft\n"


def test_a_worker_that_stands_by_ends_at_once_when_told(server: str, offline: Cli) -> None:
    with running("worker", "orders", f"--address={server}") as holder:
        holder.line()
        holders(offline, server)
        with running("worker", "orders", f"--address={server}", "--name=standby") as standby:
            until(lambda: "Standing by: standby" in offline("shards", f"--address={server}").out)
            until(lambda: "worker standby stands by: all shards of the server are held (0 by " in standby.err)
            answer = standby.stop()
            assert (answer.code, answer.out) == (0, "")


def test_run_gives_up_in_time_while_no_worker_takes_the_start_and_says_how_to_ask_again(server: str, offline: Cli) -> None:
    where = ("where", "unsure-1", f"--address={server}")
    given_up = offline("run", *where, "--timeout=300ms", "--json")
    error = json.loads(given_up.err)["error"]
    assert given_up.code == 3 and error["code"] == "unavailable" and "within 0.3 s" in error["message"]
    assert "fusee-mp run where unsure-1 .. --on-running use_existing --on-finished use_existing" in error["message"]
    assert offline("start", *where, "--timeout=300ms").code == 3
    assert 'the start of "' in offline("start", "where", f"--address={server}", "--timeout=300ms").err
    with running("worker", "orders", f"--address={server}") as worker:
        worker.line()
        again = ("--on-running=use_existing", "--on-finished=use_existing", "--timeout=20s")
        assert [offline("run", *where, *again).out for _ in range(2)] == [f"{worker.pid}\n"] * 2
    assert offline("count", "--where", '{"id": "unsure-1"}', f"--address={server}").out == "1\n"


def test_what_run_waits_for_the_end_is_what_its_start_left_of_the_time(server: str, offline: Cli) -> None:
    with running("worker", "orders", f"--address={server}") as worker:
        worker.line()
        answer = offline("run", "approval", "unsure-2", f"--address={server}", "--timeout=500ms")
        assert answer.code == 1 and "has not ended within 0.5 s" in answer.err
        assert offline("terminate", "unsure-2", f"--address={server}").code == 0


def test_max_shards_bounds_what_a_worker_takes(server: str, offline: Cli) -> None:
    with running("worker", "orders", f"--address={server}", "--max-shards=1") as first:
        first.line()
        with running("worker", "orders", f"--address={server}") as second:
            second.line()
            assert sorted(map(len, holders(offline, server))) == [1, 2]


def test_an_attribute_chooses_what_is_run(server: str) -> None:
    with running("worker", "orders:order", "--json", f"--address={server}") as worker:
        assert json.loads(worker.line())["workflows"] == ["order"]
    assert [workflow.name for workflow in load("tests.cli.orders:BUNDLE").workflows] == ["order", "approval"]


def test_a_worker_waits_for_a_server_that_comes_back(tmp_path: Path, offline: Cli) -> None:
    address = f"unix:{tmp_path}/s"
    with serving(tmp_path / "data", f"--unix={tmp_path}/s") as (first, _):
        worker = Running("worker", "orders", f"--address={address}", f"--parent={os.getpid()}")
        try:
            worker.line()
            assert first.stop().code == 0
            with serving(tmp_path / "data", f"--unix={tmp_path}/s"):
                assert offline("run", "where", f"--address={address}", "--timeout=20s", "--json").json["result"] == worker.pid
                assert worker.stop().code == 0
        finally:
            if worker.process.returncode is None:
                worker.stop()


def test_lifespan_is_entered_only_where_a_server_is(tmp_path: Path, offline: Cli) -> None:
    address, trace = f"unix:{tmp_path}/s", tmp_path / "trace"
    assert Running("worker", "orders", f"--address={address}", ORDERS_TRACE=str(trace)).end().code == 3
    assert not trace.exists()
    with running("worker", "orders", "--patient", "--log-level=debug", f"--address={address}", ORDERS_TRACE=str(trace)) as worker:
        for lives in (1, 2):
            before = worker.err.count("no server answers")
            until(lambda before=before: worker.err.count("no server answers") >= before + 3)
            with serving(tmp_path / "data", f"--unix={tmp_path}/s"):
                worker.line()
            until(lambda lives=lives: trace.read_text() == lives * "entered\nleft\n")


def test_a_server_that_stays_away_is_spoken_of_once(tmp_path: Path) -> None:
    with serving(tmp_path / "data", f"--unix={tmp_path}/s", shards=1) as (server, _):
        worker = Running("worker", "orders", "--log-level=debug", f"--address=unix:{tmp_path}/s", f"--parent={os.getpid()}")
        try:
            worker.line()
            server.process.kill()  # Not in order, so that the worker stays what it is.
            server.end()
            until(lambda: "has no session" in worker.err)
            with socket.socket(socket.AF_UNIX) as nobody:
                (tmp_path / "s").unlink()
                nobody.bind(str(tmp_path / "s"))
                nobody.listen()
                nobody.settimeout(PATIENCE_S)
                for _ in range(4):
                    nobody.accept()[0].close()
            assert worker.err.count("has no session") == 1
        finally:
            worker.stop()


BROKEN = "def helper():\n    raise KeyError('a key of theirs')\n\nhelper()\n"


@pytest.mark.parametrize(("target", "source", "words"), [
    ("no_such_module", "", 'no module "no_such_module" is in'),
    ("shop/orders.py", "", "Write it as Python imports it: shop.orders"),
    ("not a module", "", "is not the name of a module"),
    ("shop", "", "has no workflow"),
    ("shop", "import no_such_library\n", "no_such_library"),
    ("shop", BROKEN, "in helper"),
    ("shop", "def f(:\n", "SyntaxError"),
    ("shop:nothing", "", "found nothing of that name"),
    ("shop:number", "number = 1\n", "found 1"),
    ("shop", "from fusee_mp import workflow\n@workflow\nasync def w(ctx): ...\nlifespan = 3\n", "asynccontextmanager"),
    ("shop", "from fusee_mp import workflow\n@workflow\nasync def w(ctx): ...\ncodec = 3\n", "expected something with `seal` and `open`"),
])
def test_a_module_that_cannot_be_run_is_wrong_use_and_says_why(
    tmp_path: Path, offline: Cli, monkeypatch: pytest.MonkeyPatch, target: str, source: str, words: str,
) -> None:
    (tmp_path / "shop.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.delitem(sys.modules, "shop", raising=False)
    answer = offline("worker", target)
    assert (answer.code, answer.out) == (2, "")
    assert words in answer.err
    assert "fusee_mp/cli" not in answer.err  # The user's own lines, not ours.


def test_several_processes_of_a_module_that_cannot_be_run_end_with_wrong_use(server: str) -> None:
    answer: Answer = Running("worker", "no_such_module", "--processes=2", f"--address={server}").end()
    assert answer.code == 2 and 'no module "no_such_module"' in answer.err
    assert "ending all" in answer.err and "starting it again" not in answer.err


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize(("source", "said", "in_exception"), [
    (BROKEN, "module \"shop\" cannot be imported: KeyError: 'a key of theirs'", "in helper"), ("", "has no workflow", ""),
])
def test_with_a_log_in_json_all_that_is_said_of_a_module_is_in_its_lines(
    server: str, tmp_path: Path, processes: int, source: str, said: str, in_exception: str,
) -> None:
    (tmp_path / "shop.py").write_text(source)
    given = (f"--processes={processes}", "--log-format=json", f"--address={server}", "--json")
    answer = Running("worker", "shop", *given, cwd=tmp_path).end()
    lines = [json.loads(line) for line in answer.err.splitlines()]
    errors = [line for line in lines if line["level"] == "critical"]
    assert answer.code == 2 and errors and all(line["code"] == "usage" and said in line["message"] for line in errors)
    assert all(in_exception in line.get("exception", "") for line in errors)
    assert all("Traceback" not in line["message"] for line in lines)


@pytest.mark.parametrize(("every_s", "lines"), [(3600.0, 1), (0.0, 5)])
def test_a_worker_that_is_refused_says_so_now_and_then(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, every_s: float, lines: int,
) -> None:
    answers: list[BaseException] = [*[Denied("its token is not known here")] * 5, asyncio.CancelledError()]

    def connect(*_: Any, **__: Any) -> Any:
        raise answers.pop(0)

    monkeypatch.setattr(work.Worker, "connect", connect)
    monkeypatch.setattr(work, "REJOIN_FIRST_S", 0.0)
    monkeypatch.setattr(work, "AWAY_SAID_S", every_s)
    job = work.Job("orders", "127.0.0.1:1", 0, 0, 2_000, "w", False)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(work._keep_joined(job, Program([], None, None), is_patient=True))
    assert [record.levelname for record in caplog.records].count("WARNING") == lines
    assert "its token is not known here; trying again until it is let in" in caplog.text
