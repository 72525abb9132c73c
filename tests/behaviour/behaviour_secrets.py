"""Workflows whose every payload holds one word, and the play that makes them use every feature."""
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from behaviour_homes import until

from fusee_mp import (
    Batch,
    Ctx,
    Debounce,
    Fatal,
    Rejected,
    Retry,
    ScheduleSpec,
    WorkflowFailed,
    current_step,
    query,
    signal,
    update,
    workflow,
)

SECRET = "xyzzy-4711"
GO = signal("go", str)
ADD = update("add", str, returns=str)
SAID = query("said", str, returns=str)
tokens: list[str] = []


async def tell(text: str) -> str:
    here = current_step()
    here.heartbeat({"so far": text})
    if here.attempt == 1:
        raise ConnectionError(f"lost {text}")
    return f"told {text}"


async def fail(text: str) -> None:
    raise Fatal(f"never {text}")


async def post(token: str) -> None:
    tokens.append(token)


@workflow
async def small(ctx: Ctx, text: str) -> str:
    if text.startswith("fail"):
        raise ValueError(text)
    return f"child of {text}"


@workflow
async def gathered(ctx: Ctx, texts: list[str]) -> list[str]:
    return texts


@workflow(on_exhausted="pause")
async def pausing(ctx: Ctx, text: str) -> None:
    async def body() -> None:
        raise OSError(f"broken {text}")

    await ctx.step("body", body)


@workflow
async def talks(ctx: Ctx, text: str) -> dict[str, Any]:
    said: list[str] = []

    def refuse(value: str) -> None:
        if value.startswith("no"):
            raise ValueError(f"refused {value}")

    async def add(value: str) -> str:
        said.append(value)
        return f"added {value}"

    ctx.on_update(ADD, add, refuse)
    ctx.on_query(SAID, lambda arg: f"{arg} {said}")
    ctx.set_attributes(team="blue")
    told = await ctx.step("tell", tell, text, retry=Retry(attempts=2, initial="1ms"))
    try:
        await ctx.step("fail", fail, text)
    except Fatal as e:
        failed = str(e)
    child = await ctx.child(small, f"{ctx.workflow_id}/child", text)
    try:
        await ctx.child(small, f"{ctx.workflow_id}/fails", f"fail {text}")
    except Exception as e:
        failed += str(e.__cause__.__cause__) if e.__cause__ is not None else ""
    answer = await ctx.completion("answer", post, returns=str)
    went = await ctx.wait_for(GO)
    await ctx.signal(f"{ctx.workflow_id}/other", GO, f"onward {text}")
    return {"text": text, "told": told, "failed": failed, "child": child, "answer": answer, "went": went, "said": said}


@workflow
async def waits(ctx: Ctx, text: str) -> str:
    if text == "first":
        await ctx.continue_as_new(waits, SECRET)
    return f"{text} {await ctx.wait_for(GO)}"


WORKFLOWS = [small, gathered, pausing, talks, waits]
TALKED = {
    "text": SECRET, "told": f"told {SECRET}", "failed": f"never {SECRET}fail {SECRET}", "child": f"child of {SECRET}",
    "answer": f"answer {SECRET}", "went": f"go {SECRET}", "said": [SECRET],
}


async def begin(engine: Any) -> None:
    """Everything up to where the run waits for its signal."""
    tokens.clear()
    await engine.start(waits, "t/other", "first")
    run = await engine.start(talks, "t", SECRET, attributes={"amount": 60})
    assert await run.update(ADD, SECRET, update_id="u1") == f"added {SECRET}"
    try:
        await run.update(ADD, f"no {SECRET}")
        raise AssertionError("it was not refused")
    except Rejected as e:
        assert SECRET in e.message
    assert await run.query(SAID, SECRET) == f"{SECRET} ['{SECRET}']"
    await until(lambda: tokens, "the token")
    await engine.complete(tokens[-1], f"answer {SECRET}")
    await _windows_and_schedules(engine)
    await _failures(engine)


async def _windows_and_schedules(engine: Any) -> None:
    await engine.schedule("s", ScheduleSpec(workflow=small, input=f"scheduled {SECRET}", every="1h", paused=True))
    assert (await engine.schedule_handle("s").describe()).spec.input == f"scheduled {SECRET}"
    assert await (await engine.schedule_handle("s").trigger()).result() == f"child of scheduled {SECRET}"
    await engine.debounce(small, "d", f"one {SECRET}", Debounce("50ms"))
    last = await engine.debounce(small, "d", f"two {SECRET}", Debounce("50ms"))
    assert await last.result() == f"child of two {SECRET}"
    await engine.batch(gathered, "b", f"one {SECRET}", Batch(2, "1h"))
    both = await engine.batch(gathered, "b", f"two {SECRET}", Batch(2, "1h"))
    assert await both.result() == [f"one {SECRET}", f"two {SECRET}"]
    await engine.batch(gathered, "left", f"open {SECRET}", Batch(2, "1h"))


async def _failures(engine: Any) -> None:
    try:
        await engine.execute(small, "failed", f"fail {SECRET}")
        raise AssertionError("it did not fail")
    except WorkflowFailed as e:
        assert SECRET in str(e.__cause__)
    await engine.start(pausing, "p", SECRET)
    paused = await until(lambda: _paused(engine), "the pause")
    assert SECRET in paused.reason


async def _paused(engine: Any) -> Any:
    found = await engine.describe("p")
    return found if found is not None and found.status == "paused" else None


async def end(engine: Any) -> None:
    """And from there."""
    run = engine.handle("t", talks)
    detail = await run.describe()
    assert SECRET in str(detail.journal)
    await run.signal(GO, f"go {SECRET}")
    assert await run.result() == TALKED
    assert await engine.handle("t/other").result() == f"{SECRET} onward {SECRET}"
    assert await run.query(SAID, "later") == f"later ['{SECRET}']"
    both = await engine.batch(gathered, "left", f"closed {SECRET}", Batch(2, "1h"))
    assert await both.result() == [f"open {SECRET}", f"closed {SECRET}"]
    tokens.clear()
    await run.reset("fail")
    await until(lambda: tokens, "the token of the run that was reset")
    await engine.complete(tokens[-1], f"answer {SECRET}")
    # An update that came after the cut is not made again.
    assert {**await run.result(), "said": [SECRET]} == TALKED


def clear_in(directory: Path) -> Iterator[str]:
    """The files that hold the word, as text, in Base64 or as JSON writes it."""
    for path in directory.rglob("*"):
        if path.is_file() and SECRET.encode() in path.read_bytes():
            yield str(path.relative_to(directory))
