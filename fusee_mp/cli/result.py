from __future__ import annotations

from typing import Any

import click

from fusee_mp.cli import options
from fusee_mp.cli.main import COMMANDS
from fusee_mp.cli.output import say_result


@click.command(help=COMMANDS["result"] + " Exit code 1 if the workflow ended otherwise than by returning.")
@options.workflow_id
@options.end_timeout
@options.address
@options.as_json
def command(id: str, timeout_ms: int | None, address: str, as_json: bool) -> None:
    from fusee_mp.cli.asking import ask, result_within
    from fusee_mp.sdk.client import Client

    async def result(client: Client) -> Any:
        return await result_within(client.handle(id), timeout_ms)

    say_result(id, ask(address, result, None), as_json)
