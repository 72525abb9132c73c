"""The shop: an order reserves, charges, waits a while, waits for an approval, has a shipment packed on another shard, and confirms."""
from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fusee_mp.cli.demonstration.ledger import Ledger
from fusee_mp.sdk.ctx import Ctx
from fusee_mp.sdk.current import current_step
from fusee_mp.sdk.definitions import step, workflow
from fusee_mp.sdk.handles import signal

LEDGER_VARIABLE: Final = "FUSEE_DEMO_LEDGER"
APPROVED: Final = signal("approved", bool)
ORDER_STEPS: Final = ("reserve", "charge", "confirm")
SHIPMENT_STEPS: Final = ("pack", "hand_over")
_open: list[Ledger] = []


@dataclass(frozen=True)
class Order:
    id: str
    shipment_id: str


@asynccontextmanager
async def lifespan() -> AsyncIterator[None]:
    """The worker has the ledger open as long as it works."""
    _open.append(Ledger(Path(os.environ[LEDGER_VARIABLE])))
    yield
    _open.pop().close()


async def _work() -> str:
    attempt = current_step()
    return await _open[-1].write(attempt.key, attempt.attempt)


@step
async def reserve(id: str) -> str:
    return await _work()


@step
async def charge(id: str) -> str:
    return await _work()


@step
async def confirm(id: str) -> str:
    return await _work()


@step
async def pack(id: str) -> str:
    return await _work()


@step
async def hand_over(id: str) -> str:
    return await _work()


@workflow("shipment")
async def shipment(ctx: Ctx) -> str:
    await pack(ctx.workflow_id)
    return await hand_over(ctx.workflow_id)


@workflow("order")
async def order(ctx: Ctx, order: Order) -> str:
    await reserve(order.id)
    await charge(order.id)
    await ctx.sleep("200ms")
    if not await ctx.wait_for(APPROVED):
        raise ValueError(f"order {order.id} was not approved")
    await ctx.child(shipment, order.shipment_id)
    return await confirm(order.id)
