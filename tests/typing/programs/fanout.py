"""100 items, at most 10 at a time in this run, at most 50 over the whole system; partial failure is a result."""

import asyncio
from dataclasses import dataclass

from fusee_mp import Ctx, Engine, Limit, Retry, StepFailed, query, step, workflow


@dataclass
class Item:
    sku: str


@dataclass
class Outcome:
    done: dict[str, int]
    failed: dict[str, str]


DONE = query("done", returns=int)


@step(retry=Retry(attempts=3), limit="shop-api")
async def fetch_price(item: Item) -> int:
    return len(item.sku)


def resize(sku: str, width: int, *, limit: int = 100) -> int:
    return min(width, limit)


@workflow("fanout")
async def fanout(ctx: Ctx, items: list[Item]) -> Outcome:
    out = Outcome({}, {})
    ctx.on_query(DONE, lambda: len(out.done))
    gate = asyncio.Semaphore(10)

    async def one(i: int, item: Item) -> None:
        async with gate:
            try:
                out.done[item.sku] = await fetch_price(item)
                await ctx.step(f"resize-{i}", resize, item.sku, 640)
            except StepFailed as e:
                out.failed[item.sku] = str(e)

    async with asyncio.TaskGroup() as tg:
        for i, item in enumerate(items):
            tg.create_task(one(i, item))
    sizes = await ctx.all([ctx.step(f"size-{i}", resize, x.sku, 32) for i, x in enumerate(items)])
    assert len(sizes) == len(items)
    return out


async def main() -> None:
    async with Engine.open("./data", workflows=[fanout], shards=2) as engine:
        await engine.limit("shop-api", Limit(concurrent=50))
        run = await engine.start(fanout, "f-1", [Item(f"s{i}") for i in range(100)])
        while (s := await engine.status("f-1")) and s.status in ("running", "suspended", "parked"):
            print(await run.query(DONE))
            await asyncio.sleep(1)
        print(await run.result())


if __name__ == "__main__":
    asyncio.run(main())
