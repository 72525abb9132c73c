from __future__ import annotations

from typing import Any

import click

from fusee_mp.cli import options
from fusee_mp.cli.main import COMMANDS
from fusee_mp.cli.output import say_json, say_value


@click.command(help=COMMANDS["update"] + " VALUE is JSON. Exit code 1 if the workflow refuses it or its handler fails.")
@options.workflow_id
@click.argument("name", type=options.NAME)
@click.argument("value", type=options.JSON, required=False)
@click.option("--update-id", metavar="TEXT", help="A repeat with the same ID changes nothing and prints the first result.")
@options.answer_timeout
@options.address
@options.as_json
def command(
    id: str, name: str, value: Any, update_id: str | None, timeout_ms: int, address: str, as_json: bool,
) -> None:
    from fusee_mp.cli.asking import ask

    result = ask(address, lambda client: client.handle(id).update(name, value, update_id=update_id), timeout_ms)
    if as_json:
        say_json({"id": id, "update": name, "result": result})
    else:
        say_value(result)
