"""A request waits for a person, is reminded, and expires: over a server, with the client in another process than the code.

Run it:  python examples/approval.py          starts a server and a worker of its own, for a look
Or on a server of yours, from the directory of this file:
         fusee-mp serve ./data
         fusee-mp worker approval
         fusee-mp start approval request-1 '{"who": "ann", "amount": 120, "patience": "1d"}'
         fusee-mp signal request-1 decision true
         fusee-mp result request-1
"""
from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fusee_mp import Ctx, SyncClient, signal, step, workflow

DECISION = signal("decision", bool)


@dataclass
class Request:
    who: str
    amount: int
    patience: str = "1d"


@dataclass
class Outcome:
    status: Literal["approved", "refused", "expired"]
    reminders: int


@step
async def notify(who: str, text: str) -> None:
    print(f"  to {who}: {text}", flush=True)


@workflow("approval")
async def approval(ctx: Ctx, request: Request) -> Outcome:
    await notify(request.who, f"please decide about {request.amount}")
    for reminders in range(3):
        # A durable wait: it goes on while no process runs at all, and costs nothing meanwhile.
        decision = await ctx.wait_for(DECISION, timeout=request.patience)
        if decision is not None:
            return Outcome("approved" if decision else "refused", reminders)
        await notify(request.who, "still waiting")
    return Outcome("expired", 3)


def main() -> None:
    with server_and_worker() as address, SyncClient.connect(address) as client:
        asked = client.start(approval, "request-1", Request("ann", 120))
        asked.signal(DECISION, True)
        forgotten = client.start(approval, "request-2", Request("bob", 7, patience="50ms"))
        print("request-1:", asked.result(timeout="30s"))
        print("request-2:", forgotten.result(timeout="30s"))


@contextmanager
def server_and_worker() -> Generator[str]:
    """A server and a worker for this example alone; nothing of them is left afterwards."""
    with tempfile.TemporaryDirectory() as directory:
        server = start("serve", f"{directory}/data", "--listen", "127.0.0.1:0", "--shards", "2")
        try:
            address = first_line(server).split(" ready on ")[1].split()[0]
            worker = start("worker", Path(__file__).stem, "--address", address)
            try:
                print(first_line(worker), flush=True)
                yield address
            finally:
                end(worker)
        finally:
            end(server)


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "fusee_mp.cli", *arguments, "--log-level", "warning"]
    here = Path(__file__).resolve().parent
    path = os.pathsep.join(filter(None, [str(here.parent), os.environ.get("PYTHONPATH")]))
    return subprocess.Popen(command, cwd=here, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path})


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def end(process: subprocess.Popen[str]) -> None:
    """Ask it to end, and pass on what it said."""
    process.terminate()
    rest, _ = process.communicate()
    print(rest, end="", flush=True)


if __name__ == "__main__":
    main()
