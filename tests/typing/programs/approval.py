"""Human approval with reminders, timeout, withdrawal, an update with validator and a query."""

import asyncio
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from fusee_mp import Client, Ctx, Rejected, TimedOut, query, signal, step, update, workflow


@dataclass
class Request:
    who: str
    amount: int


@dataclass
class Comment:
    by: str
    text: str


@dataclass
class State:
    status: Literal["waiting", "approved", "refused", "expired"] = "waiting"
    comments: list[Comment] = field(default_factory=list[Comment])
    due: datetime | None = None


DECISION = signal("decision", bool)
WITHDRAW = signal("withdraw")
STATE = query("state", returns=State)
COMMENT = update("comment", Comment, returns=int)


@step
async def notify(who: str, text: str) -> None: ...


@workflow("approval", retention="90d")
async def approval(ctx: Ctx, req: Request) -> State:
    state = State()

    def check(c: Comment) -> None:
        if not c.text:
            raise ValueError("a comment needs text")

    async def comment(c: Comment) -> int:
        state.comments.append(c)
        await notify(req.who, c.text)
        return len(state.comments)

    ctx.on_query(STATE, lambda: state)
    ctx.on_update(COMMENT, comment, check)
    ctx.set_attributes(stage="waiting", who=req.who)
    await notify(req.who, "please decide")
    withdrawn = asyncio.ensure_future(ctx.wait_for(WITHDRAW))
    for _ in range(3):
        decided = asyncio.ensure_future(ctx.wait_for(DECISION, timeout="1d"))
        done, _ = await asyncio.wait({decided, withdrawn}, return_when=asyncio.FIRST_COMPLETED)
        if withdrawn in done:
            decided.cancel()
            state.status = "refused"
            break
        ok = decided.result()
        if ok is None:
            await notify(req.who, "still waiting")
            continue
        state.status = "approved" if ok else "refused"
        break
    else:
        state.status = "expired"
    withdrawn.cancel()
    ctx.set_attributes(stage=state.status)
    return state


async def main() -> None:
    async with Client.connect("127.0.0.1:7410") as client:
        run, n = await client.update_with_start(approval, "req-1", Request("ann", 5), COMMENT, Comment("bob", "hm"))
        try:
            await run.update(COMMENT, Comment("bob", ""))
        except Rejected as e:
            print(e.code)
        await run.signal(DECISION, True)
        await run.signal(WITHDRAW)
        s = await run.query(STATE)
        print(s.status, n)
        try:
            print((await run.result(timeout=60)).status)
        except TimedOut:
            print("?")


if __name__ == "__main__":
    asyncio.run(main())
