from __future__ import annotations

from typing import Any

import click

from fusee_mp.cli import options
from fusee_mp.cli.main import COMMANDS
from fusee_mp.cli.output import say_json


@click.command(help=COMMANDS["start"] + " INPUT is JSON. When this returns, the start is durable. Without an ID one is made.")
@options.workflow_and_input
@options.start_policies
@options.answer_timeout
@options.address
@options.as_json
def command(
    workflow: str, id: str, input: Any, policies: dict[str, Any], timeout_ms: int, address: str, as_json: bool,
) -> None:
    from fusee_mp.cli.asking import ask, unsure_start
    from fusee_mp.sdk.client import Client

    async def start(client: Client) -> None:
        await client.start(workflow, id, input, **policies)

    ask(address, start, timeout_ms, unsure_start(workflow, id))
    if as_json:
        say_json({"id": id, "workflow": workflow})
    else:
        click.echo(id)
