from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from fusee_mp.cli import options
from fusee_mp.cli.main import COMMANDS
from fusee_mp.cli.output import say_json, say_table

if TYPE_CHECKING:
    from fusee_mp.sdk.limit import Limit

HEAD = ("LIMIT", "CONCURRENT", "PER SECOND", "IN USE", "WAITING", "MOST")


@click.command(help=COMMANDS["limits"] + " Most: how many permits were held at once at most since the server, or the shard of the"
               " limit's name, was started.")
@click.argument("name", required=False)
@click.option("--concurrent", type=int, help="Define NAME: so many steps at once, 0 for no bound.")
@click.option("--per-second", type=float, help="Define NAME: so many steps begun in a second, 0 for no rate.")
@options.answer_timeout
@options.address
@options.as_json
def command(
    name: str | None, concurrent: int | None, per_second: float | None, timeout_ms: int, address: str, as_json: bool
) -> None:
    from fusee_mp.cli.asking import ask
    from fusee_mp.errors import NotFound

    if concurrent is not None or per_second is not None:
        if name is None:
            raise click.UsageError("--concurrent and --per-second define a limit: give its NAME")
        defined, wanted = name, _limit(concurrent or 0, per_second or 0.0)
        ask(address, lambda client: client.limit(defined, wanted), timeout_ms)
    found = [limit for limit in ask(address, lambda client: client.list_limits(), timeout_ms) if name in (None, limit.name)]
    if name is not None and not found:
        raise NotFound(f'no limit has the name "{name}": define it with --concurrent or --per-second', limit=name)
    if as_json:
        say_json([asdict(limit) for limit in found])
    else:
        say_table(HEAD, [(one.name, _bound(one.concurrent), _bound(one.per_second), str(one.in_use), str(one.waiting), str(one.most))
                         for one in found])


def _limit(concurrent: int, per_second: float) -> Limit:
    from fusee_mp.errors import Rejected
    from fusee_mp.sdk.limit import Limit

    try:
        return Limit(concurrent, per_second)
    except Rejected as error:
        raise click.UsageError(error.message) from None


def _bound(value: float) -> str:
    return f"{value:g}" if value else "-"
