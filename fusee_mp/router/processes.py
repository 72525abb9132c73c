# The shard processes of the server: started, watched, started again.
#
# One slot a shard, which outlives the processes in it. What a process says reaches the floor (the router) only while it is the one in
# the slot: `on_over` takes it out, and it says nothing afterwards.
#
# Rule 1: after `shard_up` comes `shard_down`, and never two of a kind in a row.
# Rule 2: a death whose cause stays (exit code EXIT_HOPELESS, or a GOODBYE whose reason begins with a code of HOPELESS) is not
#         followed by a restart: the floor is told that the server has failed. So it is when `Restarts` gives up.
"""`Processes`: keeps one process per shard running."""
from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from fusee_mp.errors import BY_CODE, FuseeError, Unavailable
from fusee_mp.router.health import STARTING_WARN_MS, Health
from fusee_mp.router.options import ServeOptions
from fusee_mp.router.process import ShardProcess
from fusee_mp.router.restarts import GIVE_UP_DEATHS, GIVE_UP_WINDOW_MS, Restarts
from fusee_mp.security.keys import Material
from fusee_mp.wire import messages as m
from fusee_mp.wire.frames import Frame

LOG: Final = logging.getLogger("fusee_mp.router")
EXIT_HOPELESS: Final = 78
HOPELESS: Final = frozenset({"damaged_log"})


class Floor(Protocol):
    """What the router is to its processes."""

    def shard_up(self, shard: int) -> None: ...
    def shard_down(self, shard: int) -> None: ...
    def held(self, shard: int, holder: str, epoch: int) -> None: ...
    def freed(self, shard: int) -> None: ...
    def failed(self, error: FuseeError) -> None: ...
    def all_gone(self) -> None: ...


@dataclass(slots=True)
class Slot:
    shard: int
    health: Health
    process: ShardProcess | None = None
    restarts: Restarts = field(default_factory=Restarts)
    timer: asyncio.TimerHandle | None = None
    asked: int = 0
    is_told_stalled: bool = False
    warned_ms: int = 0

    @property
    def is_ready(self) -> bool:
        return self.process is not None and self.health.is_ready


class Processes:
    """`start` them, `tick` regularly, then `stop`, in the end `kill`; `all_gone` is said when none is left after a stop."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, options: ServeOptions, shards: int, server: str, floor: Floor, clock_ms: Callable[[], int],
        material: Material = Material(),
    ) -> None:
        self._material = material
        self._loop, self._options, self._server, self._floor, self._clock_ms = loop, options, server, floor, clock_ms
        self._is_stopping = False
        self.slots = [Slot(shard, Health(options.silence_ms)) for shard in range(shards)]

    @property
    def are_ready(self) -> bool:
        return all(slot.is_ready for slot in self.slots)

    @property
    def are_gone(self) -> bool:
        return all(slot.process is None for slot in self.slots)

    def start(self) -> None:
        for slot in self.slots:
            self._start(slot)

    def send(self, shard: int, message: m.Message, descriptors: Sequence[int] = ()) -> None:
        """Send to the shard's process; to one that is down nothing is sent. The descriptors are closed on every path."""
        process = self.slots[shard].process
        if process is not None:
            process.send(message, descriptors)
            return
        for descriptor in descriptors:
            os.close(descriptor)

    def adopt(self, shard: int, preface: bytes, sock: socket.socket) -> bool:
        """Give a connection away; False, and nothing has happened, if the process takes none now."""
        slot = self.slots[shard]
        if not slot.is_ready or slot.process is None or not slot.process.takes_connections:
            return False
        slot.process.send(m.Adopt(preface), (sock.detach(),))
        return True

    def keyed(self, material: Material) -> None:
        """There are other keys, for all and for those that will be started. Raises OSError, and perhaps some have them."""
        self._material = material
        for slot in self.slots:
            if slot.process is not None:
                slot.process.send(m.Keys(), (material.to_descriptor(),))

    def stop(self, grace_ms: int) -> None:
        """Ask all to end, and start none again. One that is not ready has nothing to bring to an end: it is killed."""
        self._is_stopping = True
        for slot in self.slots:
            if slot.timer is not None:
                slot.timer.cancel()
                slot.timer = None
            if slot.is_ready:
                self.send(slot.shard, m.Stop(grace_ms))
            elif slot.process is not None:
                slot.process.kill()
        self._say_if_gone()

    def kill(self) -> list[int]:
        """End all at once; returns the shards whose processes were still there."""
        self._is_stopping = True
        left = [slot for slot in self.slots if slot.process is not None]
        for slot in left:
            if slot.process is not None:
                slot.process.kill()
        return [slot.shard for slot in left]

    def tick(self, passed_ms: int) -> None:
        for slot in self.slots:
            if slot.process is None:
                continue
            slot.process.tick(passed_ms)
            if slot.process is not None:
                self._look_after(slot, slot.process, passed_ms)

    def _look_after(self, slot: Slot, process: ShardProcess, passed_ms: int) -> None:
        why = slot.health.tick(passed_ms)
        if why and process.exit_code is None:
            LOG.error("shard %d: process %d is killed: %s", slot.shard, process.pid, why)
            process.kill()
        self._report(slot)
        if slot.is_ready:
            slot.asked += 1
            process.send(m.Status(), request=slot.asked)

    def _report(self, slot: Slot) -> None:
        if slot.health.is_stalled != slot.is_told_stalled:
            slot.is_told_stalled = slot.health.is_stalled
            state = "makes no progress: its store does not follow its log" if slot.is_told_stalled else "makes progress again"
            facts = slot.health.facts
            LOG.warning("shard %d %s (log LSN %s, store LSN %s)", slot.shard, state, facts.get("durable_lsn"), facts.get("applied_lsn"))
        if not slot.health.is_ready and slot.health.age_ms - slot.warned_ms >= STARTING_WARN_MS:
            slot.warned_ms = slot.health.age_ms
            LOG.warning("shard %d has been starting for %d s: recovering a long log takes time", slot.shard, slot.warned_ms // 1000)

    # One life.

    def _start(self, slot: Slot) -> None:
        slot.timer = None
        slot.health, slot.is_told_stalled, slot.warned_ms = Health(self._options.silence_ms), False, 0
        try:
            slot.process = ShardProcess(
                self._loop, slot.shard, lambda control, pid: self._command(slot.shard, control, pid),
                lambda message, frame: self._take(slot, message, frame), lambda: self._over(slot),
            )
            if self._options.key_files().has_any:  # before its first connection
                slot.process.send(m.Keys(), (self._material.to_descriptor(),))
        except OSError as error:
            self._died(slot, f"could not be started: {error}")

    def _command(self, shard: int, control: int, pid: int) -> list[str]:
        o = self._options
        told: dict[str, Any] = {
            "data": os.path.abspath(o.dir), "shard": shard, "shards": len(self.slots), "control": control, "parent": pid,
            "server": self._server, "log": o.log, "ping_ms": o.ping_ms, "revoke_ms": o.revoke_ms,
            "checkpoint_interval_ms": o.checkpoint_interval_ms, "payload_bytes_max": o.payload_bytes_max,
            "core": o.cores[shard % len(o.cores)] if o.cores else None,
            "is_secured": o.key_files().has_any, "connections": -(-o.connections // len(self.slots)),
        }
        return [*o.program, json.dumps(told)]

    def _take(self, slot: Slot, message: m.Message, frame: Frame) -> None:
        match message:
            case m.Ready() if not slot.health.is_ready:
                slot.health.ready()
                self._floor.shard_up(slot.shard)
            case m.Status(facts):
                slot.health.answered(facts)
            case m.Held(shard, holder, epoch) if shard == slot.shard and slot.is_ready:
                self._floor.held(shard, holder, epoch)
            case m.Free(shard) if shard == slot.shard and slot.is_ready:
                self._floor.freed(shard)
            case _:
                LOG.error("shard %d sent what is not expected, and it is ignored: %r", slot.shard, message)

    def _over(self, slot: Slot) -> None:
        process, was_ready = slot.process, slot.is_ready
        assert process is not None, "a life ends once"
        slot.process = None
        if was_ready:
            self._floor.shard_down(slot.shard)
        if self._is_stopping:
            LOG.info("shard %d: process %d %s", slot.shard, process.pid, process.end())
            self._say_if_gone()
        elif process.exit_code == EXIT_HOPELESS or _code(process.last_words) in HOPELESS:
            self._floor.failed(_failure(slot.shard, process))
        else:
            self._died(slot, f"process {process.pid} {process.end()}")

    def _died(self, slot: Slot, how: str) -> None:
        pause_ms = slot.restarts.died(self._clock_ms())
        if pause_ms is None:
            self._floor.failed(Unavailable(
                f"the process of shard {slot.shard} ended {GIVE_UP_DEATHS} times within {GIVE_UP_WINDOW_MS // 1000} s, at last: {how}. "
                "The log says more; when the cause is mended, start the server again", shard=slot.shard,
            ))
            return
        LOG.warning("shard %d: %s; starting it again%s", slot.shard, how, f" in {pause_ms} ms" if pause_ms else "")
        slot.timer = self._loop.call_later(pause_ms / 1000, self._start, slot)

    def _say_if_gone(self) -> None:
        if self._is_stopping and self.are_gone:
            self._floor.all_gone()


def _code(words: str) -> str:
    return words.partition(":")[0]


def _failure(shard: int, process: ShardProcess) -> FuseeError:
    kind = BY_CODE.get(_code(process.last_words), Unavailable)
    words = process.last_words.partition(":")[2].strip() or process.end()
    return kind(f"shard {shard} cannot be served: {words}. The server stops; starting it again does not mend this", shard=shard)
