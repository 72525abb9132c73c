"""What a look can find, and what to do instead."""
from __future__ import annotations

from typing import Final

from msgspec import Struct

# What to use instead, by rule. The names are what `# fusee: allow(rule) reason` takes.
RULES: Final = {
    "clock": "ctx.now() is the time of the run, the same in every replay",
    "sleep": "await ctx.sleep(..) or asyncio.sleep(..): a durable timer that holds up nobody",
    "random": "ctx.random() or ctx.uuid4(): the same draws in every replay; secrets belong in a step",
    "environment": "hand it over in the workflow's input, or read it in a step: the answer is then recorded",
    "io": "do it in a step, await ctx.step(name, fn, ..): its result is recorded and it is not repeated",
    "input": "wait for a signal, await ctx.wait_for(..): somebody may answer days later, in another process",
    "thread": "await ctx.step(name, fn, ..): a sync function runs in a thread pool there",
    "loop": "await it, or asyncio.create_task(..): a workflow runs on a loop of its own",
    "set-order": "iterate over sorted(..), or keep a list or dict: the order of a set changes from process to process",
    "wait-set": "make tasks first, in order: [asyncio.create_task(c) for c in ..]",
    "as-completed": "make tasks first, in order: asyncio.as_completed([asyncio.create_task(c) for c in ..])",
    "global-write": "keep it in the workflow function: a replay writes it again, and other runs see it",
    "swallow": "end the handler with `raise`, or catch Exception: a cancelled run must get to its end",
    "forgotten-await": "await it, or make it a task: until then it does not begin",
    "hash": "compare or sort by a field, or use hashlib: hash() of text differs in every process",
    "inputs": "put several inputs into one dataclass: a workflow takes a context and at most one input",
    "print": "ctx.log, which is silent while replaying",
    "allow": "write `# fusee: allow(rule) reason`",
}


class Finding(Struct, frozen=True, order=True):
    """One place. line, column: counted from 1. instead: what to use. breaks: False for what a replay merely repeats."""

    file: str
    line: int
    column: int
    rule: str
    message: str
    instead: str
    breaks: bool = True

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}: {self.rule}: {self.message}. Instead: {self.instead}."
