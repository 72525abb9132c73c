"""A checkout as a saga: when a later step fails, the earlier ones are undone. The engine is embedded: one process, one directory.

Run it:  python examples/checkout.py
Kill it anywhere and run it again with the same directory: it goes on where it was.  python examples/checkout.py ./shop-data
"""
from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID

from fusee_mp import Ctx, Engine, Retry, WorkflowFailed, step, workflow


class CardDeclined(Exception):
    """The bank says no: trying again would not help."""


@dataclass
class Order:
    id: str
    item: str
    amount: Decimal


@dataclass
class Receipt:
    payment: str
    parcel: str


@step(retry=Retry(attempts=3))
async def reserve(order: Order) -> str:
    print(f"  reserve   {order.item}")
    return f"reservation of {order.item}"


@step(retry=Retry())
async def release(order: Order) -> None:
    print(f"  release   {order.item}, if it was reserved")


@step(retry=Retry(attempts=5, never=(CardDeclined,)), timeout="30s")
async def charge(order: Order, key: UUID) -> str:
    # The key is the same in all attempts of this step, also after a crash: a bank that is given it charges once.
    if order.amount > 1000:
        raise CardDeclined(f"{order.amount} is over the limit")
    print(f"  charge    {order.amount} (idempotency key {key})")
    return f"payment {key}"


@step(retry=Retry())
async def refund(key: UUID) -> None:
    print(f"  refund    what was charged as {key}, if anything was")


@step(retry=Retry(attempts=3, initial="50ms"))
async def ship(order: Order) -> str:
    if order.item == "piano":
        raise ConnectionError("the carrier does not answer")
    print(f"  ship      {order.item}")
    return f"parcel of {order.id}"


@workflow("checkout")
async def checkout(ctx: Ctx, order: Order) -> Receipt:
    # How to undo a step is noted before it begins: one that failed or was cancelled may have had its effect all the same.
    undo: list[Callable[[], Coroutine[Any, Any, None]]] = []
    try:
        undo.append(lambda: release(order))
        await reserve(order)
        key = ctx.uuid4()
        undo.append(lambda: refund(key))
        payment = await charge(order, key)
        return Receipt(payment, await ship(order))
    except BaseException:
        for compensate in reversed(undo):
            await compensate()
        raise


async def main(directory: str) -> None:
    orders = [
        Order("order-1", "lamp", Decimal("39.90")),
        Order("order-2", "yacht", Decimal("2500000.00")),  # declined: nothing was charged, the reservation is released
        Order("order-3", "piano", Decimal("990.00")),  # never shipped: refunded, then released
    ]
    async with Engine.open(directory, workflows=[checkout]) as engine:
        for order in orders:
            print(f"{order.id}:")
            # The ID is an idempotency key: a second start of the same order finds the first one, also if that has ended.
            run = await engine.start(checkout, order.id, order, on_running="use_existing", on_finished="use_existing")
            try:
                receipt = await run.result()
                print(f"  done      {receipt.parcel}, paid with {receipt.payment}")
            except WorkflowFailed as e:
                print(f"  undone    {type(e.__cause__).__name__}: {e.__cause__}")


if __name__ == "__main__":
    with nullcontext(sys.argv[1]) if len(sys.argv) > 1 else tempfile.TemporaryDirectory() as place:
        asyncio.run(main(place))
