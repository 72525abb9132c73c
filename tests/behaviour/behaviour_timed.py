"""Workflows that schedules and windows start."""
from __future__ import annotations

import json
from typing import Any

from fusee_mp import Ctx, Workflow, workflow


@workflow
async def tenfold(ctx: Ctx, n: int) -> int:
    return 10 * n


@workflow
async def collected(ctx: Ctx, events: list[int]) -> list[int]:
    return events


@workflow
async def stamped(ctx: Ctx) -> str:
    """The instant, and what its zone shows."""
    assert ctx.scheduled_at is not None
    return json.dumps([ctx.scheduled_at.isoformat(), str(ctx.scheduled_at.tzinfo)])


@workflow
async def holds(ctx: Ctx) -> int:
    return int(await ctx.wait_for("go"))


ALL: list[Workflow[Any, Any]] = [tenfold, collected, stamped, holds]
