from __future__ import annotations

import os
import sys

import click

from fusee_mp.cli import options
from fusee_mp.cli.main import COMMANDS, EXIT_FAILED
from fusee_mp.cli.output import say_json


@click.command(help=COMMANDS["check"] + """

MODULE is the name of a module or package, or a path. It is read, not imported: nothing of it runs, and
whether it can be imported `fusee-mp worker` tells. Each finding has its place and what to
use instead; a comment `# fusee: allow(rule) reason` on its line excuses it. Exit code 1 when there is any.""")
@click.argument("module")
@options.as_json
def command(module: str, as_json: bool) -> int:
    from fusee_mp.check import check_module
    from fusee_mp.errors import Rejected

    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = check_module(module)
    except Rejected as error:
        raise click.UsageError(error.message) from None
    if as_json:
        say_json(found)
    else:
        for finding in found:
            click.echo(str(finding))
        click.echo(f"{module}: {_counted(len(found))}", err=True)
    return EXIT_FAILED if found else 0


def _counted(findings: int) -> str:
    return "nothing found" if not findings else "1 finding" if findings == 1 else f"{findings} findings"
