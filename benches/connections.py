"""What connections cost a server of 2 shards: descriptors and memory of every process before 10,000 clients and after them, and memory and
CPU beside 2,000 of them that are idle.

The clients are there 2,000 at a time, and each makes a call; they live in this process. 2,000 come and go before anything is measured, so
that what the first ones need is there. Options: --plain for a server without TLS and tokens. Bound: after the last no process has a
descriptor, or 2 MiB, more than before.
"""
from __future__ import annotations

import argparse
import asyncio
import resource
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import uvloop

from benches.certificates import Secured
from benches.tree import Tree, folder, kind_of, server
from fusee_mp import Client

SHARDS = 2
AT_ONCE, ROUNDS = 2_000, 5
BEGINNING_AT_ONCE = 100
IDLE_S, SETTLED_S = 15.0, 10.0


def state(tree: Tree) -> dict[str, tuple[int, float]]:
    """Descriptors, but for the log's own files, and MiB of each process."""
    return {
        f"{kind_of(member)} {number}": (member.num_fds() - len(member.open_files()), member.memory_full_info().uss / (1 << 20))
        for number, member in enumerate(tree.members())
    }


async def connect(tree: Tree, given: dict[str, Any], stack: AsyncExitStack) -> None:
    room = asyncio.Semaphore(BEGINNING_AT_ONCE)

    async def one() -> None:
        async with room:
            client = await stack.enter_async_context(Client.connect(tree.address, **given))
            await client.count()

    await asyncio.gather(*(one() for _ in range(AT_ONCE)))


async def cpu_share(tree: Tree) -> float:
    before = sum(tree.cpu_s().values())
    await asyncio.sleep(IDLE_S)
    return (sum(tree.cpu_s().values()) - before) / IDLE_S * 100


async def measure(tree: Tree, given: dict[str, Any]) -> bool:
    async with AsyncExitStack() as stack:
        await connect(tree, given, stack)
    await asyncio.sleep(SETTLED_S)
    before = state(tree)
    print(f"nobody connected: {await cpu_share(tree):.2f} % CPU")
    for number in range(ROUNDS):
        async with AsyncExitStack() as stack:
            await connect(tree, given, stack)
            if number == 0:
                beside = state(tree)
                print(f"{AT_ONCE:,} idle connections: {await cpu_share(tree):.2f} % CPU")
    await asyncio.sleep(SETTLED_S)
    after = state(tree)
    print(f"{'':12} descriptors: before, with {AT_ONCE:,}, after {AT_ONCE * ROUNDS:,};  MiB of its own: the same")
    for name, (descriptors, mib) in before.items():
        print(f"{name:12} {descriptors:6} {beside[name][0]:6} {after[name][0]:6}  {mib:8.1f} {beside[name][1]:8.1f} {after[name][1]:8.1f}")
    return all(after[name][0] <= descriptors and after[name][1] < mib + 2 for name, (descriptors, mib) in before.items())


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--plain", action="store_true")
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    with folder() as place:
        secured = None if options.plain else Secured(place)
        with server(Path(place) / "data", SHARDS, *(secured.options if secured else ())) as tree:
            return 0 if uvloop.run(measure(tree, secured.given if secured else {})) else 1


if __name__ == "__main__":
    sys.exit(main())
