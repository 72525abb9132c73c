"""How what went wrong is said on stderr: for people, as JSON for programs, or as a line of a log in JSON."""
from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import click

from fusee_mp.errors import FuseeError

LOG: Final = logging.getLogger("fusee_mp.cli")


class BrokenModule(click.UsageError):
    """A module of the user's that cannot be imported; `traceback` is of their lines."""

    def __init__(self, name: str, error: BaseException, traceback: str) -> None:
        super().__init__(f'module "{name}" cannot be imported:\n{traceback}')
        self.summary, self.traceback = f'module "{name}" cannot be imported: {type(error).__name__}: {error}', traceback


def say_error(error: FuseeError, arguments: Sequence[str]) -> None:
    """Say it as a command with these arguments is to."""
    # Read from the words themselves: when they are wrong there is nothing parsed to ask.
    if _logs_json(arguments):
        _log(error.message, error.code, _cause(error), arguments)
    else:
        click.echo(_json(error, error.code) if "--json" in arguments else _text(error), err=True)


def say_wrong_use(error: click.ClickException, arguments: Sequence[str]) -> None:
    """The same for what click or a module of the user's refuses."""
    message = error.format_message()
    if _logs_json(arguments):
        summary, traceback = (error.summary, error.traceback) if isinstance(error, BrokenModule) else (message, "")
        _log(summary, "usage", traceback, arguments)
    elif "--json" in arguments:
        click.echo(_json(FuseeError(message), "usage"), err=True)
    else:
        error.show()


def _logs_json(arguments: Sequence[str]) -> bool:
    return "--log-format=json" in arguments or ("--log-format", "json") in pairwise(arguments)


def _log(message: str, code: str, exception: str, arguments: Sequence[str]) -> None:
    from fusee_mp.cli.options import log_to_stderr

    log_to_stderr("info", "json", f"fusee-mp {arguments[0]}")  # of a command that got so far, the log goes on as it is
    LOG.critical("%s", message, extra={"code": code, **({"exception": exception} if exception else {})})


def _text(error: FuseeError) -> str:
    text = f"fusee-mp: {error}" if str(error) else f"fusee-mp: {type(error).__name__}"
    cause = _cause(error)
    return f"{text}\ncaused by {cause}" if cause else text


def _cause(error: FuseeError) -> str:
    """What is behind it, where the message does not say it already."""
    cause = error.__cause__
    return "" if cause is None or str(cause) in str(error) else f"{type(cause).__name__}: {cause}"


def _json(error: FuseeError, code: str) -> str:
    from fusee_mp.cli.output import to_json

    facts: dict[str, Any] = {"code": code, "message": error.message}
    if error.__cause__ is not None:
        facts["cause"] = {"type": type(error.__cause__).__name__, "message": str(error.__cause__)}
    plain = {name: value for name, value in error.fields.items() if isinstance(value, str | int | float | bool)}
    return to_json({"error": {**plain, **facts}})
