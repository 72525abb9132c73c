from __future__ import annotations

import click

from fusee_mp.cli import options
from fusee_mp.cli.main import COMMANDS
from fusee_mp.cli.output import say_detail, say_json


@click.command(help=COMMANDS["describe"] + " The journal is everything that was recorded about its newest run, in order.")
@click.option("--wide", "is_wide", is_flag=True, help="Print payloads whole, however long the lines become.")
@options.workflow_id
@options.answer_timeout
@options.address
@options.as_json
def command(is_wide: bool, id: str, timeout_ms: int, address: str, as_json: bool) -> None:
    from fusee_mp.cli.asking import ask, missing

    detail = ask(address, lambda client: client.describe(id), timeout_ms)
    if detail is None:
        raise missing(id)
    if as_json:
        say_json(detail)
    else:
        say_detail(detail, is_wide)
