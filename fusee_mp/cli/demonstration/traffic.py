# The customers: so many orders at a time, each started, approved and waited for, whatever happens to the server meanwhile.
"""`Traffic`: keeps the shop busy and remembers what was promised to it."""
from __future__ import annotations

import asyncio
import random
import time
from typing import Final

from fusee_mp.cli.demonstration.shop import APPROVED, Order, order
from fusee_mp.core.placement import shard_of
from fusee_mp.sdk.client import Client

AT_ONCE: Final = 100
APPROVAL_S: Final = 0.2


class Traffic:
    """`acknowledged`: the orders whose start the server has confirmed. `results`: what they returned. `ack_ms`: how long a start took."""

    def __init__(self, client: Client, orders: int) -> None:
        self._client, self.orders = client, orders
        self._made = 0
        self.acknowledged: dict[str, Order] = {}
        self.results: dict[str, str] = {}
        self.ack_ms: list[float] = []
        self.may_end = asyncio.Event()

    @property
    def under_way(self) -> int:
        """Orders that were started and are not done."""
        return len(self.acknowledged) - len(self.results)

    async def run(self) -> None:
        """Until the orders are done, and `may_end` is set: then what is under way is still finished."""
        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(self._customer())

    async def _customer(self) -> None:
        while self._made < self.orders or not self.may_end.is_set():
            self._made += 1
            await self._order(make_order(self._made, self._client.shards))

    async def _order(self, made: Order) -> None:
        asked = time.perf_counter()
        run = await self._client.start(order, made.id, made)
        self.ack_ms.append((time.perf_counter() - asked) * 1000)
        self.acknowledged[made.id] = made
        await asyncio.sleep(random.uniform(0, APPROVAL_S))
        await run.signal(APPROVED, True)
        self.results[made.id] = await run.result()


def make_order(number: int, shards: int) -> Order:
    """An order whose shipment is on another shard."""
    id = f"order-{number}"
    for letter in "abcdefghijklmnopqrstuvwxyz":
        shipment_id = f"shipment-{number}{letter}"
        if shard_of(shipment_id, shards) != shard_of(id, shards):
            return Order(id, shipment_id)
    raise AssertionError("26 IDs on one shard of two are a matter of 1 in 67 million")
