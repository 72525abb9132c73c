"""Workers with different code: a shard goes where the code is that its runs need, and a run whose code comes later goes on."""
from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from itertools import product
from pathlib import Path

import pytest

from fusee_mp import Client, Ctx, Rejected, UnknownWorkflow, Worker, signal, step, workflow
from tests.server.loopback import PATIENCE_S, id_on
from tests.server.tree import Tree, serving

END = signal("end", str)
gates: dict[str, asyncio.Event] = {}
begun: list[str] = []


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    gates.clear()
    begun.clear()
    yield


@step
async def note(text: str) -> str:
    begun.append(text)
    if text in gates:
        await gates[text].wait()
    return text


@workflow
async def red(ctx: Ctx, text: str) -> str:
    return await note(text)


@step
async def sleep(seconds: float) -> str:
    begun.append("slow")
    await asyncio.sleep(seconds)
    return "slow"


@workflow
async def slow(ctx: Ctx, seconds: float) -> str:
    return await sleep(seconds)


@workflow
async def blue(ctx: Ctx, text: str) -> str:
    return await note(text)


@workflow
async def parent(ctx: Ctx, count: int) -> list[str]:
    return [await ctx.child(blue, f"child-{number}", f"c{number}") for number in range(count)]


@workflow
async def asked(ctx: Ctx) -> str:
    words: list[str] = []
    ctx.on_query("words", lambda: words)
    ctx.on_update("say", words.append)
    return await ctx.wait_for(END) + "".join(words)


def play(tmp_path: Path, body: Callable[[Tree, Client], Awaitable[None]], shards: int = 2) -> None:
    async def main(tree: Tree) -> None:
        async with asyncio.timeout(3 * PATIENCE_S), Client.connect(tree.address) as client:
            await body(tree, client)

    with serving(tmp_path / "data", shards=shards, ping_ms=250) as tree:
        asyncio.run(main(tree))


async def eventually(holds: Callable[[], Awaitable[bool]], what: str) -> None:
    for _ in range(int(PATIENCE_S / 0.02)):
        if await holds():
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"never: {what}")


def test_runs_of_two_types_are_served_by_two_workers_that_have_one_each(tmp_path: Path) -> None:
    async def body(tree: Tree, client: Client) -> None:
        async with Worker.connect(tree.address, workflows=[red], name="red"):
            idle = Worker.connect(tree.address, workflows=[blue], name="blue")
            standby = asyncio.create_task(idle._begin())
            await eventually(lambda: knows(client, "blue"), "the red worker hears of the blue one")
            calls = [client.execute(kind, f"{kind}-{number}", f"{kind} {number}") for number in range(6) for kind in ("red", "blue")]
            assert sorted(await asyncio.gather(*calls)) == sorted(f"{kind} {number}" for number in range(6) for kind in ("red", "blue"))
            assert sorted(begun) == sorted(set(begun)), "no step ran twice"
            await (await standby).close()

    play(tmp_path, body)


async def knows(client: Client, workflow: str) -> bool:
    """Whether a run of the type can be started."""
    try:
        await client.start(workflow, f"probe-{workflow}", "probe", on_running="use_existing", on_finished="use_existing")
    except UnknownWorkflow:
        return False
    return True


def test_children_updates_and_queries_go_where_the_code_is(tmp_path: Path) -> None:
    async def body(tree: Tree, client: Client) -> None:
        async with Worker.connect(tree.address, workflows=[parent], name="parent"):
            other = asyncio.create_task(Worker.connect(tree.address, workflows=[blue, asked], name="others")._begin())
            await eventually(lambda: knows(client, "blue"), "the others are heard of")
            family = await client.start("parent", "family", 4)
            run = await client.start("asked", "asked")
            await run.update("say", "hello ")
            assert await run.query("words") == ["hello "]
            await run.signal("end", "that is: ")
            assert await run.result() == "that is: hello "
            assert await family.result() == ["c0", "c1", "c2", "c3"]
            await (await other).close()

    play(tmp_path, body)


def test_a_type_that_nobody_has_is_refused_with_all_that_somebody_has(tmp_path: Path) -> None:
    async def body(tree: Tree, client: Client) -> None:
        async with Worker.connect(tree.address, workflows=[red], name="red"):
            other = asyncio.create_task(Worker.connect(tree.address, workflows=[blue], name="blue")._begin())
            await eventually(lambda: knows(client, "blue"), "the red worker hears of the blue one")
            with pytest.raises(UnknownWorkflow, match="Registered: blue, red"):
                await client.start("green", "x")
            other.cancel()
            await asyncio.gather(other, return_exceptions=True)

    play(tmp_path, body, shards=1)


def test_a_running_body_ends_before_its_shard_goes_to_other_code(tmp_path: Path) -> None:
    async def body(tree: Tree, client: Client) -> None:
        gates["long"] = asyncio.Event()
        async with Worker.connect(tree.address, workflows=[red], name="red"):
            long = await client.start("red", "long", "long")
            await eventually(begins("long"), "the body runs")
            other = asyncio.create_task(Worker.connect(tree.address, workflows=[blue], name="blue")._begin())
            await eventually(lambda: knows(client, "blue"), "the red worker hears of the blue one")
            short = await client.start("blue", "short", "short")
            await eventually(lambda: is_aside(client, "short"), "the run waits for code")
            reason = (await client.status("short")).reason
            assert reason == ('workflow "blue" of run "short" is not registered here (registered: red);'
                              " another worker has it, and the run waits for that one")
            gates["long"].set()
            assert await short.result() == "short"
            assert await long.result() == "long"
            assert begun.count("long") == 1
            await (await other).close()

    play(tmp_path, body, shards=1)


def begins(text: str) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        return text in begun

    return look


async def is_aside(client: Client, id: str) -> bool:
    return (await client.status(id)).status == "quarantined"


def test_a_body_longer_than_the_grace_ends_although_its_shard_is_wanted_again_and_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(tree: Tree, client: Client) -> None:
        async with Worker.connect(tree.address, workflows=[slow], name="slow", grace="200ms"):
            long = await client.start("slow", "long", 1.5)
            await eventually(begins("slow"), "the body runs")
            other = asyncio.create_task(Worker.connect(tree.address, workflows=[blue], name="blue")._begin())
            await eventually(lambda: knows(client, "blue"), "the slow worker hears of the blue one")
            wanting = asyncio.create_task(want_for_ever(client))
            assert await long.result() == "slow"
            assert await client.execute("blue", "last", "last") == "last"
            wanting.cancel()
            await asyncio.gather(wanting, return_exceptions=True)
            await (await other).close()
        said = [record.getMessage() for record in caplog.records if "is cut off after" in record.getMessage()]
        assert begun.count("slow") == len(said) + 1 > 1, "it is said of each body that is cut"
        assert 'workflow "slow", run "long": the body of step "sleep"' in said[0] and "--grace" in said[0]
        given = [float(text.split("after ")[1].split(" s of grace")[0]) for text in said]
        assert given[0] == 0.2 and given == sorted(set(given)), "each time more"

    play(tmp_path, body, shards=1)


async def want_for_ever(client: Client) -> None:
    for number in range(10_000):
        await client.start("blue", f"want-{number}", f"want-{number}")
        await asyncio.sleep(0.05)


def test_a_worker_that_has_no_room_gets_a_shard_that_needs_it_in_exchange_for_another(tmp_path: Path) -> None:
    async def body(tree: Tree, client: Client) -> None:
        async with (
            Worker.connect(tree.address, workflows=[blue], name="blue", max_shards=2) as small,
            Worker.connect(tree.address, workflows=[red], name="red", max_shards=1) as other,
        ):
            await eventually(lambda: knows(client, "red"), "the blue worker hears of the red one")
            for kind, shard in product(("blue", "red"), range(3)):
                assert await client.execute(kind, id_on(shard, 3), f"{kind} on {shard}") == f"{kind} on {shard}"
            assert len(small.held) <= 2 and len(other.held) <= 1

    play(tmp_path, body, shards=3)


def test_of_many_runs_that_wait_for_the_code_of_another_worker_the_log_has_few_lines(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def body(tree: Tree, client: Client) -> None:
        gates["long"] = asyncio.Event()
        async with Worker.connect(tree.address, workflows=[red], name="red"):
            await client.start("red", "long", "long")
            await eventually(begins("long"), "the body keeps the shard here")
            other = asyncio.create_task(Worker.connect(tree.address, workflows=[blue], name="blue")._begin())
            await eventually(lambda: knows(client, "blue"), "the red worker hears of the blue one")
            many = [await client.start("blue", f"many-{number}", str(number)) for number in range(50)]
            gates["long"].set()
            await asyncio.gather(*(run.result() for run in many))
            said = [text for text in caplog.messages if "set aside" in text]
            assert 'run 2 of "probe-blue" is set aside (quarantined): workflow "blue"' in said[0] and len(said) < 10
            await (await other).close()

    play(tmp_path, body, shards=1)


def test_a_quarantined_run_says_why_and_goes_on_when_its_code_comes(tmp_path: Path) -> None:
    async def body(tree: Tree, client: Client) -> None:
        async with Worker.connect(tree.address, workflows=[red, blue], name="first", grace=0):
            gates["stays"] = asyncio.Event()
            await client.start("blue", "later", "stays")
            await eventually(begins("stays"), "the body runs")
        async with Worker.connect(tree.address, workflows=[red], name="second"):
            await eventually(lambda: is_aside(client, "later"), "the code is missing")
            (status,) = await client.list({"status": "quarantined"})
            assert 'workflow "blue"' in status.reason and "run a worker that has it" in status.reason
            with pytest.raises(Rejected, match="quarantined"):
                await client.handle("later").query("words")
            gates["stays"].set()
            third = asyncio.create_task(Worker.connect(tree.address, workflows=[blue], name="third")._begin())
            assert await client.handle("later").result() == "stays"
            assert await client.list({"status": "quarantined"}) == []
            await (await third).close()

    play(tmp_path, body, shards=1)


def test_a_query_for_other_code_is_refused_when_that_code_leaves(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The only worker that could have answered is gone before it got the shard."""
    caplog.set_level(logging.INFO)

    async def body(tree: Tree, client: Client) -> None:
        gates["long"] = asyncio.Event()
        async with Worker.connect(tree.address, workflows=[red], name="red"):
            await client.start("red", "long", "long")
            await eventually(begins("long"), "the body keeps the shard here")
            other = asyncio.create_task(Worker.connect(tree.address, workflows=[asked], name="asked")._begin())
            await eventually(lambda: knows_asked(client), "the red worker hears of the other one")
            query = asyncio.create_task(client.handle("probe").query("words"))
            await eventually(lambda: is_aside(client, "probe"), "the run waits for code")
            other.cancel()
            await asyncio.gather(other, return_exceptions=True)
            with pytest.raises(Rejected, match="cannot be asked until a worker's code fits it, or it is reset: "):
                await query
            gates["long"].set()

    play(tmp_path, body, shards=1)


async def knows_asked(client: Client) -> bool:
    try:
        await client.start("asked", "probe", on_running="use_existing", on_finished="use_existing")
    except UnknownWorkflow:
        return False
    return True
