"""What the workers of these tests run."""
from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from fusee_mp import Ctx, Retry, current_step, signal, step, workflow

APPROVED = signal("approved", bool)


@dataclass
class Order:
    item: str
    count: int = 1


@step
async def pay(order: Order) -> str:
    return f"{order.count} {order.item}, paid"


@step
async def worker_pid() -> int:
    return os.getpid()


@workflow("order")
async def order(ctx: Ctx, order: Order) -> str:
    return await pay(order)


@workflow("approval")
async def approval(ctx: Ctx) -> str:
    voices: list[str] = []

    def heard(who: str) -> int:
        voices.append(who)
        return len(voices)

    def known(who: str) -> None:
        if who == "nobody":
            raise ValueError("nobody has no voice")

    ctx.on_query("voices", lambda: voices)
    ctx.on_update("heard", heard, known)
    if not await ctx.wait_for(APPROVED):
        raise ValueError("it was not approved")
    return "approved"


@workflow("where")
async def where(ctx: Ctx) -> int:
    return await worker_pid()


async def hand_out(token: str) -> None:
    current_step().heartbeat(token)  # for `describe` to show


@workflow("delivery")
async def delivery(ctx: Ctx) -> str:
    where = await ctx.completion("delivered", hand_out, returns=str)
    return f"{where} since {await ctx.step('today', lambda: 'Monday')}"


async def stumble() -> None:
    if current_step().attempt == 1:
        raise ConnectionError("the line is down")
    raise ValueError("the words of the customer")


@workflow("stumbling", on_exhausted="pause")
async def stumbling(ctx: Ctx) -> None:
    await ctx.step("stumble", stumble, retry=Retry(attempts=2, initial="1ms"))


@workflow("spinning")
async def spinning(ctx: Ctx) -> None:
    while True:
        await asyncio.sleep(0)


BUNDLE = [order, approval]


@asynccontextmanager
async def lifespan() -> AsyncIterator[None]:
    """Leaves a trace at both ends, if somebody wants to see it."""
    _trace("entered")
    yield
    _trace("left")


def _trace(word: str) -> None:
    if path := os.environ.get("ORDERS_TRACE"):
        with open(path, "a") as file:
            file.write(f"{word}\n")
