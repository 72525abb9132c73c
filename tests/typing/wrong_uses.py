"""Every line marked `# wrong` must be refused by the type checkers, and every other line accepted.

`# wrong above` marks a definition whose decorator, on the line before, is where a checker may report it.
"""
from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Literal

from fusee_mp import Batch, Client, Ctx, Engine, Retry, Run, query, signal, step, update, workflow


@dataclass
class Order:
    id: str


@dataclass
class Receipt:
    total: int


REVIEW = signal("review", bool)
STOP = signal("stop")
CHOICE = signal("choice", Literal["yes", "no"])
MAYBE = signal("maybe", str | None)
ITEMS = query("items", returns=list[str])
ITEM = query("item", int, returns=str)
ADD = update("add", str, returns=int)


@step(retry=Retry(attempts=5))
async def charge(order: Order, *, currency: str = "EUR", timeout: float = 1.0) -> Receipt:
    return Receipt(1)


@step
def render(order: Order) -> bytes:
    return b""


async def price(order: Order) -> int:
    return 1


def tax(order: Order, rate: float = 0.2) -> float:
    return 1.0


@workflow("checkout")
async def checkout(ctx: Ctx, order: Order) -> Receipt:
    # Steps.
    receipt = await charge(order)
    in_dollars: Receipt = await charge(order, currency="USD", timeout=3.0)
    await charge("order")  # wrong
    await charge(order, curency="USD")  # wrong
    await charge()  # wrong
    text: str = await charge(order)  # wrong
    rendered: bytes = await render(order)
    await render(1)  # wrong
    not_awaited: bytes = render(order)  # wrong
    await charge.with_(retry=Retry(), timeout="5s")(order, timeout=3.0)
    await charge.with_(retries=3)(order)  # wrong
    quote = await ctx.step("quote", price, order)
    quoted: str = await ctx.step("quote", price, order)  # wrong
    await ctx.step("quote", price, "order")  # wrong
    await ctx.step("quote", price)  # wrong
    await ctx.step("quote", price, order, order)  # wrong
    await ctx.step("tax", tax, order)
    taxed: float = await ctx.step("tax", tax, order, 0.1)
    as_bytes: bytes = await ctx.step("tax", tax, order)  # wrong
    await ctx.step("tax", tax, order, "x")  # wrong
    await ctx.step("tax", tax, order, retry=Retry(attempts=3), timeout="1s")
    await ctx.step("tax", tax, order, rate=0.3)  # wrong
    await ctx.step(price, order)  # wrong

    # Signals.
    approved = await ctx.wait_for(REVIEW)
    is_approved: bool = approved
    or_late: bool = await ctx.wait_for(REVIEW, timeout="1d")  # wrong
    never_late: bool = await ctx.wait_for(REVIEW)
    word: str = await ctx.wait_for(REVIEW)  # wrong
    choice: Literal["yes", "no"] = await ctx.wait_for(CHOICE)
    certain: str = await ctx.wait_for(MAYBE)  # wrong
    await ctx.signal("other", REVIEW, True)
    await ctx.signal("other", REVIEW, "yes")  # wrong
    await ctx.signal("other", REVIEW)  # wrong
    await ctx.signal("other", STOP)
    await ctx.signal("other", CHOICE, "maybe")  # wrong
    await ctx.cancel("other")

    # Queries and updates.
    def item(index: int) -> str:
        return ""

    async def add(text: str) -> int:
        return 1

    async def add_number(number: int) -> int:
        return 1

    ctx.on_query(ITEMS, lambda: ["a"])
    ctx.on_query(ITEMS, lambda: [1])  # wrong
    ctx.on_query(ITEM, item)
    ctx.on_query(ITEMS, item)  # wrong
    ctx.on_update(ADD, add)
    ctx.on_update(ADD, add_number)  # wrong
    ctx.on_update(ADD, add, lambda text: None)

    # Children.
    number: int = await ctx.child(leaf, "leaf", 3)
    await ctx.child(leaf, "leaf", "3")  # wrong
    await ctx.child(leaf, "leaf")  # wrong
    name: str = await ctx.child(leaf, "leaf", 3)  # wrong
    child = await ctx.start_child(leaf, "leaf", 3)
    of_child: str = await child.result()  # wrong
    await ctx.child(leaf, "leaf", 3, close="kill")  # wrong

    # Several at once.
    first, second = await asyncio.gather(ctx.step("a", price, order), ctx.child(leaf, "b", 1))
    of_first: str = first  # wrong
    both = await asyncio.gather(ctx.child(leaf, "b", 1), charge(order))
    of_second: str = both[1]  # wrong
    await asyncio.gather(ctx.step("a", price, "x"), charge(order))  # wrong
    await ctx.continue_as_new("anything")  # wrong
    return receipt


@workflow
async def leaf(ctx: Ctx, n: int) -> int:
    if n:
        await ctx.continue_as(leaf, "x")  # wrong
    return n


@workflow()
async def nightly(ctx: Ctx) -> None:
    ctx.step("forgot to await", price, Order("x"))  # wrong
    charge(Order("x"))  # wrong
    ctx.sleep(1)  # wrong


@workflow
async def two_inputs(ctx: Ctx, a: int, b: int) -> int:  # wrong above
    return 1


@workflow
def not_async(ctx: Ctx, a: int) -> int:  # wrong above
    return 1


@workflow
async def summed(ctx: Ctx, numbers: list[int]) -> int:
    return 1


async def main(engine: Engine, client: Client) -> None:
    # Starting.
    run = await engine.start(checkout, "o-1", Order("1"))
    receipt: Receipt = await run.result()
    number: int = await run.result()  # wrong
    await engine.start(checkout, "o-1", "1")  # wrong
    await engine.start(checkout, "o-1")  # wrong
    await engine.start(checkout, Order("1"), "o-1")  # wrong
    await engine.start(nightly, "n")
    await engine.start(nightly, "n", 3)  # wrong
    await engine.start(checkout, "o-1", Order("1"), on_running="reuse")  # wrong
    await engine.execute(price, "x", Order("1"))  # wrong

    # Talking to a run.
    await run.signal(REVIEW, True)
    await run.signal(REVIEW, 1)  # wrong
    await run.signal(REVIEW)  # wrong
    await run.signal("review", 1)
    added: int = await run.update(ADD, "x")
    await run.update(ADD, 1)  # wrong
    said: str = await run.update(ADD, "x")  # wrong
    items: list[str] = await run.query(ITEMS)
    await run.query(ITEM)  # wrong
    numbers: list[int] = await run.query(ITEMS)  # wrong
    run.signal(REVIEW, True)  # wrong

    # Handles, batches, an update with a start.
    known: Run[Receipt] = client.handle("o-1", checkout)
    unlike: Run[int] = client.handle("o-1", checkout)  # wrong
    await client.handle("o-1", checkout)  # wrong
    await engine.batch(summed, "k", 1, Batch(3, "1s"))
    await engine.batch(summed, "k", "x", Batch(3, "1s"))  # wrong
    started, total = await client.update_with_start(checkout, "o", Order("1"), ADD, "x")
    await client.update_with_start(checkout, "o", Order("1"), ADD, 3)  # wrong
