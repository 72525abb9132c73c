"""How answers look: for people, and as JSON for programs."""
from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

if TYPE_CHECKING:
    from fusee_mp.sdk.types import JournalRecord, RunDetail, RunStatus

CELL_CHARS_MAX: Final = 60
# What the other columns of a journal take of a line, as a rule.
COLUMNS_BEFORE_LAST: Final = 60


def say_json(value: Any) -> None:
    """Print one JSON value on one line."""
    click.echo(to_json(value))


def to_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def say_value(value: Any) -> None:
    """Print a result for people: JSON over as many lines as it needs."""
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def say_status(status: RunStatus) -> None:
    say_facts([
        ("id", status.id), ("workflow", status.workflow), ("status", status.status), ("run", f"{status.number} of shard {status.shard}"),
        ("started", instant(status.started)), ("finished", f"{instant(status.finished)} (after {took(status)})" if status.finished else ""),
        ("attributes", to_json(status.attributes) if status.attributes else ""), ("reason", status.reason),
    ])


def say_detail(detail: RunDetail, is_wide: bool = False) -> None:
    """Everything about a run. Wide: with whole payloads, however long; else cut to the width of the terminal."""
    say_status(detail)
    if detail.failure:
        _say_failure(detail.failure)
    for step in detail.pending:
        when = f", again at {instant(step.next_attempt)}" if step.next_attempt else ""
        click.echo(f'pending     step "{step.name}", attempt {step.attempt}{when}: {step.last_failure or "no failure yet"}')
    click.echo()
    say_table(("SEQ", "LSN", "AT", "KIND", "NAME", "WHAT"), [_journal_row(record) for record in detail.journal], _last_cell_max(is_wide))


def _say_failure(failure: Mapping[str, Any]) -> None:
    """Type and message, and below them where it happened, with causes."""
    from fusee_mp.payload.failure import Failure

    if "type" not in failure:  # sealed, or stored apart
        say_facts([("failure", to_json(failure))])
        return
    head, *lines = msgspec.convert(failure, Failure).text().split("\n")
    say_facts([("failure", head)])
    for line in lines:
        click.echo(_wrapped(line))


def _wrapped(line: str) -> str:
    """Within the width of the terminal, the rest of a line indented as its beginning is."""
    indent = "    " + line[:len(line) - len(line.lstrip())]
    return textwrap.fill(line.strip(), shutil.get_terminal_size().columns, initial_indent=indent, subsequent_indent=indent + "  ",
                         break_long_words=False, break_on_hyphens=False)


def _last_cell_max(is_wide: bool) -> int | None:
    return None if is_wide else max(CELL_CHARS_MAX, shutil.get_terminal_size().columns - COLUMNS_BEFORE_LAST)


def _journal_row(record: JournalRecord) -> tuple[str, ...]:
    shown = ", ".join(f"{name}={_brief(value)}" for name, value in record.fields.items() if value not in (None, "", b"", 0))
    return str(record.seq), str(record.lsn), f"{record.at.astimezone():%H:%M:%S.%f}"[:-3], record.kind, record.name, shown


def _brief(value: Any) -> str:
    return value if isinstance(value, str) else to_json(value)


def say_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Names and values, one a line; those without a value are left out."""
    for name, value in facts:
        if value:
            click.echo(f"{name:<11} {value}")


def say_table(head: Sequence[str], rows: Sequence[Sequence[str]], last_max: int | None = CELL_CHARS_MAX) -> None:
    """Columns as wide as what is in them, within bounds; the last one may have another, or none."""
    cut = [[*map(_cut, row[:-1]), _cut(row[-1], last_max)] for row in rows]
    widths = [max(len(row[column]) for row in [head, *cut]) for column in range(len(head))]
    for row in [head, *cut]:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _cut(text: str, most: int | None = CELL_CHARS_MAX) -> str:
    return text if most is None or len(text) <= most else f"{text[:most - 2]}.."


def instant(at: datetime | None) -> str:
    """In the zone of this machine."""
    return "" if at is None else f"{at.astimezone():%Y-%m-%d %H:%M:%S}"


def took(status: RunStatus) -> str:
    """How long it took, or has taken so far."""
    seconds = ((status.finished or datetime.now(UTC)) - status.started).total_seconds()
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def say_result(id: str, value: Any, as_json: bool) -> None:
    if as_json:
        say_json({"id": id, "status": "ok", "result": value})
    else:
        say_value(value)


def say_done(what: str, facts: dict[str, Any], as_json: bool) -> None:
    if as_json:
        say_json(facts)
    else:
        click.echo(what)
