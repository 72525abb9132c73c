"""A program that makes a client and then children, in every way that multiprocessing knows. Says what each found, a line each.

ADDRESS METHOD, where METHOD is fork, spawn or forkserver.
"""
from __future__ import annotations

import multiprocessing
import pickle
import sys
from collections.abc import Callable
from typing import Any

from fusee_mp import FuseeError, SyncClient

PATIENCE_S = 20.0


def uses_its_own(address: str) -> None:
    with SyncClient.connect(address) as client:
        say("its own", lambda: client.status("nobody"))


def uses_the_parents() -> None:
    """Only a fork has it."""
    say("the parent's", lambda: PARENTS[0].status("nobody"))


PARENTS: list[SyncClient] = []


def say(what: str, ask: Callable[[], object]) -> None:
    try:
        print(f"{what}: {ask()}", flush=True)
    except FuseeError as e:
        print(f"{what}: {e.code}: {e}", flush=True)


def in_child(method: Any, target: Callable[..., None], *args: Any) -> None:
    child = multiprocessing.get_context(method).Process(target=target, args=args)
    child.start()
    child.join(PATIENCE_S)
    if child.exitcode is None:
        child.kill()
        print(f"{target.__name__} hangs")


def main(address: str, method: str) -> None:
    with SyncClient.connect(address) as client:
        PARENTS.append(client)
        say("the parent", lambda: client.status("nobody"))
        in_child(method, uses_its_own, address)
        if method == "fork":
            in_child(method, uses_the_parents)
        say("handed over", lambda: pickle.dumps(client))
        say("the parent", lambda: client.status("nobody"))


if __name__ == "__main__":
    main(*sys.argv[1:])
