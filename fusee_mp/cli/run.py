from __future__ import annotations

from typing import Any

import click

from fusee_mp.cli import options
from fusee_mp.cli.main import COMMANDS
from fusee_mp.cli.output import say_result


@click.command(
    help=COMMANDS["run"] + " INPUT is JSON. Without an ID one is made. Exit code 1 if the workflow ended otherwise than by returning.",
)
@options.workflow_and_input
@options.start_policies
@options.end_timeout
@options.address
@options.as_json
def command(
    workflow: str, id: str | None, input: Any, policies: dict[str, Any], timeout_ms: int | None, address: str, as_json: bool,
) -> None:
    from fusee_mp.cli.asking import ask, result_within
    from fusee_mp.sdk.client import Client

    async def run(client: Client) -> tuple[str, Any]:
        run = await client.start(workflow, id, input, **policies)
        return run.id, await result_within(run, timeout_ms)

    say_result(*ask(address, run, None), as_json)
