from __future__ import annotations

import click

from fusee_mp.cli import options
from fusee_mp.cli.main import COMMANDS
from fusee_mp.cli.output import say_done


@click.command(
    help=COMMANDS["reset"] + " An open run ends as reset; a step that does not exist is refused with the names of those that do.",
)
@options.workflow_id
@click.argument("step", type=options.NAME)
@click.option("--occurrence", type=click.IntRange(1), default=1, show_default=True, metavar="N",
              help="Which step of that name, counted from 1.")
@options.answer_timeout
@options.address
@options.as_json
def command(id: str, step: str, occurrence: int, timeout_ms: int, address: str, as_json: bool) -> None:
    from fusee_mp.cli.asking import ask

    ask(address, lambda client: client.handle(id).reset(step, occurrence=occurrence), timeout_ms)
    say_done(f'"{id}" goes on before step "{step}"', {"id": id, "step": step, "occurrence": occurrence}, as_json)
