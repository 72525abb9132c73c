from __future__ import annotations

import os
from typing import Any

import click

from fusee_mp.bounds import CONNECTIONS_DEFAULT, PAYLOAD_BYTES_MAX, SHARDS_MAX
from fusee_mp.cli import options
from fusee_mp.cli import parent as parent_
from fusee_mp.cli.faults import say_error
from fusee_mp.cli.main import COMMANDS
from fusee_mp.errors import Rejected

HELP = COMMANDS["serve"] + """ DIR (./data unless given) holds everything; it is made when missing.

One line on stdout says when the server is ready and where it listens; the log is on stderr. SIGTERM or Ctrl-C lets the workers finish and
hand back first; a second one ends at once. SIGHUP reads certificates and tokens again. A server that was killed goes on from its directory
when it is started again.
"""


def _mode(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 4 and set(text) <= set("01234567")):
        raise Rejected(f"expected file mode bits as for chmod, such as 660, found {text!r}")
    return int(text, 8)


def _cores(text: str) -> tuple[int, ...]:
    try:
        parts = [part.partition("-") for part in text.split(",")]
        return tuple(core for first, dash, last in parts for core in range(int(first), int(last if dash else first) + 1))
    except ValueError:
        raise Rejected(f"expected processors such as 0-3,6, found {text!r}") from None


MODE = options.Checked("mode", _mode)
CORES = options.Checked("cores", _cores)


@click.command(help=HELP)
@click.argument("dir", default="data", type=click.Path(file_okay=False))
@click.option("--listen", multiple=True, default=(options.DEFAULT_ADDRESS,), show_default=True, metavar="HOST:PORT",
              help="Where to listen; may be given several times. Port 0 takes a free one.")
@click.option("--unix", default="", metavar="PATH", help="Listen on a Unix socket too.")
@click.option("--shards", type=click.IntRange(1, SHARDS_MAX), metavar="N",
              help="How many shards a new directory gets: one a core is right.  [default: one a core, at most 8; an old directory keeps its"
              " own]")
@click.option("--cores", type=CORES, default=(), metavar="LIST", help="Keep shard processes on these processors, one each in turn: 0-3,6.")
@click.option("--grace", "grace_ms", type=options.DURATION_MS, default="30s", show_default=True, metavar="DURATION",
              help="How long workers may go on when the server stops.")
@click.option("--flush", type=click.Choice(("auto", "inline", "helper")), default="auto", show_default=True,
              help="Who waits for the disk: the shard process, a helper of it, or whichever is faster.")
@click.option("--checkpoint-interval", "checkpoint_interval_ms", type=options.DURATION_MS, default="30s", show_default=True,
              metavar="DURATION", help="How often the store is made safe from a crash of the machine, so that log files can be reused.")
@click.option("--retention", "retention_ms", type=options.DURATION_MS, metavar="DURATION",
              help="How long ended workflows are kept, unless the workflow says otherwise.  [default: for ever]")
@click.option("--keep-history/--no-keep-history", default=True, show_default=True, help="Keep the journals of ended workflows too.")
@click.option("--archive-history", is_flag=True, help="Move the journals of workflows whose retention has ended to the archive.")
@click.option("--payload-bytes-max", type=click.IntRange(1, PAYLOAD_BYTES_MAX), default=PAYLOAD_BYTES_MAX, show_default=True,
              metavar="BYTES", help="Larger inputs, results, signals and so on are refused where they are given.")
@click.option("--tls-cert", default="", metavar="FILE", help="Speak TLS on TCP, with this certificate (PEM).")
@click.option("--tls-key", default="", metavar="FILE", help="The certificate's key, which only its user may read.")
@click.option("--tls-ca", default="", metavar="FILE", help="Ask those who connect for a certificate of this CA.")
@click.option("--tokens", default="", metavar="FILE",
              help="Ask those who connect over TCP for a token of this file: lines SCOPE NAME SECRET, scopes full, client and read.")
@click.option("--insecure", is_flag=True, help="Listen beyond this machine although TLS or tokens are missing.")
@click.option("--unix-mode", type=MODE, default="600", show_default=True, metavar="MODE", help="Who may use the Unix socket: its mode.")
@click.option("--connections", default=CONNECTIONS_DEFAULT, show_default=True, metavar="N", help="At most so many at once, in all.")
@parent_.option
@options.log_level
@options.log_format
@options.as_json
@click.pass_obj
def command(
    arguments: list[str], /, parent: int | None, log_level: str, log_format: str, as_json: bool, listen: tuple[str, ...],
    shards: int | None, **settings: Any,
) -> int:
    from fusee_mp.router.main import print_ready, run
    from fusee_mp.router.options import ServeOptions

    parent_.depend_on(parent)
    options.log_to_stderr(log_level, log_format, "router")
    try:
        serve_options = ServeOptions(listen=listen, shards=shards or 0, **settings)
    except Rejected as error:
        raise click.UsageError(error.message) from None
    return run(serve_options, _print_json if as_json else print_ready, lambda error: say_error(error, arguments))


def _print_json(addresses: list[str]) -> None:
    from fusee_mp.cli.output import say_json

    say_json({"ready": addresses, "pid": os.getpid()})
