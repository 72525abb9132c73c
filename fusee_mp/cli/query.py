from __future__ import annotations

from typing import Any

import click

from fusee_mp.cli import options
from fusee_mp.cli.main import COMMANDS
from fusee_mp.cli.output import say_json, say_value


@click.command(help=COMMANDS["query"] + " ARG is JSON. It changes nothing, and is answered after the workflow's end too.")
@options.workflow_id
@click.argument("name", type=options.NAME)
@click.argument("arg", type=options.JSON, required=False)
@options.answer_timeout
@options.address
@options.as_json
def command(id: str, name: str, arg: Any, timeout_ms: int, address: str, as_json: bool) -> None:
    from fusee_mp.cli.asking import ask

    answer = ask(address, lambda client: client.handle(id).query(name, arg), timeout_ms)
    if as_json:
        say_json({"id": id, "query": name, "answer": answer})
    else:
        say_value(answer)
