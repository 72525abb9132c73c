"""Nightly report by cron, with backfill of last week."""

import asyncio
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from fusee_mp import Ctx, Retry, ScheduleSpec, Worker, current_step, step, workflow


@dataclass
class Report:
    day: date
    rows: int


@step(retry=Retry(attempts=10, initial="1s", maximum="5m"), timeout="1h", heartbeat_timeout="1m")
def load(day: date) -> int:  # sync: thread pool
    done = current_step().progress(int) or 0
    for page in range(done, 10):
        current_step().heartbeat(page + 1)
    return 10


@step
def mail(r: Report) -> None: ...


@workflow("nightly")
async def nightly(ctx: Ctx) -> Report:
    assert ctx.scheduled_at is not None  # started by its schedule
    day = (ctx.scheduled_at - timedelta(days=1)).date()
    r = Report(day, await load(day))
    await mail(r)
    return r


async def main() -> None:
    async with Worker.connect("127.0.0.1:7410", workflows=[nightly]) as worker:
        serving = asyncio.create_task(worker.run())
        h = await worker.engine.schedule(
            "nightly-report", ScheduleSpec(workflow=nightly, cron="0 2 * * *", timezone="Europe/Berlin", overlap="skip")
        )
        end = datetime.now(UTC)
        n = await h.backfill(end - timedelta(days=7), end)
        print(n, await h.next_times(3))
        await serving


if __name__ == "__main__":
    asyncio.run(main())
