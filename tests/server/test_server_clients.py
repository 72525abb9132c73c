"""What a client may count on: answers of one for calls sent again, results without a worker, bounds, and what its own faults cost."""
from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fusee_mp import Client, Ctx, NotFound, Rejected, Unavailable, UnknownWorkflow, Worker, bounds, workflow
from fusee_mp.core.calls import ResultCall, SchedulesCall, StartCall, Started, UpdateCall, encode_call
from fusee_mp.shardproc.calls import TRIES_MAX
from fusee_mp.wire import messages as m
from fusee_mp.wire.frames import FrameDecoder, encode_frame
from fusee_mp.wire.kinds import Kind
from fusee_mp.wire.preface import ConnectionKind, Preface
from tests.server.flows import WORKFLOWS
from tests.server.loopback import Proxy, asynchronous, id_on, until
from tests.server.raw import Raw, RawClient, RawLease
from tests.server.tree import Tree, serving

SHARDS = 2


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    with serving(tmp_path_factory.mktemp("clients") / "data", shards=SHARDS) as tree:
        yield tree


@workflow("gate")
async def gate(ctx: Ctx) -> list[int]:
    """Collects values until a wait brings nothing."""
    values = [int(await ctx.wait_for("value"))]
    while (value := await ctx.wait_for("value", timeout=0.3)) is not None:
        values.append(int(value))
    return values


@workflow("echo")
async def echo(ctx: Ctx, value: Any) -> Any:
    return value


def joined(tree: Tree) -> Any:
    return Worker.connect(tree.address, workflows=[gate, echo, *WORKFLOWS], name="w")


@asynchronous
async def test_a_call_whose_answer_was_lost_has_the_effect_and_the_answer_of_one(tree: Tree) -> None:
    """The server carries each call out, and the first answer to each is cut off on its way."""
    async with joined(tree), Proxy(tree.address) as proxy, Client.connect(proxy.address) as client:
        sent: list[str] = []
        is_armed = False

        def may_pass(data: bytes, is_from_client: bool) -> bool:
            nonlocal is_armed
            for method in ("start", "signal"):
                if is_from_client and method.encode() in data[29:40]:
                    is_armed = method not in sent
                    sent.append(method)
            lost, is_armed = is_armed and not is_from_client, is_armed and is_from_client
            return not lost

        proxy.may_pass = may_pass
        run = await client.start("gate", None)
        await run.signal("value", 7)
        assert sent == ["start", "start", "signal", "signal"]
        assert await run.result() == [7]
        detail = await run.describe()
        assert detail is not None
        assert [record.kind for record in detail.journal].count("signal") == 1
        assert await client.count({"id": run.id}) == 1


@asynchronous
async def test_a_repeated_request_id_gets_the_first_answer_also_from_the_next_holder(tree: Tree) -> None:
    id = id_on(0, SHARDS, "repeated")
    call = StartCall(id, "gate", b"null", "request-1")
    answers = []
    for _ in range(2):
        async with joined(tree) as worker:
            await until(lambda: worker.held == [0, 1])
            with RawClient(tree.address, 0) as raw:
                for request in (1, 2):
                    raw.call(call, request, 0, repeat=True)
                    _, reply = await asyncio.to_thread(raw.expect, m.Reply)
                    answers.append(reply.value)
    assert len(answers) == 4 and len({msgspec.msgpack.decode(answer, type=Started).run for answer in answers}) == 1


@asynchronous
async def test_the_result_of_a_finished_run_needs_no_worker(tree: Tree) -> None:
    async with Client.connect(tree.address) as client:
        async with joined(tree):
            runs = [await client.start("echo", id_on(shard, SHARDS), shard) for shard in range(SHARDS)]
            assert [await run.result() for run in runs] == [0, 1]
        assert [await run.result() for run in runs] == [0, 1]
        await runs[0].started()
        status = await runs[0].status()
        assert status is not None and status.status == "ok"


@asynchronous
async def test_a_result_that_became_known_as_its_worker_died_is_answered_without_another(tree: Tree) -> None:
    """The worker is cut off from the moment in which it has the result durable; nobody takes its place."""
    async with (
        Proxy(tree.address) as proxy, Client.connect(tree.address) as client,
        Worker.connect(proxy.address, workflows=[echo, gate], name="w") as worker,
    ):
        await until(lambda: worker.held == [0, 1])
        run = await client.start("gate", None)
        waiting = asyncio.create_task(run.result())

        def may_pass(data: bytes, is_from_client: bool) -> bool:
            if is_from_client and any(frame.kind == Kind.REPLY and b"\xa2ok" in frame.body for frame in FrameDecoder().feed(data)):
                proxy.refuse()
                return False
            return True

        await run.signal("value", 1)
        proxy.may_pass = may_pass
        assert await waiting == [1]


@asynchronous
async def test_waiting_results_survive_the_death_of_shard_processes_and_workers(tree: Tree) -> None:
    async with Client.connect(tree.address) as client:
        async with joined(tree) as worker:
            await until(lambda: worker.held == [0, 1])
            runs = [await client.start("gate", id_on(shard, SHARDS)) for shard in range(SHARDS)]
            waiting = [asyncio.create_task(run.result()) for run in runs]
            await asyncio.to_thread(tree.shard(0).kill)
            await asyncio.to_thread(tree.shard(1).kill)
            await until(lambda: worker.held == [])
            await until(lambda: worker.held == [0, 1])
        async with joined(tree):
            for run in runs:
                await run.signal("value", 3)
            assert await asyncio.gather(*waiting) == [[3], [3]]


@asynchronous
async def test_a_wait_that_is_given_up_is_freed_at_the_server_and_at_the_worker(tree: Tree) -> None:
    async with joined(tree) as worker, Client.connect(tree.address) as client:
        run = await client.start("gate", id_on(0, SHARDS))
        waits = [asyncio.create_task(run.result()) for _ in range(50)]
        await until(lambda: _waiting_at(worker, 0) == 50)
        with pytest.raises(TimeoutError):
            await run.result(timeout=0.05)
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
        await until(lambda: _waiting_at(worker, 0) == 0)
        await until(lambda: _shard_facts(tree, 0).get("calls_waiting") == 0)
        lost = await Client.connect(tree.address)
        waits = [asyncio.create_task(lost.handle(run.id).result()) for _ in range(5)]
        await until(lambda: _waiting_at(worker, 0) == 5)
        await lost.close()
        results = await asyncio.gather(*waits, return_exceptions=True)
        assert all(isinstance(result, Unavailable) for result in results)
        await until(lambda: _waiting_at(worker, 0) == 0)
        await run.terminate()


def _waiting_at(worker: Worker, shard: int) -> int:
    return len(worker._runtimes[shard].calls._results.get(_only(worker, shard), ()))


def _only(worker: Worker, shard: int) -> str:
    return next(iter(worker._runtimes[shard].calls._results), "")


def _shard_facts(tree: Tree, shard: int) -> dict[str, Any]:
    with Raw(tree.address, Preface(ConnectionKind.CONTROL)) as control:
        facts: dict[str, Any] = control.ask(m.Status(), m.Status).facts["shards"][shard]
        return facts


@asynchronous
async def test_started_waits_until_the_id_has_a_run(tree: Tree) -> None:
    """D37."""
    async with joined(tree), Client.connect(tree.address) as client:
        handle = client.handle(id_on(1, SHARDS, "later"))
        with pytest.raises(TimeoutError):
            await handle.started(timeout=0.05)
        waiting = asyncio.create_task(handle.started())
        await client.start("echo", handle.id, 1)
        await waiting
        with pytest.raises(NotFound, match="no run has the workflow ID"):
            await client.handle("never").result()


@asynchronous
async def test_a_start_of_a_workflow_that_no_worker_has_is_refused_by_name(tree: Tree) -> None:
    async with joined(tree), Client.connect(tree.address) as client:
        with pytest.raises(UnknownWorkflow, match='"unheard" is not registered here. Registered: .*gate'):
            await client.start("unheard", None)


def test_a_call_on_another_shard_than_the_connections_is_forwarded_and_answered(tree: Tree) -> None:
    with RawClient(tree.address, 0) as raw:
        raw.send(m.Call("count", b"\x90"), 1, 1)
        frame, reply = raw.expect(m.Reply)
        assert (frame.request, frame.shard) == (1, 1) and isinstance(reply.value, bytes)
        raw.send(m.Call("count", b"\x91\xa3bad"), 2, 1)
        frame, error = raw.expect(m.Error)
        assert frame.request == 2 and error.code == "rejected"
        raw.send(m.Call("count", b"\x90"), 3, 9)
        frame, error = raw.expect(m.Error)
        assert frame.request == 3 and "there is no shard 9" in error.message
        raw.sock.sendall(encode_frame(Kind.CALL, b"\xc1", 4, 1))  # read before it goes on: the other shard could not tell its sender
        assert "CALL" in raw.expect(m.Goodbye)[1].reason
        assert raw.frame() is None


def test_what_a_client_may_leave_waiting_is_bounded_and_beyond_it_it_hears_busy(tree: Tree) -> None:
    call = m.Call("result", encode_call(ResultCall(id_on(1, SHARDS, "never"))))
    with RawClient(tree.address, 1) as raw, RawClient(tree.address, 1) as other:
        assert busy(raw, call, bounds.CALLS_OF_ONE_MAX).endswith("wait for answers before you send more")
        assert other.ask(m.Call("count", b"\x90"), m.Reply, request=99_999, shard=1)  # there is room for others
        raw.send(m.Cancel(), 1, 1)
        raw.send(call, 1, 1)  # and again for this one
        raw.send(m.Call("count", b"\x90"), bounds.CALLS_OF_ONE_MAX + 3, 1)
        assert raw.expect(m.Error)[1].code == "busy"
        half = bounds.CALLS_WAITING_MAX // 2
        assert busy(other, call, half).endswith("try later")  # who has most has given way until both had as much
        gone = [raw.expect(m.Error) for _ in range(bounds.CALLS_OF_ONE_MAX - half)]
        assert [frame.request for frame, _ in gone] == [1, *range(bounds.CALLS_OF_ONE_MAX, half + 1, -1)]
        assert all(error.code == "busy" and "most of it for this connection" in error.message for _, error in gone)
    with RawClient(tree.address, 1) as after:  # what it left behind has gone with it
        assert after.ask(m.Call("count", b"\x90"), m.Reply, shard=1)


def test_a_call_that_passes_through_many_holders_in_order_is_answered_in_the_end(tree: Tree) -> None:
    """Workers are replaced one after the other while an update takes its time: none of them lost it."""
    call = UpdateCall("x", "u", b"1", "u-1", "r-1")
    with RawClient(tree.address, 0) as raw:
        raw.call(call, 1, 0)
        for number in range(TRIES_MAX + 2):
            with RawLease(tree.address, f"w-{number}", 0) as holder:
                holder.expect(m.Call)
                holder.send(m.Return(), shard=0, epoch=holder.epoch)
                assert "handed it back" in holder.goodbye()
        with RawLease(tree.address, "last", 0) as holder:
            frame, _ = holder.expect(m.Call)
            holder.send(m.Reply(b"done"), frame.request, 0, holder.epoch)
            assert raw.expect(m.Reply)[1].value == b"done"


def test_a_call_that_every_holder_was_lost_over_is_given_up(tree: Tree) -> None:
    with RawClient(tree.address, 0) as raw:
        raw.call(UpdateCall("x", "u", b"1", "u-1", "r-2"), 1, 0)
        for number in range(TRIES_MAX):
            with RawLease(tree.address, f"w-{number}", 0) as holder:
                holder.expect(m.Call)
        with RawLease(tree.address, "last", 0):
            error = raw.expect(m.Error)[1]
            assert error.code == "unavailable" and "was given to 5 holders of shard 0, and each lost the shard soon after" in error.message


@asynchronous
async def test_without_a_worker_one_strange_question_does_not_hide_the_results_of_others(tree: Tree) -> None:
    id = id_on(0, SHARDS)
    async with joined(tree), Client.connect(tree.address) as client:
        assert await client.execute("echo", id, "x") == "x"
    with RawClient(tree.address, 0) as strange, RawClient(tree.address, 0) as good:
        for request in range(1, 500):
            strange.send(m.Call("result", encode_call(ResultCall("never"))), request, 0)
        strange.send(m.Call("result", encode_call(SchedulesCall())), 500, 0)
        good.send(m.Call("result", encode_call(ResultCall(id))), 1, 0)
        assert await asyncio.to_thread(good.expect, m.Reply)


def test_what_a_client_may_leave_waiting_for_other_shards_leaves_room_for_others(tree: Tree) -> None:
    call = m.Call("result", encode_call(ResultCall(id_on(1, SHARDS, "never"))))
    with RawClient(tree.address, 0) as other:
        with RawClient(tree.address, 0) as raw:
            assert busy(raw, call, bounds.FORWARDED_OF_ONE_MAX).endswith("wait for answers before you send more")
            assert other.ask(m.Call("count", b"\x90"), m.Reply, request=99_999, shard=1)
        busy(other, call, bounds.FORWARDED_OF_ONE_MAX)  # what the first left behind has gone with it, there too


def test_a_request_under_a_number_that_still_waits_ends_the_connection(tree: Tree) -> None:
    for shard in range(2):
        call = m.Call("result", encode_call(ResultCall(id_on(shard, SHARDS, "never"))))
        with RawClient(tree.address, 0) as raw:
            for _ in range(2):
                raw.send(call, 5, shard)
            assert raw.goodbye() == "request 5 still waits for its answer: give each request a number of its own"


def test_frames_that_are_begun_and_not_finished_hold_a_bounded_amount_of_memory(tree: Tree) -> None:
    """Twenty of the largest frames but for their last byte: those that began first go, everybody else is served."""
    frame = m.encode(m.Call("x", bytes(bounds.FRAME_BYTES_MAX - 100)), 1, 0)[:-1]
    with ExitStack() as stack:
        raws = [stack.enter_context(RawClient(tree.address, 0)) for _ in range(bounds.UNFINISHED_BYTES_MAX // len(frame) + 4)]
        for raw in raws:
            raw.sock.sendall(frame)
        for raw in raws[:4]:
            assert raw.goodbye().startswith("busy: too many frames were begun and not finished")
        for raw in raws[4:]:
            raw.sock.sendall(b"?")
            assert "does not match its CRC-32C" in raw.goodbye()


def busy(raw: RawClient, call: m.Call, most: int) -> str:
    """Why the two calls after so many are refused."""
    raw.sock.sendall(b"".join(m.encode(call, request, 1) for request in range(1, most + 3)))
    refused = [raw.expect(m.Error) for _ in range(2)]
    assert [frame.request for frame, _ in refused] == [most + 1, most + 2]
    assert all(error.code == "busy" and "Nothing of this one was recorded" in error.message for _, error in refused)
    return refused[0][1].message


@pytest.mark.parametrize(("garbage", "says"), [
    (b"\x00" * 64, "expected a frame length from"),
    (b"\xff" * 64, "expected a frame length from"),
    (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 8, "expected a frame length from"),
    (m.encode(m.Call("count", b"\x90"), 1, 0)[:-1] + b"\x77" + bytes(8), "does not match its CRC-32C"),
    (encode_frame(Kind.CALL, b"\xc1", 1, 0), "CALL is malformed"),
    (encode_frame(Kind.CALL, b"\x90", 1, 0), 'field "method" of CALL is malformed'),
    (m.encode(m.Append(1, 1, b"\0\0\0\0"), 1, 0), "a client does not send frames of kind 34"),
])
def test_garbage_after_a_good_greeting_ends_that_connection_and_no_other(tree: Tree, garbage: bytes, says: str) -> None:
    with RawClient(tree.address, 0) as bystander, RawClient(tree.address, 0) as faulty:
        faulty.sock.sendall(garbage)
        assert says in faulty.goodbye()
        assert bystander.ask(m.Call("count", b"\x90"), m.Reply)


def test_a_client_that_does_not_greet_is_told_so(tree: Tree) -> None:
    with Raw(tree.address, Preface(ConnectionKind.CLIENT_SHARD, 0)) as rude:
        rude.send(m.Call("count", b"\x90"), 1, 0)
        assert "this connection begins with CLIENT_HELLO" in rude.goodbye()


@asynchronous
async def test_payloads_of_the_largest_size_go_in_and_come_back(tree: Tree) -> None:
    text = "x" * (bounds.PAYLOAD_BYTES_MAX - 16)
    async with joined(tree), Client.connect(tree.address) as client:
        assert await client.execute("echo", id_on(0, SHARDS), text) == text


@asynchronous
async def test_a_client_that_does_not_keep_to_the_servers_bound_is_refused_by_the_server(tmp_path: Path) -> None:
    """G14: what cannot fit does not reach a worker; what a worker opens and finds too large, it refuses. Nothing of either is recorded."""
    bounded = Tree(tmp_path / "data", payload_bytes_max=1_000)
    await asyncio.to_thread(bounded.start)
    try:
        async with joined(bounded), Client.connect(bounded.address) as client:
            assert await asyncio.to_thread(sizes_refused, bounded.address) == ["payload", "payload", "payload"]
            assert await client.count() == 0
            assert await client.execute("echo", id_on(0, SHARDS), "x" * 998) == "x" * 998
    finally:
        await asyncio.to_thread(bounded.close)


def sizes_refused(address: str) -> list[str]:
    with RawClient(address, 0) as raw:
        assert raw.welcome.payload_bytes_max == 1_000
        id = id_on(0, SHARDS)
        calls = [StartCall(id, "echo", b"1" * size, f"q-{size}") for size in (1_001, 100_000)]
        for request, call in enumerate([*calls, StartCall(id, "echo", b"1", "q", attributes=b'{"a":"%b"}' % (b"x" * 1_000))], 1):
            raw.call(call, request, 0)
        return [raw.expect(m.Error)[1].code for _ in range(3)]


@asynchronous
async def test_a_journal_longer_than_a_frame_is_described_and_loaded_again(tree: Tree) -> None:
    """Twelve MiB of signals: the answer to `describe` comes in parts, and the next worker's `fetch` too."""
    async with Client.connect(tree.address) as client:
        async with Worker.connect(tree.address, workflows=[big], name="w"):
            run = await client.start("big", id_on(0, SHARDS))
            for _ in range(4):
                await run.signal("blob", "y" * (3 << 20))
            detail = await run.describe()
            assert detail is not None and sum(record.kind == "signal" for record in detail.journal) == 4
        async with Worker.connect(tree.address, workflows=[big], name="w2"):
            await run.signal("end")
            assert await run.result() == 4


@workflow("big")
async def big(ctx: Ctx) -> int:
    await ctx.wait_for("end")
    count = 0
    while await ctx.wait_for("blob", timeout=0) is not None:
        count += 1
    return count


def test_a_frame_over_the_bound_is_refused_by_its_first_bytes(tree: Tree) -> None:
    with RawClient(tree.address, 0) as raw:
        raw.sock.sendall((bounds.FRAME_BYTES_MAX).to_bytes(4, "little") + bytes(60))
        assert "expected a frame length from" in raw.goodbye()


def test_a_client_that_does_not_read_is_ended_and_the_shard_goes_on(tree: Tree) -> None:
    with RawClient(tree.address, 0) as bystander, RawClient(tree.address, 0) as deaf:
        deaf.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        ping = encode_frame(Kind.PING, b"\x91\x01" + bytes(1 << 20))
        with pytest.raises(ConnectionError):
            for _ in range(1 << 10):
                deaf.sock.sendall(ping)
        assert bystander.ask(m.Call("count", b"\x90"), m.Reply)


@asynchronous
async def test_what_cannot_be_reached_is_named_with_what_to_do(tree: Tree) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(Unavailable, match=f"no server answers at {nobody}.*fusee-mp serve"):
            await Client.connect(nobody)
        with pytest.raises(Unavailable, match=f"no server answers at {nobody}"):
            await Worker.connect(nobody, workflows=[echo])
    client = await Client.connect(tree.address)
    await client.close()
    with pytest.raises(Unavailable, match="this client is closed: make another"):
        await client.status("any")


@pytest.mark.parametrize("address", ["", "host:", "host:0", "host:65536", "host:12x", "unix:", "host:1?colour=red", ":7410"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(Rejected, match="address"):
        Client.connect(address)


FORKED = """
import asyncio, os, sys
from fusee_mp import Client, Unavailable

async def main():
    async with Client.connect(sys.argv[1]) as client:
        assert await client.status("nobody") is None
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                coroutine = client.status("nobody")
                try:
                    coroutine.send(None)
                except Unavailable as e:
                    code = 0 if "made before a fork" in str(e) else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        for _ in range(3):
            assert await client.status("nobody") is None
        pid = os.fork()
        if pid == 0:
            asyncio.events._set_running_loop(None)
            async def fresh():
                async with Client.connect(sys.argv[1]) as mine:
                    assert await mine.status("nobody") is None
                try:
                    await client.status("nobody")
                except Unavailable:
                    await client.close()
                    return
                os._exit(3)
            try:
                asyncio.run(fresh())
            except BaseException as e:
                print(repr(e), file=sys.stderr)
                os._exit(4)
            os._exit(0)
        assert os.waitstatus_to_exitcode((await asyncio.to_thread(os.waitpid, pid, 0))[1]) == 0
        assert await client.status("nobody") is None

asyncio.run(main())
"""


@asynchronous
async def test_a_client_used_after_a_fork_says_so_and_the_parents_goes_on(tree: Tree) -> None:
    """G08: never a hang; a client made in the child works."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", FORKED, tree.address, env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}, stderr=-1,
    )
    _, said = await process.communicate()
    assert process.returncode == 0, said.decode()
