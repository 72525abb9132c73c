from __future__ import annotations

import sys
from collections.abc import Iterator
from heapq import merge
from itertools import islice, tee
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fusee_mp.cli import options
from fusee_mp.cli.main import COMMANDS, EXIT_FAILED
from fusee_mp.cli.output import say_json, say_table

if TYPE_CHECKING:
    from fusee_mp.cli.modules import Program
    from fusee_mp.sdk.journals import Journal
    from fusee_mp.sdk.replayer import Replay


@click.command(help=COMMANDS["replay"] + """

PATH is a data directory, a journal file, or a folder of journal files as `fusee-mp export --out` writes them; MODULE has the code. No step
is run and nothing is changed. Exit code 1 when a run would not go on with this code.""")
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@click.argument("module")
@click.option("--last", type=click.IntRange(1), default=100, show_default=True,
              help="Of a data directory: the so many newest runs of the module's workflows.")
@options.as_json
def command(path: Path, module: str, last: int, as_json: bool) -> int:
    from fusee_mp.cli.modules import load
    from fusee_mp.sdk.replayer import Replayer

    program = load(module)
    replayer = Replayer(workflows=program.workflows, codec=program.codec)
    rows = []
    journals, replayed = tee(_journals(path, program, last))
    for journal, replay in zip(journals, replayer.replay_all(replayed)):
        rows.append(_row(journal, replay))
        if not as_json and replay.error is not None:
            click.echo(f'"{journal.workflow_id}": {replay.error}', err=True)
    if as_json:
        say_json(rows)
    else:
        _say(rows, module)
    return EXIT_FAILED if not all(row["ok"] for row in rows) else 0


def _journals(path: Path, program: Program, last: int) -> Iterator[Journal]:
    from fusee_mp.log.directory import META
    from fusee_mp.sdk.export import newest, shards_of
    from fusee_mp.sdk.journals import Journal

    if path.is_file():
        yield Journal.read(path)
    elif (path / META).exists():
        names = {definition.name for definition in program.workflows}
        shards = [newest(path, shard, names) for shard in range(shards_of(path))]
        yield from islice(merge(*shards, key=lambda journal: journal.facts[0].at, reverse=True), last)
    else:
        files = sorted(path.glob("*.json"))
        if not files:
            raise click.UsageError(f"{path} is no data directory and has no journal files. Write some: fusee-mp export DIR --out {path}")
        yield from map(Journal.read, files)


def _row(journal: Journal, replay: Replay) -> dict[str, Any]:
    error = replay.error
    row: dict[str, Any] = {
        "id": journal.workflow_id, "run": journal.run_number, "shard": journal.shard, "workflow": journal.workflow,
        "records": len(journal.facts), "ok": replay.ok, "finished": replay.finished,
    }
    if error is not None:
        facts = {name: error.fields[name] for name in ("position", "op", "journal", "where") if name in error.fields}
        # The error's own code is stable text; what the code asked for is `asked`.
        row["error"] = {"code": error.code, "message": error.message, "asked": error.fields.get("code", ""), **facts}
    return row


def _say(rows: list[dict[str, Any]], module: str) -> None:
    say_table(("ID", "RUN", "WORKFLOW", "RECORDS", "STATE", "REPLAY"), [
        (row["id"], str(row["run"]), row["workflow"], str(row["records"]), "ended" if row["finished"] else "open",
         "ok" if row["ok"] else row["error"].get("where") or row["error"]["code"]) for row in rows
    ])
    bad = sum(not row["ok"] for row in rows)
    sys.stdout.flush()
    runs = "1 run" if len(rows) == 1 else f"{len(rows)} runs"
    click.echo(f"{runs}, {bad} would not go on with {module}" if rows else f"no run is of a workflow of {module}", err=True)
