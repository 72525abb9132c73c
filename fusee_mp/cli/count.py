from __future__ import annotations

from typing import Any

import click

from fusee_mp.cli import options
from fusee_mp.cli.main import COMMANDS
from fusee_mp.cli.output import say_json


@click.command(help=COMMANDS["count"])
@options.where
@options.answer_timeout
@options.address
@options.as_json
def command(where: Any, timeout_ms: int, address: str, as_json: bool) -> None:
    from fusee_mp.cli.asking import ask

    found = ask(address, lambda client: client.count(where), timeout_ms)
    if as_json:
        say_json({"count": found})
    else:
        click.echo(found)
