from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fusee_mp.cli import options
from fusee_mp.cli.main import COMMANDS
from fusee_mp.cli.output import say_json, say_table

if TYPE_CHECKING:
    from fusee_mp.sdk.journals import Journal

_UNSAFE = re.compile(r"[^\w.@=+-]")


@click.command(help=COMMANDS["export"] + """

Reads DIR, closed or while a server or engine runs on it, and changes nothing there. With ID the newest run of it, else the newest runs of
each shard. Without --out it lists what there is.""")
@click.argument("dir", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("id", type=options.ID, required=False)
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="At most so many runs.")
@click.option("--out", type=click.Path(path_type=Path), metavar="PATH",
              help="Where to write: a folder, made when missing, that gets one JSON file for each run; with ID also the name of a"
              " .json file.")
@options.as_json
def command(dir: Path, id: str | None, limit: int, out: Path | None, as_json: bool) -> None:
    from fusee_mp.sdk.export import export

    journals = export(dir, id, limit)
    paths = [""] * len(journals) if out is None else _write(journals, out, is_one=id is not None)
    if as_json:
        say_json([{**_facts(journal), "path": path} for journal, path in zip(journals, paths, strict=True)] if out else
                 [journal.document() for journal in journals])
        return
    head, columns = ("ID", "RUN", "WORKFLOW", "STATUS", "RECORDS", "FILE"), ("id", "run", "workflow", "status", "records")
    say_table(head, [
        (*(str(_facts(journal)[column]) for column in columns), path) for journal, path in zip(journals, paths, strict=True)
    ])


def _facts(journal: Journal) -> dict[str, str | int]:
    done = journal.done
    return {
        "id": journal.workflow_id, "run": journal.run_number, "shard": journal.shard, "workflow": journal.workflow,
        "status": "open" if done is None else done.status, "records": len(journal.facts),
    }


def _write(journals: list[Journal], out: Path, is_one: bool) -> list[str]:
    if is_one and out.suffix == ".json" and not out.is_dir():
        journals[0].write(out)
        return [str(out)]
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.UsageError(f"--out {out} cannot be made: {error}") from None
    paths = [out / _name(journal) for journal in journals]
    for journal, path in zip(journals, paths, strict=True):
        journal.write(path)
    return [str(path) for path in paths]


def _name(journal: Journal) -> str:
    """Unique by shard and run; the ID is in it for people."""
    return f"{journal.shard:03d}-{journal.run_number:09d}-{_UNSAFE.sub('_', journal.workflow_id)[:80]}.json"
