from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from fusee_mp.cli import options
from fusee_mp.cli.main import COMMANDS
from fusee_mp.cli.output import instant, say_json, say_table, took

if TYPE_CHECKING:
    from fusee_mp.sdk.types import RunStatus


@click.command(help=COMMANDS["list"] + " Within each shard; the shards follow one another.")
@options.where
@click.option("--limit", type=click.IntRange(1, 100_000), default=100, show_default=True, help="At most so many.")
@click.option("--after", metavar="CURSOR", help="Go on after the run with this cursor: the last one of the page before.")
@options.answer_timeout
@options.address
@options.as_json
def command(where: Any, limit: int, after: str | None, timeout_ms: int, address: str, as_json: bool) -> None:
    from fusee_mp.cli.asking import ask

    found = ask(address, lambda client: client.list(where, limit, after), timeout_ms)
    if as_json:
        say_json(found)
        return
    _say(found)
    if len(found) == limit:
        click.echo(f"There may be more: --after {found[-1].cursor}", err=True)


def _say(found: Sequence[RunStatus]) -> None:
    """With the reasons, where there are any: whole, since whoever asks for what is set aside wants to know why."""
    head = ("ID", "WORKFLOW", "STATUS", "STARTED", "TOOK", "SHARD")
    rows = [(run.id, run.workflow, run.status, instant(run.started), took(run), str(run.shard)) for run in found]
    if any(run.reason for run in found):
        say_table((*head, "REASON"), [(*row, " ".join(run.reason.split())) for row, run in zip(rows, found, strict=True)], None)
    else:
        say_table(head, rows)
