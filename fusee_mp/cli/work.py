# A worker as the whole of a process: its signals, its loop, and what happens when the server goes away in order.
"""`work`: run a module's workflows until told to end."""
from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
import sys
import time
from dataclasses import dataclass
from typing import Final

import click

from fusee_mp.cli import options
from fusee_mp.cli.modules import Program, load
from fusee_mp.cli.output import say_json
from fusee_mp.errors import Denied, Unavailable
from fusee_mp.runtime.collector import settle
from fusee_mp.sdk.sync import new_loop
from fusee_mp.sdk.worker import AWAY_SAID_S, Worker

LOG: Final = logging.getLogger("fusee_mp.worker")
STOPS: Final = (signal.SIGTERM, signal.SIGINT)
REJOIN_FIRST_S: Final = 0.1
REJOIN_MOST_S: Final = 2.0


@dataclass(frozen=True)
class Job:
    module: str
    address: str
    max_shards: int
    grace_ms: int
    turn_ms: int
    name: str
    as_json: bool


def work(job: Job, is_patient: bool) -> int:
    """Run a worker until SIGTERM or SIGINT; the exit code. Raises Unavailable when there is no server at first, unless it is patient."""
    # A supervisor has them blocked, and a child begins as its parent was.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    program = load(job.module)
    settle()
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_until_stopped(job, program, is_patient))
    return 0


async def _until_stopped(job: Job, program: Program, is_patient: bool) -> None:
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    for number in STOPS:
        loop.add_signal_handler(number, task.cancel)  # The second one cuts the leaving short.
    try:
        await _keep_joined(job, program, is_patient)
    except asyncio.CancelledError:
        LOG.info("worker ended")


async def _keep_joined(job: Job, program: Program, is_patient: bool) -> None:
    """Work; join again when the server has stopped in order. Only the very first time a missing server is an error."""
    pause_s, said_at = REJOIN_FIRST_S, -math.inf
    while True:
        try:
            async with Worker.connect(
                job.address, workflows=program.workflows, max_shards=job.max_shards, lifespan=program.lifespan, grace=job.grace_ms / 1000,
                turn_timeout=job.turn_ms / 1000, name=job.name, codec=program.codec,
            ) as worker:
                is_patient, pause_s, said_at = True, REJOIN_FIRST_S, -math.inf
                _say_ready(job, worker, [workflow.name for workflow in program.workflows])
                await worker.run()
            LOG.info("the server has stopped: waiting for its return")
        except (Unavailable, Denied) as error:
            if not is_patient:
                raise
            said_at = _say_why_not(error, said_at)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, REJOIN_MOST_S)


def _say_why_not(error: Unavailable | Denied, said_at: float) -> float:
    """Somebody must mend a refusal, so that is said now and then; a server that is away comes back. When it was said last."""
    now = time.monotonic()
    is_due = isinstance(error, Denied) and now - said_at >= AWAY_SAID_S
    LOG.log(logging.WARNING if is_due else logging.DEBUG, "%s; trying again until it is let in", error)
    return now if is_due else said_at


def _say_ready(job: Job, worker: Worker, workflows: list[str]) -> None:
    if job.as_json:
        say_json({"ready": worker.name, "pid": os.getpid(), "held": worker.held, "workflows": workflows})
    else:
        held = ", ".join(map(str, worker.held))
        click.echo(f"worker {worker.name} ready at {options.place(job.address)}: holds shard {held}; workflows {', '.join(workflows)}")
    sys.stdout.flush()
