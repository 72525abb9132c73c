from __future__ import annotations

import asyncio
import signal
import sys
from typing import Any

import click

from fusee_mp.cli import options
from fusee_mp.cli.main import COMMANDS, EXIT_FAILED, EXIT_INTERRUPTED

HELP = COMMANDS["demo"] + """

It starts a server with 2 shards and 2 workers on real files in a temporary directory, keeps 100 orders under way, and kills with
SIGKILL a worker, a shard process, a keeper, and at last the whole server. Then it compares what the steps did (each leaves a line in a
file) with what was recorded. Exit code 1 if anything is off. Nothing is left behind.
"""


@click.command(help=HELP)
@click.option("--orders", type=click.IntRange(100, 1_000_000), default=2_500, show_default=True, help="At least so many orders.")
@options.as_json
def command(orders: int, as_json: bool) -> int:
    if sys.platform != "linux":
        raise click.ClickException("the demonstration runs a server, and servers run on Linux")
    from fusee_mp.cli.demonstration.show import Show

    summary = asyncio.run(_interruptible(orders, Show(is_silent=as_json)))
    if summary is None:
        click.echo("interrupted: everything it started is gone", err=True)
        return EXIT_INTERRUPTED
    if as_json:
        from fusee_mp.cli.output import say_json

        say_json(summary)
    else:
        _say_summary(summary)
    return EXIT_FAILED if summary["faults"] else 0


async def _interruptible(orders: int, show: Any) -> dict[str, Any] | None:
    """The summary; None when a signal came first, after cleaning up."""
    from fusee_mp.cli.demonstration.play import play

    loop = asyncio.get_running_loop()
    playing = asyncio.ensure_future(play(orders, show))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, playing.cancel)
    try:
        return await playing
    except asyncio.CancelledError:
        return None


def _say_summary(s: dict[str, Any]) -> None:
    repeated = s["steps_repeated_before_recorded"]
    rows = [
        ("orders done", f"{s['orders']:,} of {s['starts_acknowledged']:,} acknowledged, with a shipment on another shard each"),
        ("recorded", f"{s['steps']:,} steps, {s['timers']:,} timers, {s['signals']:,} signals,"
                     f" {s['children_on_another_shard']:,} children"),
        ("throughput", f"{s['steps_per_s']:,} steps/s over {s['seconds']} s, outages included"),
        ("a step", "p50 {p50} ms, p99 {p99} ms, longest {max} ms, its own fsync included".format(**s["step_ms"])),
        ("a start, durable", "p50 {p50} ms, p99 {p99} ms, longest {max} ms".format(**s["start_ack_ms"])),
        *((f"{kill['what']} killed",
           f"{kill['under_way']} orders under way, all well after {(kill['ended_ms'] - kill['began_ms']) / 1000:.1f} s")
          for kill in s["kills"]),
        ("starts lost", f"{s['starts_lost']}"),
        ("ran twice", f"{repeated} steps: done, but not yet recorded, when something was killed"),
        ("ran again though recorded",
         f"{s['steps_repeated_after_recorded']} steps: each journal holds the entry of the last time a step ran"),
    ]
    click.echo()
    for name, value in rows:
        click.echo(f"  {name:<26} {value}")
    click.echo()
    for fault in s["faults"][:10]:
        click.echo(f"OFF: {fault}", err=True)
    click.echo(f"{len(s['faults'])} things are off." if s["faults"] else "Nothing was lost, and nothing that was recorded was done again.")
