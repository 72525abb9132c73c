"""Twenty-seven ways of using asyncio in a workflow. Each gets a context and a trace, which says what its code came to see, in order."""
from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from typing import Any

Trace = list[str]
BODIES: dict[str, Any] = {"seed": 0, "may go": None}  # how long bodies take, and what they wait for first


def delay_s(name: str) -> float:
    drawn = int(hashlib.sha256(f"{BODIES['seed']}/{name}".encode()).hexdigest()[:6], 16) % 97
    return (5 if name.startswith("slow") else 0.001) * (1 + drawn)


async def work(name: str, fails: bool) -> str:
    if BODIES["may go"] is not None:
        await BODIES["may go"].wait()
    await asyncio.sleep(delay_s(name))
    if fails:
        raise ValueError(name)
    return name


def step(ctx: Any, name: str, fails: bool = False) -> Any:
    return ctx.step(name, work, name, fails)


async def gather(ctx: Any, t: Trace) -> None:
    t.append(str(await asyncio.gather(*[step(ctx, f"s{i}") for i in range(6)])))


async def gather_fails(ctx: Any, t: Trace) -> None:
    async def one(i: int) -> None:
        try:
            await step(ctx, f"s{i}", fails=i == 3)
            t.append(str(i))
        finally:
            t.append(f"end of {i}")

    try:
        await asyncio.gather(*[one(i) for i in range(6)])
    except ValueError as e:
        t.append(f"caught {e}")
    await step(ctx, "after")


async def task_group(ctx: Any, t: Trace) -> None:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(step(ctx, f"s{i}")) for i in range(6)]
    t.append(str([task.result() for task in tasks]))


async def task_group_fails(ctx: Any, t: Trace) -> None:
    async def one(i: int) -> None:
        try:
            await step(ctx, f"s{i}", fails=i == 3)
            t.append(str(i))
        finally:
            t.append(f"end of {i}")
            await step(ctx, f"undo{i}")

    try:
        async with asyncio.TaskGroup() as group:
            for i in range(6):
                group.create_task(one(i))
    except* ValueError as errors:
        t.append(str([str(e) for e in errors.exceptions]))


async def timeout_fires(ctx: Any, t: Trace) -> None:
    try:
        async with asyncio.timeout(0.01):
            await step(ctx, "slow9")
    except TimeoutError:
        t.append("timeout")
    await step(ctx, "after")


async def timeout_does_not_fire(ctx: Any, t: Trace) -> None:
    async with asyncio.timeout(1000):
        t.append(await step(ctx, "s1"))
    await step(ctx, "after")


async def timeouts_nested(ctx: Any, t: Trace) -> None:
    try:
        async with asyncio.timeout(5):
            try:
                async with asyncio.timeout(0.01):
                    await step(ctx, "slow9")
            except TimeoutError:
                t.append("inner")
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + 0.02):
                await step(ctx, "slow8")
    except TimeoutError:
        t.append("outer")


async def wait_for_fires(ctx: Any, t: Trace) -> None:
    try:
        await asyncio.wait_for(step(ctx, "slow9"), 0.01)
    except TimeoutError:
        t.append("timeout")
    await step(ctx, "after")


async def wait_for_beside_another(ctx: Any, t: Trace) -> None:
    async def a() -> Any:
        return await asyncio.wait_for(step(ctx, "a"), 1000)

    async def b() -> Any:
        return await step(ctx, "b")

    t.append(str(await asyncio.gather(a(), b())))


async def wait_for_a_queue(ctx: Any, t: Trace) -> None:
    queue: asyncio.Queue[int] = asyncio.Queue()

    async def put() -> None:
        await step(ctx, "p")
        await queue.put(1)

    putting = asyncio.create_task(put())
    t.append(str(await asyncio.wait_for(queue.get(), 1000)))
    await putting


async def as_completed_of_coroutines(ctx: Any, t: Trace) -> None:
    coroutines = [step(ctx, f"s{i}") for i in range(12)]
    try:
        for done in asyncio.as_completed(coroutines):
            t.append(await done)
    except RuntimeError as e:
        t.append(str(e))
    for coroutine in coroutines:
        coroutine.close()


async def as_completed_of_tasks(ctx: Any, t: Trace) -> None:
    for done in asyncio.as_completed([asyncio.create_task(step(ctx, f"s{i}")) for i in range(12)]):
        t.append(await done)


async def as_completed_timeout(ctx: Any, t: Trace) -> None:
    try:
        for done in asyncio.as_completed([asyncio.create_task(step(ctx, f"slow{i}")) for i in range(4)], timeout=0.01):
            t.append(await done)
    except TimeoutError:
        t.append("timeout")


async def wait_first(ctx: Any, t: Trace) -> None:
    left = {asyncio.create_task(step(ctx, f"s{i}"), name=f"s{i}") for i in range(12)}
    while left:
        done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
        t.append(str(([task.get_name() for task in done], [task.get_name() for task in left])))
        for task in list(left)[:1]:
            await step(ctx, f"look-{task.get_name()}")


async def wait_timeout(ctx: Any, t: Trace) -> None:
    tasks = [asyncio.create_task(step(ctx, f"slow{i}"), name=f"slow{i}") for i in range(8)]
    _, left = await asyncio.wait(tasks, timeout=0.01)
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    t.append(str([task.get_name() for task in left]))


async def queue(ctx: Any, t: Trace) -> None:
    items: asyncio.Queue[int | None] = asyncio.Queue(3)

    async def worker(n: int) -> None:
        while (item := await items.get()) is not None:
            t.append(f"{n} has {item}")
            await step(ctx, f"w{n}-{item}")
            items.task_done()

    workers = [asyncio.create_task(worker(n)) for n in range(3)]
    for i in range(9):
        await items.put(i)
    for _ in workers:
        await items.put(None)
    await asyncio.gather(*workers)


async def semaphore(ctx: Any, t: Trace) -> None:
    gate = asyncio.Semaphore(3)

    async def one(i: int) -> None:
        async with gate:
            await step(ctx, f"s{i}")
            t.append(str(i))

    await asyncio.gather(*[one(i) for i in range(10)])


async def event_lock_condition(ctx: Any, t: Trace) -> None:
    event, condition, lock = asyncio.Event(), asyncio.Condition(), asyncio.Lock()

    async def waiter(i: int) -> None:
        await event.wait()
        async with lock:
            await step(ctx, f"l{i}")
            t.append(str(i))
        async with condition:
            await condition.wait()
            t.append(f"c{i}")

    tasks = [asyncio.create_task(waiter(i)) for i in range(4)]
    await step(ctx, "go")
    event.set()
    await step(ctx, "slow5")
    await asyncio.sleep(1)
    async with condition:
        condition.notify_all()
    await asyncio.gather(*tasks)


async def barrier(ctx: Any, t: Trace) -> None:
    wall = asyncio.Barrier(3)

    async def one(i: int) -> None:
        await step(ctx, f"b{i}")
        t.append(str(await wall.wait()))

    await asyncio.gather(*[one(i) for i in range(3)])


async def shield(ctx: Any, t: Trace) -> None:
    inner = asyncio.create_task(step(ctx, "slow9"))
    try:
        async with asyncio.timeout(0.01):
            await asyncio.shield(inner)
    except TimeoutError:
        t.append("timeout")
    t.append(await inner)


async def sleeps(ctx: Any, t: Trace) -> None:
    async def one(s: float) -> None:
        await asyncio.sleep(s)
        t.append(str(s))

    await asyncio.gather(one(3), one(1), one(0), one(2), one(1))


async def generator(ctx: Any, t: Trace) -> None:
    async def items() -> AsyncIterator[str]:
        try:
            for i in range(5):
                yield await step(ctx, f"g{i}")
        finally:
            t.append("closed")
            await step(ctx, "clean-up")
            t.append("cleaned up")

    async for item in items():
        t.append(item)
        if item == "g2":
            break
    await step(ctx, "after")


async def thread_refused(ctx: Any, t: Trace) -> None:
    try:
        await asyncio.to_thread(work)
    except RuntimeError as e:
        t.append(str(e))


async def network_refused(ctx: Any, t: Trace) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: asyncio.open_connection("127.0.0.1", 1), lambda: asyncio.create_subprocess_exec("true"),
        lambda: asyncio.start_server(lambda *_: None, "", 0),  # type: ignore[arg-type, return-value]
    ]
    for call in calls:
        try:
            await call()
        except RuntimeError as e:
            t.append(str(e))


async def names(ctx: Any, t: Trace) -> None:
    t.append(str([task.get_name().split("-")[0] for task in asyncio.all_tasks()]))
    t.append(str(asyncio.current_task() in asyncio.all_tasks()))


async def context_all(ctx: Any, t: Trace) -> None:
    t.append(str(await ctx.all([step(ctx, f"s{i}") for i in range(7)], limit=3)))
    try:
        await ctx.all([step(ctx, f"t{i}", fails=i == 1) for i in range(4)], limit=2)
    except ValueError as e:
        t.append(f"caught {e}")


async def left_behind(ctx: Any, t: Trace) -> None:
    async def background() -> None:
        try:
            await step(ctx, "slow7")
        finally:
            async with asyncio.timeout(1000):
                await asyncio.gather(step(ctx, "undo1"), step(ctx, "undo2"))
            t.append("undone")

    task = asyncio.create_task(background())
    await step(ctx, "s1")
    t.append(f"ends, {task.done()}")


CASES = [
    gather, gather_fails, task_group, task_group_fails, timeout_fires, timeout_does_not_fire, timeouts_nested, wait_for_fires,
    wait_for_beside_another, wait_for_a_queue, as_completed_of_coroutines, as_completed_of_tasks, as_completed_timeout, wait_first,
    wait_timeout, queue, semaphore, event_lock_condition, barrier, shield, sleeps, generator, thread_refused, network_refused, names,
    context_all, left_behind,
]
