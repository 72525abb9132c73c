"""An agent that asks a person before it does what cannot be undone. The engine is embedded: one process, one directory.

Run it:  python examples/agent.py
Kill it anywhere and run it again with the same directory: no tool is used twice.  python examples/agent.py ./agent-data
"""
from __future__ import annotations

import asyncio
import sys
import tempfile
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Literal

from fusee_mp import Ctx, Engine, Retry, query, step, update, workflow


@dataclass
class ToolCall:
    tool: str
    argument: str


@dataclass
class Answer:
    text: str


@dataclass
class Message:
    role: Literal["user", "model", "tool", "person"]
    text: str


@dataclass
class Task:
    goal: str
    messages: list[Message] = field(default_factory=list[Message])


@dataclass
class Decision:
    who: str
    is_approved: bool


PENDING = query("pending", returns=ToolCall | None)
DECIDE = update("decide", Decision, returns=None)
DANGEROUS = {"pay"}
TURNS = 3  # in one run; a hundred would be more usual
SCRIPT: list[ToolCall | Answer] = [
    ToolCall("search", "lamps"), ToolCall("pay", "lamp, 39.90"), ToolCall("search", "delivery"), Answer("The lamp comes on Tuesday."),
]


@step(retry=Retry(attempts=5), timeout="60s")
async def think(messages: list[Message]) -> ToolCall | Answer:
    """Stands for a model: what it says depends on what was said so far."""
    return SCRIPT[sum(message.role == "model" for message in messages)]


@step(timeout="60s")
async def use(call: ToolCall) -> str:
    print(f"  {call.tool}: {call.argument}", flush=True)
    return f"{call.tool} is done"


@workflow("agent")
async def agent(ctx: Ctx, task: Task) -> str:
    messages = task.messages or [Message("user", task.goal)]
    pending: ToolCall | None = None
    decisions: list[Decision] = []

    def may_decide(decision: Decision) -> None:
        if pending is None:
            raise ValueError("nothing waits for a decision")

    def decide(decision: Decision) -> None:
        decisions.append(decision)

    ctx.on_update(DECIDE, decide, may_decide)
    ctx.on_query(PENDING, lambda: pending)
    for _ in range(TURNS):
        thought = await think(messages)
        if isinstance(thought, Answer):
            return thought.text
        messages.append(Message("model", f"{thought.tool} {thought.argument}"))
        if thought.tool in DANGEROUS:
            pending = thought
            ctx.set_attributes(waits_for="a decision")
            await ctx.wait_until(lambda: bool(decisions), timeout="2d")
            pending, decided = None, decisions.pop() if decisions else Decision("nobody", False)
            ctx.set_attributes(waits_for=None)
            messages.append(Message("person", f"{decided.who} {'agrees' if decided.is_approved else 'refuses'}"))
            if not decided.is_approved:
                continue
        messages.append(Message("tool", await use(thought)))
    # A run that went on for ever would have a journal without end. What the next one is to know is its input.
    await ctx.continue_as_new(agent, Task(task.goal, messages))


async def main(directory: str) -> None:
    async with Engine.open(directory, workflows=[agent]) as engine:
        run = await engine.start(agent, "task-1", Task("buy a lamp"), on_running="use_existing", on_finished="use_existing")
        while (status := await run.status()) and status.is_open:
            # Here a program would show a list to somebody: what is open and waits for a decision.
            for waiting in await engine.list({"status": "open", "waits_for": "a decision"}):
                call = await engine.handle(waiting.id).query(PENDING)
                if call is not None:
                    print(f"  ann agrees to {call.tool}: {call.argument}", flush=True)
                    await engine.handle(waiting.id).update(DECIDE, Decision("ann", True), update_id=f"{call.tool} {call.argument}")
            await asyncio.sleep(0.05)
        print(await run.result())


if __name__ == "__main__":
    with nullcontext(sys.argv[1]) if len(sys.argv) > 1 else tempfile.TemporaryDirectory() as place:
        asyncio.run(main(place))
