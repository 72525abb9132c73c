"""Many items side by side, a few at a time, and a result although some of them fail.

Run it:  python examples/fanout.py
"""
from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass, field

from fusee_mp import Ctx, Engine, Retry, step, workflow


class NoSuchItem(Exception):
    """The shop does not know the item: a result of ours, not a reason to stop."""


@dataclass
class Prices:
    found: dict[str, int] = field(default_factory=dict[str, int])
    unknown: list[str] = field(default_factory=list[str])

    @property
    def total(self) -> int:
        return sum(self.found.values())


@step(retry=Retry(attempts=3, never=(NoSuchItem,)))
async def fetch_price(item: str) -> int:
    await asyncio.sleep(0.01)  # as a call to the shop would take
    number = int(item.removeprefix("item-"))
    if number % 10 == 7:
        raise NoSuchItem(item)
    return number * 100


@workflow("price-list")
async def price_list(ctx: Ctx, items: list[str]) -> Prices:
    prices = Prices()

    async def look_up(item: str) -> None:
        try:
            prices.found[item] = await fetch_price(item)
        except NoSuchItem:
            prices.unknown.append(item)

    # Twenty at once. Each price is recorded when it comes: after a crash only the missing ones are fetched.
    await ctx.all([look_up(item) for item in items], limit=20)
    return prices


async def main() -> None:
    items = [f"item-{number}" for number in range(200)]
    with tempfile.TemporaryDirectory() as directory:
        async with Engine.open(directory, workflows=[price_list], shards=2) as engine:
            prices = await engine.execute(price_list, "list-1", items)
    unknown = prices.unknown
    print(f"{len(prices.found)} prices, {prices.total} in all; unknown: {len(unknown)} items, the first of them {min(unknown)}")


if __name__ == "__main__":
    asyncio.run(main())
