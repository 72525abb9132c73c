"""Who may work on a shard, and how that ends: silence, freezing, replacement, hand-back, a server that was killed."""
from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fusee_mp import Client, Ctx, Worker, Workflow, workflow
from fusee_mp.wire import messages as m
from fusee_mp.wire.preface import ConnectionKind, Preface
from tests.server.flows import WORKFLOWS, Effect, boot_time, effects
from tests.server.loopback import Proxy, asynchronous, id_on, until
from tests.server.raw import Raw, RawLease
from tests.server.tree import Tree, serving
from tests.server.workers import WorkerProcess

QUICK = {"ping_ms": 250, "revoke_ms": 1_500}


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    """A server that ends a silent lease soon."""
    with serving(tmp_path_factory.mktemp("quick") / "data", **QUICK) as tree:
        yield tree


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    """A server that does not end a lease for silence within the time of a test."""
    with serving(tmp_path_factory.mktemp("patient") / "data", revoke_ms=300_000) as tree:
        yield tree


def one_input_per_key(found: list[Effect]) -> None:
    inputs = defaultdict(set)
    for effect in found:
        inputs[effect.key].add(str(effect.input))
    assert all(len(several) == 1 for several in inputs.values()), {key: several for key, several in inputs.items() if len(several) > 1}


async def recorded(client: Client, id: str, kind: str) -> bool:
    detail = await client.describe(id)
    return detail is not None and any(record.kind == kind for record in detail.journal)


def test_a_silent_lease_is_revoked_with_the_reason_and_the_shard_is_free(quick: Tree) -> None:
    with RawLease(quick.address, "silent", 0) as silent:
        silent.append()
        frame, revoked = silent.expect(m.Revoked)
        assert frame.epoch == silent.epoch and "nothing was heard of the worker" in revoked.reason
        with RawLease(quick.address, "next", 0) as following:
            assert following.epoch > silent.epoch


def test_a_lease_lasts_as_long_as_its_worker_gives_signs_of_life(quick: Tree) -> None:
    with RawLease(quick.address, "alive", 0) as alive:
        for stamp in range(25):  # for longer than a silent lease lasts
            alive.send(m.Ping(stamp))
            assert alive.expect(m.Pong)[1].stamp == stamp
            alive.sock.settimeout(0.1)
            try:
                alive.sock.recv(1)
            except TimeoutError:
                pass
            alive.sock.settimeout(30)
        alive.append()
        alive.durable(1)


def test_the_time_in_which_a_shard_process_was_frozen_does_not_count_against_its_worker(quick: Tree) -> None:
    with RawLease(quick.address, "alive", 1) as alive:
        shard = quick.shard(1)
        shard.suspend()
        time.sleep(2)  # longer than a silent lease lasts
        shard.resume()
        alive.append()
        assert alive.durable(1).through == 1


@asynchronous
async def test_a_worker_that_was_frozen_changes_nothing_of_what_its_successor_does(quick: Tree, tmp_path: Path) -> None:
    """Frozen under load for longer than its leases last; thawed, it starts no body of the runs that are another's now."""
    path = tmp_path / "effects"
    async with Client.connect(quick.address) as client:
        with WorkerProcess(quick.address, "frozen", path).holds() as frozen, WorkerProcess(quick.address, "standby", path) as standby:
            await until(lambda: "joined" in quick.log and "standby" in quick.log)
            runs = [await client.start("counter", None, 60) for _ in range(40)]
            await until(lambda: len(effects(path)) > 200)
            frozen.signal(signal.SIGSTOP)
            frozen_at = boot_time()
            await until(lambda: all(f"shard {shard} is held by standby" in quick.log for shard in range(2)))
            await until(lambda: any(effect.pid == standby.pid for effect in effects(path)))
            frozen.signal(signal.SIGCONT)
            assert [await run.result() for run in runs] == [sum(range(60))] * 40
            late = [effect for effect in effects(path) if effect.pid == frozen.pid and effect.at > frozen_at]
            assert not late, f"frozen at {frozen_at}, and then it began {late}"
            await until(lambda: "lost shard 0" in frozen.log and "lost shard 1" in frozen.log)
    one_input_per_key(effects(path))


@asynchronous
async def test_a_worker_whose_connections_broke_while_it_was_frozen_begins_nothing_when_it_wakes(patient: Tree, tmp_path: Path) -> None:
    """Its clock would let it: it was frozen for a moment only, in the middle of many bodies that were about to begin."""
    path = tmp_path / "effects"
    async with Client.connect(patient.address) as client, Proxy(patient.address) as proxy:
        counting = [asyncio.create_task(client.execute("counter", None, 40)) for _ in range(60)]
        with contextlib.ExitStack() as stack:
            frozen = stack.enter_context(WorkerProcess(proxy.address, "frozen", path))
            await asyncio.to_thread(frozen.holds)  # the proxy runs here
            joined = patient.log.count(" joined")
            standby = stack.enter_context(WorkerProcess(patient.address, "standby", path))
            await until(lambda: len(effects(path)) > 300 and patient.log.count(" joined") > joined)
            frozen.signal(signal.SIGSTOP)
            proxy.refuse()
            proxy.cut()
            await until(lambda: {effect.pid for effect in effects(path)[-20:]} == {standby.pid})
            thawed_at = boot_time()
            frozen.signal(signal.SIGCONT)
            assert await asyncio.gather(*counting) == [sum(range(40))] * 60
            late = [effect for effect in effects(path) if effect.pid == frozen.pid and effect.at > thawed_at]
            assert len(late) <= 1, late  # one may have been on its way into its body
    one_input_per_key(effects(path))


@asynchronous
async def test_a_new_start_of_a_worker_takes_over_at_once_from_one_that_hangs(patient: Tree, tmp_path: Path) -> None:
    """G12: claims belong to a start of a worker, not to its name. The old one thaws into nothing."""
    path = tmp_path / "effects"
    async with Client.connect(patient.address) as client:
        with WorkerProcess(patient.address, "same", path).holds() as old:
            run = await client.start("waiter", None)
            await until(lambda: recorded(client, run.id, "step"))
            old.signal(signal.SIGSTOP)
            frozen_at = boot_time()
            with WorkerProcess(patient.address, "same", path).holds() as new:
                await run.signal("go", 5)
                assert await run.result() == 5
                old.signal(signal.SIGCONT)
                await until(lambda: "a newer instance of this worker took over" in old.log)
                again = await client.start("counter", None, 3)
                assert await again.result() == 3
                assert {effect.pid for effect in effects(path) if effect.at > frozen_at} == {new.pid}
    assert [effect.input for effect in effects(path)] == [0, 5, 0, 1, 2]


@asynchronous
async def test_the_older_of_two_workers_of_one_name_works_again_when_the_newer_one_has_ended(patient: Tree) -> None:
    async with Worker.connect(patient.address, workflows=WORKFLOWS, name="twin") as older:
        async with Worker.connect(patient.address, workflows=WORKFLOWS, name="twin") as newer:
            await until(lambda: len(newer.held) == 2 and not older.held)
        await until(lambda: len(older.held) == 2)


@asynchronous
async def test_a_worker_that_leaves_hands_its_shards_back_and_a_standby_goes_on(patient: Tree, tmp_path: Path) -> None:
    """Nothing waits for a time-out: on this server a lease that is not handed back lasts for minutes."""
    path = tmp_path / "effects"
    async with Client.connect(patient.address) as client:
        with WorkerProcess(patient.address, "leaving", path).holds() as leaving, WorkerProcess(patient.address, "staying", path) as staying:
            run = await client.start("waiter", None)
            busy = await client.start("lasting", None, 0.3)
            await until(lambda: len(effects(path)) == 2)
            leaving.signal(signal.SIGTERM)
            assert await busy.result() == 0.3
            assert leaving.wait() == 0
            staying.holds()
            await run.signal("go", 1)
            assert await run.result() == 1
    lasted = [effect for effect in effects(path) if effect.input == 0.3]
    assert len(lasted) == 1 and lasted[0].pid == leaving.pid  # the body got its grace, and its outcome was kept
    log = patient.log.rpartition("the lease of leaving")[2]
    assert "the worker handed it back" in log and "nothing was heard" not in patient.log


@asynchronous
async def test_a_worker_that_leaves_begins_no_step_and_waits_for_bodies_no_longer_than_its_grace(patient: Tree) -> None:
    """What is asked of its shards meanwhile is recorded and answered, and done by whoever has them next."""
    left, stayed, never = list[str](), list[str](), asyncio.Event()
    async with Client.connect(patient.address) as client:
        leaving = await Worker.connect(patient.address, workflows=[noting(left, never.wait)], name="leaving", grace="1s")
        await until(lambda: leaving.held == [0, 1])
        joined = patient.log.count(" joined")
        heir = asyncio.create_task(joins(patient, stayed))
        long = await client.start("noting", None, "long")
        await until(lambda: left == ["long"] and patient.log.count(" joined") > joined)
        closing = asyncio.create_task(leaving.close())
        await asyncio.sleep(0)
        short = await client.start("noting", None, "short")
        assert await client.status(short.id) is not None and leaving.held == [0, 1] and not closing.done()
        await closing
        assert await asyncio.gather(long.result(), short.result()) == ["long", "short"]
        assert left == ["long"] and sorted(stayed) == ["long", "short"]
        await (await heir).close()


def noting(noted: list[str], wait: Callable[[], Awaitable[Any]]) -> Workflow[Any, Any]:
    async def note(text: str) -> str:
        noted.append(text)
        await wait()
        return text

    @workflow("noting")
    async def body(ctx: Ctx, text: str) -> str:
        return await ctx.step("note", note, text)

    return body


async def joins(tree: Tree, noted: list[str]) -> Worker:
    return await Worker.connect(tree.address, workflows=[noting(noted, lambda: asyncio.sleep(0))], name="heir")


@asynchronous
async def test_a_worker_killed_in_mid_work_is_followed_by_a_standby_at_once(patient: Tree, tmp_path: Path) -> None:
    """G12: it never comes back."""
    path = tmp_path / "effects"
    async with Client.connect(patient.address) as client:
        with WorkerProcess(patient.address, "killed", path).holds() as killed, WorkerProcess(patient.address, "heir", path):
            runs = [await client.start("counter", None, 50) for _ in range(20)]
            await until(lambda: len(effects(path)) > 100)
            killed.signal(signal.SIGKILL)
            assert [await run.result() for run in runs] == [sum(range(50))] * 20
    one_input_per_key(effects(path))


@asynchronous
async def test_a_killed_worker_that_is_started_again_under_its_name_goes_on_at_once(patient: Tree, tmp_path: Path) -> None:
    """G12: again and again, before anybody could have missed it."""
    path = tmp_path / "effects"
    async with Client.connect(patient.address) as client:
        counting = [asyncio.create_task(client.execute("counter", None, 50)) for _ in range(20)]
        for _ in range(2):
            before = len(effects(path))
            with WorkerProcess(patient.address, "again", path).holds() as worker:
                await until(lambda before=before: len(effects(path)) > before + 50)  # type: ignore[misc]
                worker.signal(signal.SIGKILL)
        with WorkerProcess(patient.address, "again", path).holds():
            assert await asyncio.gather(*counting) == [sum(range(50))] * 20
    one_input_per_key(effects(path))


@asynchronous
async def test_workers_and_waiting_clients_go_on_when_a_killed_server_is_started_again(tmp_path: Path) -> None:
    path = tmp_path / "effects"
    with serving(tmp_path / "data") as tree:
        async with Client.connect(tree.address) as client:
            with WorkerProcess(tree.address, "w", path).holds():
                run = await client.start("waiter", id_on(0, 2))
                other = await client.start("waiter", id_on(1, 2))
                sleeping = await client.start("sleeper", None, 0.5)
                results = [asyncio.create_task(one.result()) for one in (run, other, sleeping)]
                await until(lambda: len(effects(path)) == 2)
                for _ in range(2):
                    await asyncio.to_thread(tree.restart)
                    assert await client.status(run.id) is not None
                await run.signal("go", 1)
                await other.signal("go", 2)
                assert await asyncio.gather(*results) == [1, 2, "awake"]
                assert not any(task.cancelled() for task in results)
    assert sorted(str(effect.input) for effect in effects(path)) == ["0", "0", "1", "2"]


@asynchronous
async def test_a_worker_told_to_leave_by_a_stopping_server_leaves_and_the_server_ends_in_order(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as tree, WorkerProcess(tree.address, "w", tmp_path / "effects").holds() as worker:
        assert await asyncio.to_thread(tree.stop) == 0
        assert await asyncio.to_thread(worker.wait) == 0
        assert "the worker handed it back" in tree.log


@asynchronous
async def test_a_worker_that_closes_while_it_takes_a_shard_leaves_no_lease_behind(patient: Tree) -> None:
    for number in range(5):
        joining = asyncio.create_task(_join(patient))
        await asyncio.sleep(0.004 * number)  # some get further than others
        joining.cancel()
        await asyncio.gather(joining, return_exceptions=True)
    async with Worker.connect(patient.address, workflows=WORKFLOWS, name="after") as worker:
        await until(lambda: worker.held == [0, 1])


async def _join(tree: Tree) -> None:
    async with Worker.connect(tree.address, workflows=WORKFLOWS, name="hasty") as worker:
        await worker.run()


@asynchronous
async def test_a_worker_behind_a_path_that_went_silent_gives_the_lease_up_and_comes_back(quick: Tree) -> None:
    """No reset, no end of stream: only silence says that the connection is dead."""
    async with (
        Proxy(quick.address) as proxy, Client.connect(quick.address) as client,
        Worker.connect(proxy.address, workflows=WORKFLOWS, name="w") as worker,
    ):
        await until(lambda: worker.held == [0, 1])
        proxy.freeze()
        async with Worker.connect(quick.address, workflows=WORKFLOWS, name="heir") as heir:
            await until(lambda: heir.held == [0, 1])
            assert await client.execute("sleeper", None, 0) == "awake"
            proxy.thaw()
            await until(lambda: worker.held == [])
        await until(lambda: worker.held == [0, 1])
        assert await client.execute("sleeper", None, 0) == "awake"


def test_a_second_session_of_the_same_start_of_a_worker_replaces_the_first(patient: Tree) -> None:
    with Raw(patient.address, Preface(ConnectionKind.CONTROL)) as first, Raw(patient.address, Preface(ConnectionKind.CONTROL)) as second:
        first.ask(m.Hello("twice", "1", []), m.Welcome)
        second.ask(m.Hello("twice", "1", []), m.Welcome)
        assert "connected again" in first.goodbye()
        assert second.expect(m.Assign)[1].shards
