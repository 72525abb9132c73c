from __future__ import annotations

import click

from fusee_mp.cli import options
from fusee_mp.cli.main import COMMANDS
from fusee_mp.cli.output import say_done


@click.command(help=COMMANDS["pause"] + " Steps that run may end, and what arrives is recorded.")
@options.workflow_id
@click.argument("reason", default="")
@options.answer_timeout
@options.address
@options.as_json
def command(id: str, reason: str, timeout_ms: int, address: str, as_json: bool) -> None:
    from fusee_mp.cli.asking import ask

    ask(address, lambda client: client.handle(id).pause(reason), timeout_ms)
    say_done(f'"{id}" is paused', {"id": id, "reason": reason}, as_json)
