"""The state of the server as plain values, for STATUS on a control connection."""
from __future__ import annotations

from typing import Any

import fusee_mp
from fusee_mp.bounds import STATUS_NAMES_BYTES_MAX
from fusee_mp.router.elsewhere import fitting
from fusee_mp.router.leases import LeaseTable
from fusee_mp.router.processes import Slot
from fusee_mp.router.seats import Member


def server_status(server: str, slots: list[Slot], table: LeaseTable, state: str, refused: int) -> dict[str, Any]:
    """{server, version, state, refused, shards: [..], workers: [..]}; both lists in order of shard and arrival. `refused`: connections
    that the router turned away itself. Of workers with so many workflows that their names fit no frame there are the first, and how many
    were left out."""
    names_bytes = STATUS_NAMES_BYTES_MAX // max(1, len(table.members))
    return {
        "server": server, "version": fusee_mp.__version__, "state": state, "refused": refused,
        "shards": [_shard(slot, table) for slot in slots],
        "workers": [_worker(member, table, names_bytes) for member in table.members.values()],
    }


def _shard(slot: Slot, table: LeaseTable) -> dict[str, Any]:
    """What the shard process said last, and over it what is known here better. `age_ms` is how old its answer is."""
    seat = table.seats[slot.shard]
    assigned = table.members[seat.session].name if seat.session is not None else ""
    return {
        "keeper_pid": None, "durable_lsn": None, "applied_lsn": None, **slot.health.facts,
        "shard": slot.shard, "pid": slot.process.pid if slot.process else None, "state": _state(slot), "worker": seat.holder,
        "assigned": assigned, "epoch": max(seat.epoch, _epoch(slot)), "restarts": slot.restarts.total, "age_ms": slot.health.age_ms,
    }


def _state(slot: Slot) -> str:
    if slot.process is None:
        return "down"
    if not slot.health.is_ready:
        return "starting"
    return "stalled" if slot.health.is_stalled else "ready"


def _epoch(slot: Slot) -> int:
    epoch = slot.health.facts.get("epoch")
    return epoch if isinstance(epoch, int) else 0


def _worker(member: Member, table: LeaseTable, names_bytes: int) -> dict[str, Any]:
    held = sorted(shard for shard in member.shards if table.seats[shard].is_settled)
    names = fitting(member.workflows, names_bytes, len(member.workflows))
    return {
        "worker": member.worker, "instance": member.instance, "held": held, "assigned": sorted(member.shards.difference(held)),
        "max_shards": member.max_shards, "workflows": names, "workflows_left_out": len(member.workflows) - len(names),
        "draining": member.is_draining,
    }
