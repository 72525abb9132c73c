"""Ask a server something: connect, wait within bounds, and end with an error that says what to do."""
from __future__ import annotations

import asyncio
import contextlib
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, TypeVar

import click

from fusee_mp.cli.options import CODEC, place
from fusee_mp.errors import FuseeError, NotFound, Unavailable
from fusee_mp.payload.sealing import PayloadCodec
from fusee_mp.sdk.client import Client, Connecting
from fusee_mp.sdk.run import Run

T = TypeVar("T")
LOOK_S: Final = 5.0
UNSURE: Final = "a change that was asked for may still be made"
# Of a run that does not go on by itself: what lets it.
_WAYS: Final = {
    "quarantined": "Start a worker whose code fits its journal, or use: fusee-mp reset {id} STEP; fusee-mp cancel {id};"
                   " fusee-mp terminate {id}",
    "paused": "Let it go on with: fusee-mp resume {id}",
}


def ask(address: str, body: Callable[[Client], Awaitable[T]], timeout_ms: int | None, unsure: str = UNSURE) -> T:
    """What `body` returns of a connected client. Raises Unavailable, which ends with `unsure`, when that takes longer."""
    return asyncio.run(_ask(address, body, timeout_ms, unsure))


async def _ask(address: str, body: Callable[[Client], Awaitable[T]], timeout_ms: int | None, unsure: str) -> T:
    async with answered(address, timeout_ms, unsure), connect(address) as client:
        return await body(client)


def connect(address: str) -> Connecting:
    """A client with the command's codec."""
    return Client.connect(address, codec=_codec())


@contextlib.asynccontextmanager
async def answered(address: str, timeout_ms: int | None, unsure: str = UNSURE) -> AsyncIterator[None]:
    """Raises Unavailable when what is inside takes longer."""
    try:
        async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000) as limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise Unavailable(
            f"the server at {place(address)} did not answer within {(timeout_ms or 0) / 1000:g} s. `fusee-mp shards` shows whether a"
            f" worker holds the shard that was asked; {unsure}", address=place(address),
        ) from None


def unsure_start(workflow: str, id: str) -> str:
    """What to say of a start that was not acknowledged."""
    return (f'the start of "{id}" may still happen. To wait for it, or start it if it did not, and never twice: fusee-mp run {workflow}'
            f" {shlex.quote(id)} .. --on-running use_existing --on-finished use_existing")


def _codec() -> PayloadCodec | None:
    context = click.get_current_context(silent=True)
    return None if context is None else context.meta.get(CODEC)


def missing(id: str) -> NotFound:
    return NotFound(f'no run has the workflow ID "{id}": it was never started, or its retention has ended', id=id)


async def result_within(run: Run[Any], timeout_ms: int | None, waited_s: float = 0.0) -> Any:
    """The run's result. Raises FuseeError, and leaves the run alone, when it has not ended in time, of which some has passed."""
    try:
        return await run.result(None if timeout_ms is None else max(0.0, timeout_ms / 1000 - waited_s))
    except TimeoutError:
        how = await _how_it_is(run)
        raise FuseeError(f'workflow "{run.id}" has not ended within {(timeout_ms or 0) / 1000:g} s{how}', id=run.id) from None


async def _how_it_is(run: Run[Any]) -> str:
    """What to say of a run that was waited for in vain."""
    goes_on = f", and goes on. Wait with: fusee-mp result {run.id}"
    try:
        async with asyncio.timeout(LOOK_S):
            status = await run.status()
    except (FuseeError, TimeoutError):
        return goes_on
    ways = _WAYS.get(status.status) if status is not None else None
    return goes_on if status is None or ways is None else f": it is {status.status}, {_reason(status.reason)}. {ways.format(id=run.id)}"


def _reason(text: str) -> str:
    return f"because {text.rstrip('.')}" if text else "no reason was given"
