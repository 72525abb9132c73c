from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import click

from fusee_mp.cli import options
from fusee_mp.cli.main import COMMANDS
from fusee_mp.cli.output import say_result


@click.command(
    help=COMMANDS["run"] + " INPUT is JSON. Without an ID one is made. Exit code 1 if the workflow ended otherwise than by returning,"
         " or has not ended within --timeout; 3 if its start was not acknowledged within it.",
)
@options.workflow_and_input
@options.start_policies
@options.end_timeout
@options.address
@options.as_json
def command(
    workflow: str, id: str, input: Any, policies: dict[str, Any], timeout_ms: int | None, address: str, as_json: bool,
) -> None:
    say_result(id, asyncio.run(_run(address, workflow, id, input, policies, timeout_ms)), as_json)


async def _run(address: str, workflow: str, id: str, input: Any, policies: dict[str, Any], timeout_ms: int | None) -> Any:
    """The result. Within the time-out the start is to be acknowledged, and in what is left of it the run is to end."""
    from fusee_mp.cli.asking import answered, connect, result_within, unsure_start

    loop = asyncio.get_running_loop()
    began_s = loop.time()
    async with contextlib.AsyncExitStack() as stack:
        async with answered(address, timeout_ms, unsure_start(workflow, id)):
            client = await stack.enter_async_context(connect(address))
            run = await client.start(workflow, id, input, **policies)
        return await result_within(run, timeout_ms, loop.time() - began_s)
