"""Payment saga with compensation."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from fusee_mp import AlreadyExists, Ctx, Engine, Fatal, Retry, WorkflowFailed, current_step, step, workflow


class CardDeclined(Exception):
    def __init__(self, code: str, order: str) -> None:
        super().__init__(f"card declined: {code}")
        self.code, self.order = code, order


@dataclass
class Order:
    id: str
    amount: Decimal


@dataclass
class Charge:
    id: str


@dataclass
class Receipt:
    charge: Charge
    parcel: str


@step(retry=Retry(attempts=5, never=(CardDeclined,)), timeout="30s")
async def charge(order: Order) -> Charge:
    key = current_step().key
    if order.amount > 1000:
        raise CardDeclined("limit", order.id)
    if order.amount < 0:
        raise Fatal("negative amount")
    return Charge(key)


@step(retry=Retry())
async def refund(c: Charge) -> None: ...
@step(retry=Retry(attempts=3))
def reserve(order: Order) -> str:
    return "r-1"  # sync step


@step(retry=Retry())
def release(reservation: str) -> None: ...
async def ship(order: Order, reservation: str, *, timeout: float = 3.0) -> str:
    return "parcel"


@workflow("saga")
async def saga(ctx: Ctx, order: Order) -> Receipt:
    undo: list[Callable[[], Coroutine[Any, Any, None]]] = []
    try:
        reservation = await reserve(order)
        undo.append(lambda: release(reservation))
        paid = await charge(order)
        undo.append(lambda: refund(paid))
        parcel = await ctx.step("ship", ship, order, reservation, retry=Retry(attempts=3), timeout="10s")
        return Receipt(paid, parcel)
    except BaseException:
        for u in reversed(undo):
            await u()
        raise


async def main() -> None:
    async with Engine.open("./data", workflows=[saga]) as engine:
        try:
            print(await engine.execute(saga, "order-7", Order("7", Decimal("10.50"))))
        except WorkflowFailed as e:
            print(e.code, e.__cause__)
        except AlreadyExists:
            print(await engine.handle("order-7", saga).result())


if __name__ == "__main__":
    asyncio.run(main())
