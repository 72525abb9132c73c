"""Agent loop: model call, tool calls in parallel, steering messages, budget, progress a client can watch."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from fusee_mp import Client, Ctx, Retry, current_step, query, signal, step, workflow


@dataclass
class ToolCall:
    id: str
    name: str
    arguments: dict[str, Any]


@dataclass
class Message:
    role: str
    content: str
    calls: list[ToolCall] = field(default_factory=list[ToolCall])


@dataclass
class Progress:
    turn: int
    text: str


STEER = signal("steer", str)
PROGRESS = query("progress", int, returns=list[Progress])


def search(query: str, limit: int = 5) -> list[str]:
    return [query] * limit


async def fetch(url: str, timeout: float = 10.0) -> str:
    return url


TOOLS: dict[str, Callable[..., Any]] = {"search": search, "fetch": fetch}


async def tokens(history: list[Message]) -> AsyncIterator[str]:
    yield "hello"


@step(retry=Retry(attempts=4), heartbeat_timeout="20s")
async def model(history: list[Message]) -> Message:
    text = current_step().progress(str) or ""  # last attempt's text
    async for t in tokens(history):
        text += t
        current_step().heartbeat(text)
    return Message("assistant", text)


@workflow("agent")
async def agent(ctx: Ctx, goal: str) -> str:
    history = [Message("user", goal)]
    log: list[Progress] = []
    ctx.on_query(PROGRESS, lambda since: log[since:])
    for turn in range(50):
        while (s := await ctx.wait_for(STEER, timeout=0)) is not None:
            history.append(Message("user", s))
        answer = await model(history)
        history.append(answer)
        log.append(Progress(turn, answer.content))
        if not answer.calls:
            return answer.content

        async def call(c: ToolCall) -> Message:
            fn = TOOLS[c.name]
            out = await ctx.step(c.name, lambda: fn(**c.arguments))
            return Message("tool", str(out))

        history += await asyncio.gather(*(call(c) for c in answer.calls))
        if ctx.journal_size > 5000:
            await ctx.continue_as_new(agent, goal)
    return "gave up"


async def main() -> None:
    async with Client.connect("127.0.0.1:7410") as client:
        run = await client.start(agent, "a-1", "find it", on_running="use_existing")
        seen = 0
        waiting = asyncio.create_task(run.result())
        while not waiting.done():
            for p in await run.query(PROGRESS, seen):
                print(p.text)
                seen += 1
            await asyncio.sleep(0.5)
        print(await waiting)


if __name__ == "__main__":
    asyncio.run(main())
