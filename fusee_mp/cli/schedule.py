from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import click

from fusee_mp.cli import options
from fusee_mp.cli.main import COMMANDS
from fusee_mp.cli.output import say_done, say_facts, say_json, say_table, to_json
from fusee_mp.errors import Rejected

if TYPE_CHECKING:
    from fusee_mp.sdk.schedules import ScheduleDetail


def _instant(text: str) -> datetime:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise Rejected(f"expected a time such as 2026-03-29T02:30:00Z or 2026-03-29T02:30:00+01:00, found {text!r:.80}") from None
    if at.tzinfo is None:
        raise Rejected(f"{text!r} does not say in which zone: end it with Z for UTC, or with an offset such as +01:00")
    return at


INSTANT: Final = options.Checked("time", _instant)


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000


@click.group(help=COMMANDS["schedule"] + " Times are in ISO 8601; each command takes --json.")
def command() -> None:
    """The commands below."""


def _common(body: Callable[..., Any]) -> Callable[..., Any]:
    """The options that every one of them has."""
    for option in (options.as_json, options.address, options.answer_timeout):
        body = option(body)
    return body


def _of_one(body: Callable[..., Any]) -> Callable[..., Any]:
    return options.workflow_id(_common(body))


@command.command(help="Make a schedule, or give the one of this ID another spec.")
@options.workflow_id
@click.option("--workflow", type=options.NAME, required=True, help="What it starts.")
@click.option("--input", "given", type=options.JSON, metavar="JSON", help="The input of each run.")
@click.option("--every", "every_ms", type=options.DURATION_MS, metavar="DURATION",
              help="At each multiple of this duration since 1970, such as 10m.")
@click.option("--cron", metavar="TEXT", help='Five fields, such as "0 2 * * *".')
@click.option("--timezone", default="UTC", show_default=True, help='The zone of --cron and of the runs, such as "Europe/Berlin".')
@click.option("--overlap", type=click.Choice(("skip", "buffer_one", "allow", "cancel", "terminate")), default="skip", show_default=True,
              help="What to do with an instant while the run before is open.")
@click.option("--paused", is_flag=True, help="Start nothing by time until it is resumed.")
@click.option("--jitter", "jitter_ms", type=options.DURATION_MS, default="0s", metavar="DURATION",
              help="Put each start off by up to so much.")
@click.option("--catch-up", "catch_up_ms", type=options.DURATION_MS, default="1m", show_default=True, metavar="DURATION",
              help="Make up after downtime what is late by no more than this.")
@click.option("--gap", type=click.Choice(("skip", "shift")), default="skip", show_default=True,
              help="Local times that the clock jumps over.")
@click.option("--fold", type=click.Choice(("first", "last", "both")), default="first", show_default=True,
              help="Local times that exist twice.")
@_common
def create(id: str, workflow: str, given: Any, every_ms: int | None, cron: str | None, jitter_ms: int, catch_up_ms: int, timeout_ms: int,
           address: str, as_json: bool, **rest: Any) -> None:
    from fusee_mp.cli.asking import ask
    from fusee_mp.sdk.schedules import ScheduleSpec

    try:
        spec: Any = ScheduleSpec(workflow=workflow, input=given, every=_seconds(every_ms), cron=cron, jitter=jitter_ms / 1000,
                                 catch_up=catch_up_ms / 1000, **rest)
    except Rejected as error:
        raise click.UsageError(error.message) from None
    ask(address, lambda client: client.schedule(id, spec), timeout_ms)
    say_done(f'schedule "{id}" is set', {"id": id, "workflow": workflow}, as_json)


@command.command("list", help="List the schedules.")
@_common
def list_(timeout_ms: int, address: str, as_json: bool) -> None:
    from fusee_mp.cli.asking import ask

    found = ask(address, lambda client: client.schedules(), timeout_ms)
    if as_json:
        say_json([_facts(detail) for detail in found])
        return
    say_table(("ID", "WORKFLOW", "WHEN", "NEXT", "STARTED", "SKIPPED"), [
        (detail.id, str(detail.spec.workflow), _when(detail), "paused" if detail.paused else _shown(detail.next), str(detail.started),
         str(detail.skipped)) for detail in found
    ])


@command.command(help="Show a schedule and its next instants.")
@_of_one
def describe(id: str, timeout_ms: int, address: str, as_json: bool) -> None:
    from fusee_mp.cli.asking import ask

    async def both(client: Any) -> tuple[ScheduleDetail, list[datetime]]:
        handle = client.schedule_handle(id)
        return await handle.describe(), await handle.next_times(5)

    detail, following = ask(address, both, timeout_ms)
    if as_json:
        say_json({**_facts(detail), "next_times": [at.isoformat() for at in following]})
        return
    say_facts([
        ("id", detail.id), ("workflow", str(detail.spec.workflow)), ("input", to_json(detail.spec.input)), ("when", _when(detail)),
        ("overlap", detail.spec.overlap), ("paused", "yes" if detail.paused else "no"), ("started", str(detail.started)),
        ("skipped", str(detail.skipped)), ("open", ", ".join(detail.open)), *(("next", at.isoformat()) for at in following),
    ])


def _change(what: str, help: str, said: str) -> None:
    @command.command(what, help=help)
    @_of_one
    def change(id: str, timeout_ms: int, address: str, as_json: bool) -> None:
        from fusee_mp.cli.asking import ask

        ask(address, lambda client: getattr(client.schedule_handle(id), what)(), timeout_ms)
        say_done(f'schedule "{id}" is {said}', {"id": id, said: True}, as_json)


_change("pause", "Start nothing by time until it is resumed.", "paused")
_change("resume", "Go on with the next instant.", "resumed")
_change("delete", "Delete a schedule. Its open runs go on.", "deleted")


@command.command(help="Start a run now, under the overlap policy.")
@_of_one
def trigger(id: str, timeout_ms: int, address: str, as_json: bool) -> None:
    from fusee_mp.cli.asking import ask

    run = ask(address, lambda client: client.schedule_handle(id).trigger(), timeout_ms)
    say_done(run.id, {"id": id, "run": run.id}, as_json)


@command.command(help="Start each instant from FIRST through LAST that was not started yet, whatever is open.")
@options.workflow_id
@click.argument("first", type=INSTANT)
@click.argument("last", type=INSTANT)
@_common
def backfill(id: str, first: datetime, last: datetime, timeout_ms: int, address: str, as_json: bool) -> None:
    from fusee_mp.cli.asking import ask

    started = ask(address, lambda client: client.schedule_handle(id).backfill(first, last), timeout_ms)
    say_done(f"{started} started", {"id": id, "started": started}, as_json)


def _facts(detail: ScheduleDetail) -> dict[str, Any]:
    spec = detail.spec
    return {
        "id": detail.id, "workflow": spec.workflow, "input": spec.input,
        "every": None if spec.every is None else spec.every.total_seconds(),
        "cron": spec.cron, "timezone": spec.timezone, "overlap": spec.overlap, "gap": spec.gap, "fold": spec.fold,
        "jitter": spec.jitter.total_seconds(), "catch_up": spec.catch_up.total_seconds(),
        "paused": detail.paused, "started": detail.started,
        "skipped": detail.skipped, "next": _shown(detail.next) or None, "open": list(detail.open),
    }


def _when(detail: ScheduleDetail) -> str:
    spec = detail.spec
    return f"every {spec.every}" if spec.every is not None else f"{spec.cron} ({spec.timezone})"


def _shown(at: datetime | None) -> str:
    return "" if at is None else at.isoformat()
