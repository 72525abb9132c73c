from __future__ import annotations

import os

import click

from fusee_mp.cli import options
from fusee_mp.cli import parent as parent_
from fusee_mp.cli.main import COMMANDS
from fusee_mp.names import checked_name

HELP = COMMANDS["worker"] + """

MODULE is imported as Python does it, also from the current directory; every @workflow in it is run, and its `lifespan`, if there is
one, is entered once the server would let it in, before the first shard is taken. MODULE:ATTR takes one workflow, or a list of them.

SIGTERM or Ctrl-C lets running steps finish (see --grace) and hands the shards back; a second one ends at once. While the server is
away the worker waits for it, but at its first start there must be one.
"""
NAME = options.Checked("name", lambda text: checked_name("worker", text))


@click.command(help=HELP)
@click.argument("module")
@click.option("--processes", type=click.IntRange(1, 1024), default=1, show_default=True,
              help="How many worker processes. One that dies is started again.")
@click.option("--max-shards", type=click.IntRange(0, 1024), metavar="N",
              help="How many shards each process takes at most; 0: all that are free.  [default: an even share of the server's]")
@click.option("--grace", "grace_ms", type=options.DURATION_MS, default="30s", show_default=True, metavar="DURATION",
              help="How long running steps may go on when the worker is told to end.")
@click.option("--turn-timeout", "turn_ms", type=options.TURN_MS, default="2s", show_default=True, metavar="DURATION",
              help="Workflow code that runs for so long without waiting is named, and set aside.")
@click.option("--name", type=NAME, metavar="NAME", help="The worker's name, which must be its own.  [default: host name and process ID]")
@click.option("--patient", "is_patient", is_flag=True, hidden=True, help="Wait for the server at the first start too.")
@parent_.option
@options.log_level
@options.log_format
@options.address_alone
@options.as_json
def command(
    module: str, processes: int, max_shards: int | None, grace_ms: int, turn_ms: int, name: str | None, is_patient: bool,
    parent: int | None, log_level: str, log_format: str, address: str, as_json: bool,
) -> int:
    parent_.depend_on(parent)
    if processes == 1:
        from fusee_mp.cli.work import Job, work

        options.log_to_stderr(log_level, log_format, f"worker-{os.getpid()}")
        return work(Job(module, address, max_shards or 0, grace_ms, turn_ms, name or "", as_json), is_patient)

    from fusee_mp.cli.supervisor import supervise

    options.log_to_stderr(log_level, log_format, "supervisor")
    flags = [f"--grace={grace_ms}ms", f"--turn-timeout={turn_ms}ms", f"--log-level={log_level}", f"--log-format={log_format}",
             f"--address={address}"]
    flags += ["--json"] if as_json else []
    return supervise(module, processes, max_shards, name or "", flags, address)
