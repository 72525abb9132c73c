from __future__ import annotations

import click

from fusee_mp.cli import options
from fusee_mp.cli.main import COMMANDS
from fusee_mp.cli.output import say_detail, say_json


@click.command(help=COMMANDS["describe"] + " The journal is everything that was recorded about its newest run, in order.")
@options.workflow_id
@options.answer_timeout
@options.address
@options.as_json
def command(id: str, timeout_ms: int, address: str, as_json: bool) -> None:
    from fusee_mp.cli.asking import ask, missing

    detail = ask(address, lambda client: client.describe(id), timeout_ms)
    if detail is None:
        raise missing(id)
    (say_json if as_json else say_detail)(detail)
