from __future__ import annotations

from typing import Any

import click

from fusee_mp.cli import options
from fusee_mp.cli.main import COMMANDS
from fusee_mp.cli.output import say_done


@click.command(
    help=COMMANDS["signal"] + " VALUE is JSON. When this returns, the signal is durable; it waits until the workflow asks for it.",
)
@options.workflow_id
@click.argument("name", type=options.NAME)
@click.argument("value", type=options.JSON, required=False)
@options.answer_timeout
@options.address
@options.as_json
def command(id: str, name: str, value: Any, timeout_ms: int, address: str, as_json: bool) -> None:
    from fusee_mp.cli.asking import ask

    ask(address, lambda client: client.handle(id).signal(name, value), timeout_ms)
    say_done(f'signal "{name}" sent to "{id}", and kept until the workflow waits for that name', {"id": id, "signal": name}, as_json)
