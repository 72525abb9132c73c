"""Options and arguments that commands share, checked before anything is asked of a server."""
from __future__ import annotations

import functools
import json
import os
import secrets
import shlex
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

import click

from fusee_mp import logs
from fusee_mp.core.placement import check_id
from fusee_mp.core.where import parse as parse_where
from fusee_mp.duration import to_ms
from fusee_mp.errors import Rejected
from fusee_mp.names import checked_name

DEFAULT_ADDRESS: Final = "127.0.0.1:7410"
ANSWER_TIMEOUT: Final = "30s"
# Where a command's context has its codec.
CODEC: Final = "fusee_mp.codec"


class Checked(click.ParamType):  # type: ignore[type-arg]  # generic only in the newest click
    """Text that `check` turns into a value; what it raises as Rejected is wrong use."""

    def __init__(self, name: str, check: Callable[[str], Any]) -> None:
        self.name = name
        self._check = check

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._check(value)
        except Rejected as error:
            self.fail(error.message, param, ctx)


def read_json(text: str) -> Any:
    """The value of JSON text. Raises Rejected that shows where it goes wrong."""
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        shown = text if len(text) <= 60 else f"{text[:57]}.."
        raise Rejected(f"expected JSON, found {shown!r}: {error}. Text needs double quotes of its own: '\"text\"'") from None


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")


def _where(text: str) -> Any:
    terms = read_json(text)
    parse_where(terms)
    return terms


def _address(text: str) -> str:
    from fusee_mp.sdk.address import parse_address

    parse_address(text)
    return text


def _turn_ms(text: str) -> int:
    from fusee_mp.sdk.config import turn_timeout_ms

    return turn_timeout_ms(text, "turn-timeout")


ADDRESS: Final = Checked("address", _address)
DURATION_MS: Final = Checked("duration", lambda text: to_ms(text, "duration"))
ID: Final = Checked("id", check_id)
FILE: Final = click.Path(dir_okay=False, resolve_path=True)
JSON: Final = Checked("json", read_json)
NAME: Final = Checked("name", lambda text: checked_name("workflow or signal", text))
TURN_MS: Final = Checked("duration", _turn_ms)
WHERE: Final = Checked("json", _where)

def _codec(target: str) -> Any:
    from fusee_mp.cli.modules import load_codec

    return load_codec(target)


as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
_ADDRESS_OPTIONS: Final = (
    click.option("--address", type=ADDRESS, envvar="FUSEE_ADDRESS", default=DEFAULT_ADDRESS, show_default=True, show_envvar=True,
                 metavar="HOST:PORT|unix:PATH", help="Where the server listens."),
    click.option("--token-file", type=FILE, envvar="FUSEE_TOKEN_FILE", show_envvar=True, metavar="FILE",
                 help="The token that a server with tokens asks for: its line of the server's file."),
    click.option("--ca", type=FILE, envvar="FUSEE_CA", show_envvar=True, metavar="FILE",
                 help="The CA of the server's certificate; with it the connection is made over TLS."),
    click.option("--cert", type=FILE, envvar="FUSEE_CERT", show_envvar=True, metavar="FILE",
                 help="A certificate of ours, for a server that asks for one."),
    click.option("--key", type=FILE, envvar="FUSEE_KEY", show_envvar=True, metavar="FILE", help="The certificate's key."),
)


def address_alone(command: Callable[..., Any]) -> Callable[..., Any]:
    """Where to ask: `--address` and what goes with it, as one address."""

    @functools.wraps(command)
    def with_address(
        address: str, token_file: str | None, ca: str | None, cert: str | None, key: str | None, **others: Any
    ) -> Any:
        files = {"token-file": token_file, "ca": ca, "cert": cert, "key": key}
        return command(address=_whole_address(address, {name: path for name, path in files.items() if path}), **others)

    for option in reversed(_ADDRESS_OPTIONS):
        with_address = option(with_address)
    return with_address


_codec_option = click.option(
    "--codec", type=Checked("codec", _codec), envvar="FUSEE_CODEC", show_envvar=True, expose_value=False, metavar="MODULE[:ATTR]",
    callback=lambda ctx, param, codec: ctx.meta.__setitem__(CODEC, codec),
    help="What seals and opens payloads, where the workers have a codec: an object of that module, `codec` unless named.",
)


def address(command: Callable[..., Any]) -> Callable[..., Any]:
    """Where to ask, and with which codec; `ask` (asking.py) finds the codec itself."""
    return address_alone(_codec_option(command))


def place(address: str) -> str:
    """An address as it is shown, without its options."""
    return address.partition("?")[0]


def _whole_address(text: str, files: dict[str, str]) -> str:
    """An option comes before what the address says, and that before a variable of the environment."""
    place, _, query = text.partition("?")
    options = {name: path for name, path in files.items() if _is_option(name)}
    chosen = {**files, **dict(parse_qsl(query, keep_blank_values=True)), **options}
    whole = f"{place}?{urlencode(chosen)}" if chosen else place
    try:
        return _address(whole)
    except Rejected as error:
        raise click.UsageError(error.message) from None


def _is_option(name: str) -> bool:
    source = click.get_current_context().get_parameter_source(name.replace("-", "_"))
    return source is click.core.ParameterSource.COMMANDLINE


answer_timeout = click.option(
    "--timeout", "timeout_ms", type=DURATION_MS, default=ANSWER_TIMEOUT, show_default=True, metavar="DURATION",
    help="How long to wait for an answer, such as 500ms, 10s or 5m.",
)
where = click.option(
    "--where", type=WHERE, metavar="JSON",
    help="""Only those that match, such as '{"status": "open", "type": "checkout"}' or '{"amount": {"gte": 60}}'.""",
)
log_level = click.option(
    "--log-level", type=click.Choice(("debug", "info", "warning", "error")), default="info", show_default=True,
    help="What is told on stderr.",
)
log_format = click.option(
    "--log-format", type=click.Choice(("text", "json")), default="text", show_default=True,
    help="What lines on stderr are: text, or JSON objects for log collectors.",
)
workflow_id = click.argument("id", type=ID)
end_timeout = click.option(
    "--timeout", "timeout_ms", type=DURATION_MS, metavar="DURATION",
    help="Give up waiting after so long; the workflow goes on.  [default: wait for ever]",
)


def workflow_and_input(command: Callable[..., Any]) -> Callable[..., Any]:
    """WORKFLOW [ID] [INPUT]. Without an ID one is made here, so that every message can name it."""

    @click.argument("workflow", type=NAME)
    @click.argument("id", type=ID, required=False)
    @click.argument("input", type=JSON, required=False)
    @functools.wraps(command)
    def with_input(workflow: str, id: str | None, input: Any, **others: Any) -> Any:
        if id is not None and id.startswith(("{", "[", '"')):
            _refuse_input_as_id(workflow, id)
        return command(workflow=workflow, id=id or secrets.token_hex(16), input=input, **others)

    return with_input


def _refuse_input_as_id(workflow: str, id: str) -> None:
    """An input in the place of the ID would start a run of that name, without an input."""
    ctx = click.get_current_context()
    if ctx.get_parameter_source("input") is click.core.ParameterSource.COMMANDLINE:
        return  # Whoever gives both means it.
    raise click.UsageError(
        f"expected an ID after the workflow, found {id!r:.80}, which looks like an input. Give both: "
        f"{ctx.command_path} {workflow} my-id {shlex.quote(id if len(id) <= 60 else '{..}')}", ctx)


def start_policies(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of a start, gathered as `policies`."""

    @click.option("--on-running", type=click.Choice(("fail", "use_existing", "terminate")), default="fail", show_default=True,
                  help="What to do when the ID has an open run.")
    @click.option("--on-finished", type=click.Choice(("allow", "allow_if_failed", "refuse", "use_existing")), default="allow",
                  show_default=True, help="What to do when the ID has a run that ended.")
    @click.option("--deadline", "deadline_ms", type=DURATION_MS, metavar="DURATION", help="The run is timed_out after so long.")
    @click.option("--attributes", type=JSON, metavar="JSON", help="Search attributes: a JSON object.")
    @functools.wraps(command)
    def with_policies(on_running: str, on_finished: str, deadline_ms: int | None, attributes: Any, **others: Any) -> Any:
        if attributes is not None and not isinstance(attributes, dict):
            raise click.BadParameter(f"expected a JSON object, found {json.dumps(attributes)}", param_hint="--attributes")
        deadline = None if deadline_ms is None else deadline_ms / 1000
        policies = {"on_running": on_running, "on_finished": on_finished, "deadline": deadline, "attributes": attributes}
        return command(policies=policies, **others)

    return with_policies


def log_to_stderr(level: str, format: str, who: str) -> None:
    """Send this process's log to stderr, each line with its time and who says it; also that of the processes it starts."""
    os.environ[logs.LEVEL], os.environ[logs.FORMAT] = level.upper(), format
    logs.configure(who)
