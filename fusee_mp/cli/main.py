# The command line's frame: which commands there are, and how every one of them ends.
#
# Rule 1: a command's module is imported when the command is run, so help and version cost nothing.
# Rule 2: what is expected to go wrong is one message on stderr, never a traceback, and an exit code that scripts can tell apart:
#         0 done; 1 the thing asked about failed or was refused; 2 wrong use; 3 the server cannot be reached.
# Rule 3: with --json every answer is one JSON value on stdout, and every error one JSON object on stderr (`serve` and `worker` have their
#         log there; with --log-format json the error is a line of it).
from __future__ import annotations

import importlib
import os
import shlex
import sys
from collections.abc import Sequence
from typing import Final, NoReturn

import click

from fusee_mp.cli import faults
from fusee_mp.errors import FuseeError, Unavailable

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_UNREACHABLE: Final = 3
EXIT_INTERRUPTED: Final = 130

COMMANDS: Final = {
    "demo": "Show it at work: run thousands of orders, kill everything, prove that nothing was lost.",
    "serve": "Run a server on a data directory.",
    "worker": "Run the workflows of a Python module for a server.",
    "start": "Start a workflow.",
    "run": "Start a workflow, wait for its end and print its result.",
    "result": "Wait for the end of a workflow and print its result.",
    "status": "Show how a workflow is doing.",
    "describe": "Show a workflow with its whole journal.",
    "signal": "Send a signal to a workflow.",
    "complete": "Give a workflow what it waits for, by the token that its sender was given.",
    "pause": "Start no further step of a workflow until it is resumed.",
    "resume": "Let a paused workflow go on.",
    "query": "Ask a workflow's code something, and print the answer.",
    "update": "Change a workflow by its handler, and print the result.",
    "cancel": "Ask a workflow to end: its code can clean up.",
    "terminate": "End a workflow at once: its code is not asked.",
    "reset": "Go on before a step of a workflow, in a new run: what came before is taken from its journal.",
    "delete": "Forget a workflow that has ended: its result, its journal, its attributes.",
    "list": "List workflows: shard by shard, newest first in each.",
    "count": "Count workflows.",
    "schedule": "Start workflows by time: make, look at and change schedules.",
    "limits": "Show the limits on steps and their use, or define one.",
    "shards": "Show the server's shards: who holds them and how far they are.",
    "check": "Look through workflow code for what breaks replay.",
    "export": "Read journals of runs out of a data directory.",
    "replay": "Tell whether runs would go on with the code of a module.",
    "version": "Print the version.",
}


class Commands(click.Group):
    """Finds a command in the module of its name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"fusee_mp.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]}, epilog="See `fusee-mp COMMAND --help` for each.")
def commands() -> None:
    """Durable execution for Python: workflows are ordinary async functions that go on after any crash.

    \b
    A first look:             fusee-mp demo
    A server on this machine: fusee-mp serve ./data
    Your workflows on it:     fusee-mp worker my_module
    One of them:              fusee-mp run my_workflow my-id '{"some": "input"}'

    Commands that talk to a server find it by --address, else by FUSEE_ADDRESS, else at 127.0.0.1:7410.

    Exit codes: 0 done; 1 the thing asked about failed or was refused; 2 wrong use; 3 the server cannot be reached.
    """


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        code = _run(given)
        sys.stdout.flush()
    except BrokenPipeError:  # Who read our output has enough. What is still buffered must not fail again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = EXIT_FAILED
    sys.exit(code)


def _run(arguments: list[str]) -> int:
    try:
        code = commands.main(arguments, prog_name="fusee-mp", standalone_mode=False, obj=arguments)
    except FuseeError as error:
        faults.say_error(error, arguments)
        return EXIT_UNREACHABLE if isinstance(error, Unavailable) else EXIT_FAILED
    except click.ClickException as error:
        faults.say_wrong_use(_hinted(error, arguments), arguments)
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return EXIT_INTERRUPTED
    return code if isinstance(code, int) else 0


def _hinted(error: click.ClickException, arguments: list[str]) -> click.ClickException:
    """A value such as -5 is read as an option: then the same error, with how that is given."""
    if not isinstance(error, click.NoSuchOption) or error.possibilities:
        return error
    place = next((at for at, word in enumerate(arguments) if word.startswith(error.option_name)), len(arguments) - 1)
    given = shlex.join([*arguments[:place], "--", arguments[place]])
    said = error.format_message().rstrip(".")
    return click.UsageError(f"{said}. If it is meant as a value, put -- before it, and options before that: fusee-mp {given}", error.ctx)
