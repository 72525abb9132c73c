from __future__ import annotations

import click

from fusee_mp.cli import options
from fusee_mp.cli.main import COMMANDS
from fusee_mp.cli.output import say_json, say_status


@click.command(help=COMMANDS["status"])
@options.workflow_id
@options.answer_timeout
@options.address
@options.as_json
def command(id: str, timeout_ms: int, address: str, as_json: bool) -> None:
    from fusee_mp.cli.asking import ask, missing

    status = ask(address, lambda client: client.status(id), timeout_ms)
    if status is None:
        raise missing(id)
    (say_json if as_json else say_status)(status)
