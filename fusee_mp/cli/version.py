from __future__ import annotations

import json
import platform

import click

import fusee_mp
from fusee_mp.cli.main import COMMANDS
from fusee_mp.cli.options import as_json


@click.command(help=COMMANDS["version"])
@as_json
def command(as_json: bool) -> None:
    facts = {"fusee-mp": fusee_mp.__version__, "python": platform.python_version()}
    click.echo(json.dumps(facts) if as_json else " ".join(f"{name} {value}" for name, value in facts.items()))
