"""`run`: a server as the whole of a process, with its signals and exit code."""
from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Final

import fusee_mp
from fusee_mp.bounds import ROUTER_GREETINGS_MAX, ROUTER_SESSIONS_MAX
from fusee_mp.errors import FuseeError
from fusee_mp.router.options import ServeOptions
from fusee_mp.router.server import Router

LOG: Final = logging.getLogger("fusee_mp.router")
# Refusals, logs, links: what a process has beside its connections.
OTHER_DESCRIPTORS: Final = 1024
EXIT_DONE: Final = 0
EXIT_FAILED: Final = 1


def print_ready(addresses: list[str]) -> None:
    """The one line on stdout: who waits for it can connect when it has come."""
    print(f"fusee-mp {fusee_mp.__version__} ready on {' '.join(addresses)} (pid {os.getpid()})", flush=True)


def print_failed(error: FuseeError) -> None:
    """Why it could not start, or go on."""
    print(f"fusee-mp: {error}", file=sys.stderr, flush=True)


def run(
    options: ServeOptions, on_ready: Callable[[list[str]], None] = print_ready, on_failed: Callable[[FuseeError], None] = print_failed
) -> int:
    """Serve until SIGTERM or SIGINT; a second one ends at once. Returns the exit code: 0 stopped in order, 1 failed or hurried.

    SIGHUP reads certificates and tokens again, where there are any.

    What goes wrong is told to `on_failed`. Takes the signals of the process while it runs.
    """
    _have_descriptors(options.connections)
    reads_again = options.key_files().has_any  # else a hang-up ends the server, as it ends other programs
    if reads_again:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # before there is somebody to take it, and after
    uvloop = _uvloop()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop if uvloop else None) as runner:
        try:
            return runner.run(_run(options, on_ready, reads_again))
        except FuseeError as error:
            on_failed(error)
            return EXIT_FAILED


async def _run(options: ServeOptions, on_ready: Callable[[list[str]], None], reads_again: bool) -> int:
    loop = asyncio.get_running_loop()
    router = Router(options)
    with contextlib.ExitStack() as undo:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, _stop, router, number)
            undo.callback(loop.remove_signal_handler, number)
        if reads_again:
            loop.add_signal_handler(signal.SIGHUP, router.reload)
            undo.callback(signal.signal, signal.SIGHUP, signal.SIG_IGN)
            undo.callback(loop.remove_signal_handler, signal.SIGHUP)
        await router.serve(on_ready)
    return EXIT_FAILED if router.was_hurried else EXIT_DONE


def _stop(router: Router, number: int) -> None:
    LOG.info("%s: stopping", signal.Signals(number).name)
    router.stop()


def _have_descriptors(connections: int) -> None:
    """Raise this process's bound on descriptors, and its children's, to what the connections need, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = max(connections, ROUTER_SESSIONS_MAX + ROUTER_GREETINGS_MAX) + OTHER_DESCRIPTORS
    if soft < min(needed, hard):
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(needed, hard), hard))
    if hard < needed:
        LOG.warning("%d connections may need %d descriptors, and this process may have %d: see `ulimit -Hn`", connections, needed, hard)


def _uvloop() -> ModuleType | None:
    try:
        import uvloop
    except ImportError:
        return None
    module: ModuleType = uvloop
    return module
