from __future__ import annotations

from typing import Any

import click

from fusee_mp.cli import options
from fusee_mp.cli.main import COMMANDS
from fusee_mp.cli.output import say_done


@click.command(help=COMMANDS["complete"] + " VALUE is JSON. A token is good once.")
@click.argument("token")
@click.argument("value", type=options.JSON, required=False)
@options.answer_timeout
@options.address
@options.as_json
def command(token: str, value: Any, timeout_ms: int, address: str, as_json: bool) -> None:
    from fusee_mp.cli.asking import ask
    from fusee_mp.core.token import read_token

    id = read_token(token).id
    ask(address, lambda client: client.complete(token, value), timeout_ms)
    say_done(f'completed what "{id}" waited for', {"id": id}, as_json)
