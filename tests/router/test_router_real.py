"""The router with the real shard processes: a worker's lease from HELLO to RETURN, and a damaged log."""
from __future__ import annotations

import os
import signal
from pathlib import Path

from fusee_mp.wire import messages as m
from tests.router.harness import Peer, Worker, serving, until


def test_a_lease_is_granted_under_a_higher_epoch_each_time_also_after_a_kill(tmp_path: Path) -> None:
    with serving(tmp_path / "data", fake=False) as server:
        with Worker(server.address, "w", "1") as worker:
            assert worker.assigned() == [0, 1]
            assert worker.lease(0).epoch == 1
            until(lambda: server.shard(0)["worker"] == "w/1" and server.shard(0)["epoch"] == 1)
            os.kill(server.shard(0)["pid"], signal.SIGKILL)
            assert worker.leases[0].ended()
            assert worker.assigned() == [0]
            assert worker.lease(0).epoch == 2
            with Worker(server.address, "w", "2") as successor:
                assert successor.assigned() == [0, 1]
                assert successor.lease(0).epoch == 3
                until(lambda: server.shard(0)["worker"] == "w/2")
                facts = until(lambda: server.shard(0) if server.shard(0)["durable_lsn"] >= 3 else None)
                assert facts["keeper_pid"]
                successor.leases[0].send(m.Return(), epoch=3)
                until(lambda: not server.shard(0)["worker"])
        assert server.terminate() == 0


def test_a_client_is_taken_by_a_real_shard_process(tmp_path: Path) -> None:
    with serving(tmp_path / "data", fake=False, unix=str(tmp_path / "sock")) as server:
        for address in server.addresses:
            with Peer(address, b"\xf5fmp\r\n\x01\x00\x04\x00\x00\x00\xff\xff\xff\xff") as client:
                welcome = client.ask(m.ClientHello("c"), m.ClientWelcome)
                assert welcome.shards == 2 and welcome.server == server.status()["server"]
