"""For all tests: a session that leaves something behind fails."""
from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, settings

from tests.leaks import Watch

pytest_plugins = ["tests.behaviours"]
DIRECTORY = pytest.StashKey[Path]()

# How long an example takes says how busy the machine is, and nothing about the code.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")


def pytest_configure(config: pytest.Config) -> None:
    """Give the session a temporary directory of its own, so that nobody else's files are mistaken for ours; each of several processes that
    share the tests has one in that. The names are short: paths of Unix sockets hold 107 bytes."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # A shell has its background jobs ignore Ctrl-C, and what they start inherits it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # started by nohup
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    directory = Path(tempfile.gettempdir(), _worker(config)) if _worker(config) else _new_directory()
    directory.mkdir(exist_ok=True)
    config.stash[DIRECTORY] = directory
    os.environ["TMPDIR"] = tempfile.tempdir = str(directory)
    if config.option.basetemp is None or _worker(config):
        config.option.basetemp = str(directory / "pytest")


def _worker(config: pytest.Config) -> str:
    """Which of the processes that share the tests this is, as "gw0"; empty in the one that hands them out, or runs them by itself."""
    return str(getattr(config, "workerinput", {}).get("workerid", ""))


def _new_directory() -> Path:
    """It has the process's number, which tells when its session was killed and nobody will clear it up."""
    for abandoned in Path(tempfile.gettempdir()).glob("ft-[0-9]*-*"):
        if not psutil.pid_exists(int(abandoned.name.split("-")[1])):
            shutil.rmtree(abandoned, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"ft-{os.getpid()}-"))


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left_behind(pytestconfig: pytest.Config) -> Iterator[None]:
    watch = Watch(pytestconfig.stash[DIRECTORY])
    yield
    leftovers = watch.leftovers()
    watch.end_processes()
    assert not leftovers, "the tests left behind:\n" + "\n".join(leftovers)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """What the tests wrote is kept only when somebody will want to look at it, and only of the last session that failed."""
    if _worker(session.config):
        return
    directory = session.config.stash[DIRECTORY]
    if session.testsfailed:
        kept = directory.parent / f"ft-failed-{os.getuid()}"
        shutil.rmtree(kept, ignore_errors=True)
        try:
            directory.rename(kept)
            print(f"\nfiles of the tests are kept in {kept}")
        except OSError:  # another session that failed keeps its own at this moment
            pass
    shutil.rmtree(directory, ignore_errors=True)
