from __future__ import annotations

import asyncio
from typing import Any

import click

from fusee_mp.cli import options
from fusee_mp.cli.main import COMMANDS
from fusee_mp.cli.output import say_json, say_table

HEAD = ("SHARD", "STATE", "WORKER", "EPOCH", "DURABLE LSN", "APPLIED LSN", "CLIENTS", "RESTARTS", "PID", "KEEPER")
WORKERS_HEAD = ("WORKER", "SHARDS", "WORKFLOWS")


@click.command(help=COMMANDS["shards"] + " Durable: on disk in the log. Applied: in the store, which answers lists and histories.")
@options.answer_timeout
@options.address_alone
@options.as_json
def command(timeout_ms: int, address: str, as_json: bool) -> None:
    facts = asyncio.run(ask_server_status(address, timeout_ms))
    if as_json:
        say_json(facts)
        return
    say_table(HEAD, [_row(shard) for shard in facts["shards"]])
    if facts["workers"]:
        click.echo()
        say_table(WORKERS_HEAD, [_worker_row(worker) for worker in facts["workers"]])
    standbys = [worker["worker"] for worker in facts["workers"] if not worker["held"]]
    if standbys:
        click.echo(f"Standing by: {', '.join(standbys)}")
    for shard in facts["shards"]:
        if shard.get("refusal"):
            click.echo(f"Shard {shard['shard']} takes no new work: {shard['refusal']}")


async def ask_server_status(address: str, timeout_ms: int) -> dict[str, Any]:
    """What the router says about the whole server. Raises Unavailable."""
    from fusee_mp.errors import Unavailable
    from fusee_mp.sdk.address import parse_address
    from fusee_mp.sdk.connection import Connection, connect
    from fusee_mp.wire import messages as m
    from fusee_mp.wire.preface import ConnectionKind, Preface

    connection = await connect(parse_address(address), lambda: Connection(Preface(ConnectionKind.CONTROL)))
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            answer = await connection.ask(m.Status())
    except TimeoutError:
        place = options.place(address)
        raise Unavailable(f"the router at {place} did not answer within {timeout_ms / 1000:g} s", address=place) from None
    finally:
        connection.close("it was only asked for the server's state")
    assert isinstance(answer, m.Status)
    return answer.facts


def _row(shard: dict[str, Any]) -> tuple[str, ...]:
    worker = shard["worker"].rpartition("/")[0] or "nobody"
    names = ("epoch", "durable_lsn", "applied_lsn", "clients", "restarts", "pid", "keeper_pid")
    return (str(shard["shard"]), shard["state"], worker, *("-" if shard.get(name) is None else str(shard[name]) for name in names))


def _worker_row(worker: dict[str, Any]) -> tuple[str, ...]:
    held, most = len(worker["held"]), worker["max_shards"]
    return (worker["worker"], f"{held} of at most {most}" if most else str(held), ", ".join(worker["workflows"]) or "none")
