from __future__ import annotations

import click

from fusee_mp.cli import options
from fusee_mp.cli.main import COMMANDS
from fusee_mp.cli.output import say_done


@click.command(help=COMMANDS["delete"])
@options.workflow_id
@options.answer_timeout
@options.address
@options.as_json
def command(id: str, timeout_ms: int, address: str, as_json: bool) -> None:
    from fusee_mp.cli.asking import ask

    ask(address, lambda client: client.handle(id).delete(), timeout_ms)
    say_done(f'"{id}" was deleted', {"id": id}, as_json)
